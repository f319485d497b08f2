-- Ancestors of a checkpoint, nearest first, with their writes to some channels and the packs of these.
-- uses: _thread _reading
-- ARGV: ttl, ns, id to start at or '' for the latest, 1 if that one is left out, limit, number of channels or -1 for
--       all, the channels

local ttl, ns, start, proper, limit, channels = unpack(ARGV, 1, 6)
local head, trouble = open()
if trouble then
  return {trouble}
end
if head and start == '' then
  local member = latest(ns)
  if member then
    local _, _, id = named(member)
    start = id
  end
end
local function row_at(id)
  return call('HGET', DATA, 'r' .. ns .. '\0' .. id)
end
local function parent_of(row)
  local _, _, parent = struct.unpack('>dI4c0I4c0', row)
  return parent ~= '' and string.sub(parent, 2) or nil
end
local row = head and start ~= '' and row_at(start)
if not row then
  return {'none'}
end
local wanted
if channels ~= '-1' then
  wanted = {}
  for at = 7, #ARGV do
    wanted[ARGV[at]] = true
  end
end
local id = start
if proper == '1' then
  id = parent_of(row)
  row = id and row_at(id)
end
local snapshots, members, rest = {}, {}, {}
while row and #snapshots < tonumber(limit) do
  local place = ns .. '\0' .. id
  local snapshot = {place, row}
  writes_of(place, snapshot, wanted)
  for at = 3, #snapshot do
    find_packs(spans_of_write(snapshot[at]), members, rest)
  end
  snapshots[#snapshots + 1] = snapshot
  id = parent_of(row)
  row = id and row_at(id)
end
if head.waits == 0 then
  expire(ttl)
end
local packs, left = hand_out(members, rest)
return {'ok', head.generation, snapshots, packs, left, row and id or false}
