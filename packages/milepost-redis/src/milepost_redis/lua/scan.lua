-- Names of checkpoints by descending key, of one namespace or of all, a bounded part of them at a time.
-- uses: _thread
-- ARGV: ns or false as 'n' and ns, or 'k' and ''; the member below which to begin or ''; limit; how many to look at;
--       before or ''; id or ''; 1 if the rows are wanted; then for each facet
--       how many texts follow: how it begins, and its forms

local kind, ns, after, limit, budget, before, id, rows = unpack(ARGV, 1, 8)
limit, budget = tonumber(limit), tonumber(budget)
local head, trouble = open()
if trouble then
  return {trouble}
end
if not head then
  return {'none'}
end

local bounds = {}
-- Whether a key comes before that of the checkpoint `before` in its namespace.
local function precedes(space, key)
  local bound = bounds[space]
  if not bound then
    bound = before
    local value = call('HGET', DATA, 'r' .. space .. '\0' .. before)
    if value then
      local _, held = struct.unpack('>dI4c0', value)
      bound = held == '' and before or held
    end
    bounds[space] = bound
  end
  return less(key, bound)
end

-- Whether no facet of a row differs from those that are sought. A row may lack one: then only its header can tell.
local function has_facets(value)
  local _, _, _, _, facets = struct.unpack('>dI4c0I4c0I4c0I4c0', value)
  local at = 9
  while at <= #ARGV do
    local last = at + ARGV[at]
    local found = not string.find(facets, ARGV[at + 1], 1, true)
    for form = at + 2, last do
      found = found or string.find(facets, ARGV[form], 1, true)
    end
    if not found then
      return false
    end
    at = last + 1
  end
  return true
end

local function consider(found, member)
  local space, key, own = named(member)
  if before ~= '' and not precedes(space, key) then
    return
  end
  local row
  if rows == '1' or #ARGV > 8 then
    row = call('HGET', DATA, 'r' .. space .. '\0' .. own)
    if not row then
      return
    end
    if #ARGV > 8 and not has_facets(row) then
      return
    end
  end
  found[#found + 1] = {space, key, own, rows == '1' and row or false}
end

local found = {}
if id ~= '' then
  -- The same id in any number of namespaces: by its key, and where the key is another one.
  for _, member in ipairs(call('ZRANGEBYLEX', ORDER, '[k' .. id .. '\0', '(k' .. id .. '\1')) do
    if string.byte(member, -1) == 0 then
      consider(found, member)
    end
  end
  for _, member in ipairs(call('ZRANGEBYLEX', ORDER, '[i' .. id .. '\0', '(i' .. id .. '\1')) do
    local _, space = parts(member)
    local value = call('HGET', DATA, 'r' .. space .. '\0' .. id)
    if value then
      local _, key = struct.unpack('>dI4c0', value)
      consider(found, 'k' .. key .. '\0' .. space .. '\0' .. id)
    end
  end
  return {'ok', head.generation, found, false}
end

local lower = kind == 'n' and '[n' .. ns .. '\0' or '[k'
local upper = after ~= '' and '(' .. after or (kind == 'n' and '(n' .. ns .. '\1' or '(l')
local seen, last = 0, false
while #found < limit and seen < budget do
  local members = call('ZREVRANGEBYLEX', ORDER, upper, lower, 'LIMIT', 0, math.min(128, limit - #found + 1))
  if #members == 0 then
    last = false
    break
  end
  for _, member in ipairs(members) do
    consider(found, member)
    seen = seen + 1
    last = member
    if #found >= limit then
      break
    end
  end
  upper = '(' .. last
end
return {'ok', head.generation, found, last}
