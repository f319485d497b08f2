-- Take over records where there are none.
-- uses: _thread _calls
-- ARGV: thread, then for each record: key, value, trail

local first = call('EXISTS', CALLS) == 0
for at = 2, #ARGV, 3 do
  local key, value, trail = unpack(ARGV, at, at + 2)
  if not call('HGET', CALLS, 'a' .. key) and call('HEXISTS', CALLS, 'c' .. key) == 0 then
    keep_call(key, opened(value), nil, trail)
  end
end
if first and LEDGER then
  call('ZADD', LEDGER, 0, ARGV[1])
end
return {'ok', first and 1 or 0}
