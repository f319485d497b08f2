-- Give a lease back, if it is the owner's.
-- uses: _thread _lease
-- ARGV: owner, 1 if he failed, what he said of it, milliseconds that the key stays

local owner, failed, said, life = unpack(ARGV, 1, 4)
local held = lease()
if held[1] == owner then
  local now = clock()
  keep_lease(now, life, 'o', '', 's', seconds(now), 't', failed == '1' and held[5] + 1 or 0, 'r', said)
end
return {'ok'}
