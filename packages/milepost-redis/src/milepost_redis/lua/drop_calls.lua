-- Remove records that are settled and still as they were listed, with their further keys.
-- uses: _thread _calls
-- ARGV: thread, then for each record: key, revision

for at = 2, #ARGV, 2 do
  local key = ARGV[at]
  local value = call('HGET', CALLS, 'c' .. key)
  local r = value and opened(value)
  if r and r.revision == tonumber(ARGV[at + 1]) and not UNSETTLED[r.state] then
    for _, alias in ipairs(frames(r.aliases)) do
      call('HDEL', CALLS, 'a' .. alias)
    end
    if r.match ~= '' then
      leave_match(r.match, key)
    end
    call('HDEL', CALLS, 'c' .. key, 't' .. key)
    call('ZREM', STARTS, key)
  end
end
if call('EXISTS', STARTS) == 1 then
  return {'ok', 0}
end
call('UNLINK', CALLS)
if LEDGER then
  call('ZREM', LEDGER, ARGV[1])
end
return {'ok', 1}
