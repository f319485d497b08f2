-- Checkpoints by their places, each with its pending writes.
-- uses: _thread _reading
-- ARGV: the places

local head, trouble = open()
if trouble then
  return {trouble}
end
local snapshots = {}
for _, place in ipairs(head and ARGV or {}) do
  local snapshot = {place, call('HGET', DATA, 'r' .. place) or ''}
  writes_of(place, snapshot)
  snapshots[#snapshots + 1] = snapshot
end
return {'ok', snapshots}
