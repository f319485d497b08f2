-- Note that the thread is in the index, where its scripts cannot see to it.
-- uses: _thread
-- ARGV: none

local head, trouble = open()
if trouble then
  return {trouble}
end
if head then
  head.listed = 1
  write_head(head)
end
return {'ok'}
