-- Forget the records of a thread that has expired, unless one is unsettled.
-- uses: _thread _calls

if call('EXISTS', DATA, ORDER) == 0 and (tonumber(call('HGET', CALLS, 'u') or 0)) == 0 then
  call('UNLINK', CALLS, STARTS)
  return 1
end
return 0
