-- The packs that overlap some spans, or those named.
-- uses: _thread _reading
-- ARGV: generation that the thread must be at or '', spans, then members

local head, trouble = open()
if trouble then
  return {trouble}
end
if not head then
  return {ARGV[1] == '' and 'none' or 'stale'}
end
if ARGV[1] ~= '' and ARGV[1] ~= head.generation then
  return {'stale'}
end
local members = {}
find_packs(ARGV[2], members)
for at = 3, #ARGV do
  members[#members + 1] = ARGV[at]
end
local packs, rest = read_packs(members)
return {'ok', head.generation, packs, rest}
