-- What of a thread plans a prune: of each checkpoint its place, the beginning of its row, the bytes of its header, whether
-- its facets say that it is pinned (nothing when there are none), and how many pending writes it has, of how many bytes;
-- of writes without a checkpoint the same with an empty row; of each pack its member and its bytes.
-- uses: _thread _writes _walking
-- ARGV: as those of walk, but for the last

local kinds, after, limit = unpack(ARGV, 1, 3)
local head, trouble = open()
if trouble then
  return {trouble}
end
if not head then
  return {'none'}
end

local function written(place)
  local directory = call('HGET', DATA, 'd' .. place)
  local count, bytes = 0, 0
  for at = 1, directory and #directory or 0, SLOT do
    count = count + 1
    bytes = bytes + call('HSTRLEN', DATA, 'w' .. place .. '\0' .. string.sub(directory, at, at + SLOT - 2))
  end
  return count, bytes
end

local FALSE = {['false'] = true, ['0'] = true, ['0.0'] = true, ['-0.0'] = true, ['""'] = true}
local function pinned(facets)
  if facets == '[]' then
    return ''
  end
  local _, past = string.find(facets, '["pinned",', 1, true)
  return past and not FALSE[string.match(facets, '^[^%]]*', past + 1)] and '1' or '0'
end

local marks, packs = {}, {}
kinds, after = walk(kinds, after, tonumber(limit), function(kind, members)
  if kind == 'p' then
    weigh_packs(members, packs)
    return
  end
  for _, member in ipairs(members) do
    local place = string.sub(member, 2)
    if kind == 'q' then
      marks[#marks + 1] = {place, '', 0, '', written(place)}
    else
      local ns, _, id = named(member)
      place = ns .. '\0' .. id
      local value = call('HGET', DATA, 'r' .. place)
      if value then
        local _, _, _, stop = struct.unpack('>dI4c0I4c0', value)
        local _, facets, header = struct.unpack('>I4c0I4c0', value, stop)
        marks[#marks + 1] = {place, string.sub(value, 1, stop - 1), #value - header + 1, pinned(facets), written(place)}
      end
    end
  end
end)
return {'ok', token(head), marks, packs, kinds, after}
