-- Remove everything of a thread, whatever state it is in, and leave a tombstone with the newest ids it had.
-- Records of calls that are unsettled keep it from that; with force they stay, and all else goes.
-- uses: _thread _calls
-- KEYS: also, behind the keys of the ledger, the index of threads where it is on the same node
-- ARGV: milliseconds that the tombstone stays, how many ids it names, thread, 1 if it is forced

local unsettled = tonumber(call('HGET', CALLS, 'u') or 0)
if unsettled > 0 and ARGV[4] ~= '1' then
  return {'unsettled', unsettled}
end
local without = call('EXISTS', CALLS) == 0
if not without then
  local kept = {}
  for _, key in ipairs(unsettled > 0 and call('ZRANGE', STARTS, 0, -1) or {}) do
    local one = told(key)
    if UNSETTLED[opened(one[2]).state] then
      kept[#kept + 1] = one
    end
  end
  call('UNLINK', CALLS, STARTS)
  for _, one in ipairs(kept) do
    keep_call(one[1], opened(one[2]), nil, one[3])
  end
  if LEDGER and #kept == 0 then
    call('ZREM', LEDGER, ARGV[3])
  end
end
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
if KEYS[8] then
  call('ZREM', KEYS[8], ARGV[3])
end
return {'ok', 1}
