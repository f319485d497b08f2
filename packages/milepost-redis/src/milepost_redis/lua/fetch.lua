-- The packs that overlap some spans.
-- uses: _thread _reading
-- ARGV: generation that the thread must be at or '', spans, 1 if all packs of a writer are to be looked at

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
local members, rest = {}, {}
find_packs(ARGV[2], members, rest, ARGV[3] == '1')
return {'ok', head.generation, hand_out(members, rest)}
