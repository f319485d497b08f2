-- Remove everything of a thread, whatever state it is in, and leave a tombstone with the newest ids it had.
-- uses: _thread
-- ARGV: milliseconds that the tombstone stays, how many ids it names, thread

local most = tonumber(ARGV[2])
local ids, list = {}, {}
local function add(id)
  if not ids[id] then
    ids[id] = true
    list[#list + 1] = id
  end
end
if call('EXISTS', DATA, ORDER) == 0 then
  return {'ok', 0}
end
-- Of checkpoints whose key is their id the newest ones are found by key; those of the others have an entry of their own.
local upper, plain = '(l', 0
while plain <= most do
  local members = call('ZREVRANGEBYLEX', ORDER, upper, '[k', 'LIMIT', 0, 512)
  for _, member in ipairs(members) do
    if string.byte(member, -1) == 0 and plain <= most then
      local key = parts(string.sub(member, 2))
      plain = plain + (ids[key] and 0 or 1)
      add(key)
    end
  end
  if #members < 512 then
    break
  end
  upper = '(' .. members[#members]
end
-- These came in descending order; only with others among them there is something to sort.
local sorted = #list
for _, member in ipairs(call('ZREVRANGEBYLEX', ORDER, '(j', '[i', 'LIMIT', 0, most + 1)) do
  local id = parts(string.sub(member, 2))
  add(id)
end
for _, member in ipairs(call('ZRANGEBYLEX', ORDER, '[q', '(r')) do
  local _, id = parts(member)
  add(id)
end
for _, member in ipairs(call('ZRANGEBYLEX', TOMB, '[i', '(j')) do
  add(string.sub(member, 2))
end
local floor = call('ZRANGEBYLEX', TOMB, '[f', '(g', 'LIMIT', 0, 1)[1]
if #list > sorted then
  table.sort(list, function(a, b) return less(b, a) end)
end
if #list > most then
  floor = 'f' .. list[most]
end
call('DEL', TOMB)
for at = 1, math.min(#list, most) do
  call('ZADD', TOMB, 0, 'i' .. list[at])
end
if floor then
  call('ZADD', TOMB, 0, floor)
end
call('PEXPIRE', TOMB, ARGV[1])
call('UNLINK', DATA, ORDER)
if INDEX then
  call('ZREM', INDEX, ARGV[3])
end
return {'ok', 1}
