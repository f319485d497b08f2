-- Records of a thread by their start, a bounded part of them at a time.
-- uses: _thread _calls
-- ARGV: start of 8 bytes and key after which to begin or '' twice, how many to look at, how many states and these, then
--       keys or nothing for all

local from_start, from_key, room, count = unpack(ARGV, 1, 4)
local states, wanted = {}, nil
for at = 5, 4 + count do
  states[ARGV[at]] = true
end
for at = 5 + count, #ARGV do
  wanted = wanted or {}
  wanted[resolved(ARGV[at])] = true
end
local now = struct.pack('>d', clock())
local found, reached = {}, false
local function consider(key)
  local value = call('HGET', CALLS, 'c' .. key)
  if value and (count == '0' or states[opened(value).state]) then
    found[#found + 1] = told(key)
  end
end
if wanted then
  for key in pairs(wanted) do
    consider(key)
  end
  return {now, found, false}
end
local least = from_start ~= '' and string.format('%.17g', struct.unpack('>d', from_start)) or '-inf'
local offset, seen = 0, 0
room = tonumber(room)
while seen < room do
  local members = call('ZRANGEBYSCORE', STARTS, least, '+inf', 'WITHSCORES', 'LIMIT', offset, 64)
  for at = 1, #members, 2 do
    local key, score = members[at], tonumber(members[at + 1])
    if least == '-inf' or score > tonumber(least) or less(from_key, key) then
      if seen >= room then
        return {now, found, reached}
      end
      consider(key)
      seen = seen + 1
      reached = {struct.pack('>d', score), key}
    end
  end
  if #members < 128 then
    return {now, found, false}
  end
  offset = offset + 64
end
return {now, found, reached}
