-- Take the lease of a thread if nobody holds it, or if it is held under a fence that it may be taken from.
-- uses: _thread _lease
-- ARGV: owner, ttl in seconds, fence that may be taken over or '', milliseconds that the key stays

local owner, ttl, over, life = unpack(ARGV, 1, 4)
local now, held = clock(), lease()
local alive = held[1] ~= '' and now < tonumber(held[4])
if held[1] == owner then
  keep_lease(now + ttl, life)
elseif not alive or held[2] == over then
  local fence = math.max(held[2] + 1, math.floor(now * 1e6))
  local tries = (held[1] ~= '' and not alive) and held[5] + 1 or held[5]
  keep_lease(now + ttl, life, 'o', owner, 'f', string.format('%.0f', fence), 's', seconds(now), 't', tries)
end
return lease()
