-- The head line of a thread, of its namespaces the latest checkpoint and whether somebody is asked there, its lease,
-- and whether that is held.
-- uses: _thread _lease
-- ARGV: the namespace below which to begin, with a NUL, or '', how many namespaces

local head, trouble = open()
if trouble then
  return {trouble}
end
if not head then
  return {'none'}
end
local heads = {}
local upper = ARGV[1] ~= '' and '(n' .. ARGV[1] or '(o'
while #heads < tonumber(ARGV[2]) do
  local member = call('ZREVRANGEBYLEX', ORDER, upper, '[n', 'LIMIT', 0, 1)[1]
  if not member then
    break
  end
  local ns, _, id = named(member)
  local directory = call('HGET', DATA, 'd' .. ns .. '\0' .. id) or ''
  local waits = 0
  for at = 17, #directory, 17 do
    if string.byte(directory, at) == 33 then
      waits = 1
    end
  end
  heads[#heads + 1] = {ns, id, waits}
  upper = '(n' .. ns .. '\0'
end
local held = lease()
return {'ok', call('HGET', DATA, 'm'), heads, held, held[1] ~= '' and clock() < tonumber(held[4]) and 1 or 0}
