-- What every script begins with: the keys of a thread, its head line, its expiry, and how its parts are named.
--
-- DATA is a hash. Its fields, by their first letter:
--   m                             the head line
--   r ns NUL id                   a checkpoint
--   d ns NUL id                   the directory of its pending writes: slots of 16 bytes, each with a flag
--   w ns NUL id NUL slot          a pending write
--   p writer first                a pack
-- ORDER is a sorted set whose members all have score 0, so that they lie in the order of their bytes:
--   n ns NUL key NUL id           checkpoints by namespace; here and below an id is left out where it is the key
--   k key NUL ns NUL id           checkpoints of all namespaces
--   i id NUL ns                   checkpoints whose key is not their id
--   q ns NUL id                   checkpoints of which there are only pending writes
--   p writer first count          packs
-- Numbers of writers and items have 63 bits, more than a number of Lua holds: they stay strings, as do generations.

local DATA, ORDER, TOMB, LEASE, INDEX = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local FORMAT = 1
-- The generation of a thread that is not there.
local NOWHERE = string.rep('\255', 8)
local HEAD = '>BBBc8ddddddd'
local call = redis.call

-- The head line as a table, or nil when there is no such thread; and what is wrong with the thread, if anything is.
local function open()
  local line = call('HGET', DATA, 'm')
  local whole = call('EXISTS', ORDER) == 1
  if not line then
    return nil, (whole or call('EXISTS', DATA) == 1) and 'lost' or nil
  end
  local head = {}
  local format, past
  format, head.waits, head.listed, head.generation, head.revision, head.created, head.updated, head.rows, head.writes, head.packs,
    head.bytes, past = struct.unpack(HEAD, line)
  head.thread = string.sub(line, past)
  if format > FORMAT then
    return nil, 'new'
  end
  return head, not whole and 'lost' or nil
end

-- Seconds since the epoch: in one script it is always the same time.
local time
local function clock()
  time = time or call('TIME')
  return time[1] + time[2] / 1e6
end

local function begin(thread, generation)
  local at = clock()
  return {
    waits = 0, listed = INDEX and 1 or 0, generation = generation, revision = 0, created = at, updated = at, rows = 0, writes = 0, packs = 0,
    bytes = 0, thread = thread, made = true,
  }
end

local function token(head)
  return head.generation .. struct.pack('>d', head.revision)
end

-- All keys of a thread get the same expiry, or none. `ttl` is in milliseconds, '' for none.
local function expire(ttl)
  if ttl ~= '' then
    clock()
    local at = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000) + ttl)
    call('PEXPIREAT', DATA, at)
    call('PEXPIREAT', ORDER, at)
  end
end

local function persist()
  call('PERSIST', DATA)
  call('PERSIST', ORDER)
end

local function write_head(head)
  call('HSET', DATA, 'm', struct.pack(
    HEAD, FORMAT, head.waits, head.listed, head.generation, head.revision, head.created, head.updated, head.rows,
    head.writes, head.packs, head.bytes) .. head.thread)
end

-- Note that the thread was changed. On a cluster the index is in another slot: there the caller lists the thread, and
-- then says so.
local function close(head)
  head.revision = head.revision + 1
  head.updated = clock()
  write_head(head)
  if head.made and INDEX then
    call('ZADD', INDEX, 0, head.thread)
  end
end

local function made(head)
  return head.made and 1 or 0
end

-- Whether `a` comes before `b` by bytes, which is by code point. (Lua's own order depends on the server's locale.)
local function less(a, b)
  local byte, sub = string.byte, string.sub
  local from, last = 1, math.min(#a, #b)
  while from + 7 <= last and sub(a, from, from + 7) == sub(b, from, from + 7) do
    from = from + 8
  end
  for at = from, last do
    local x, y = byte(a, at), byte(b, at)
    if x ~= y then
      return x < y
    end
  end
  return #a < #b
end

local function parts(text)
  local cut = string.find(text, '\0', 1, true)
  return string.sub(text, 1, cut - 1), string.sub(text, cut + 1)
end

-- ns, key and id from a member of kind n or k.
local function named(member)
  local first, rest = parts(string.sub(member, 2))
  local second, id = parts(rest)
  if string.byte(member) == 107 then
    first, second = second, first
  end
  return first, second, id == '' and second or id
end

-- The least and, exclusive, the greatest member that begins with `text`; texts end in no byte 255.
local function from(text)
  return '[' .. text
end

local function past(text)
  return '(' .. text .. '\255'
end

-- The greatest member of kind n in a namespace, or nil.
local function latest(ns)
  return call('ZREVRANGEBYLEX', ORDER, '(n' .. ns .. '\1', '[n' .. ns .. '\0', 'LIMIT', 0, 1)[1]
end
