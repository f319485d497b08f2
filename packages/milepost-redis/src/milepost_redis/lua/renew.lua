-- Have a lease expire later, if it is still the owner's.
-- uses: _thread _lease
-- ARGV: owner, ttl in seconds, milliseconds that the key stays

local owner, ttl, life = unpack(ARGV, 1, 3)
if lease()[1] == owner then
  keep_lease(clock() + ttl, life)
end
return lease()
