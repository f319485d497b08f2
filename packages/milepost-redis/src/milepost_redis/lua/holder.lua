-- The lease of a thread, if somebody holds it.
-- uses: _thread _lease

local held = lease()
return held[1] ~= '' and clock() < tonumber(held[4]) and held or {}
