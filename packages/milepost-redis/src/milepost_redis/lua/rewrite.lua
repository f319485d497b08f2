-- Put checkpoints, with their pending writes, in the place of what is there; if nobody wrote since.
-- uses: _thread _rows _writes _parts
-- ARGV: token, then parts: packs, then checkpoints, then their writes

local head, trouble = open()
if trouble then
  return {trouble}
end
if not head or token(head) ~= ARGV[1] then
  return {'moved'}
end
take_parts(head, 2, true)
close(head)
return {'ok', token(head)}
