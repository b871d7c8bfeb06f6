-- uses: store kinds rows raw_rows list_filter list_sources
-- reads
-- List: a portion of a list. Arguments: a map, from lists.py: where, source, index, label, pages, bound, oldest_first,
-- most, reach, full; the numbers of the rows, if the source is 'given'; the numbers of all kinds that the filter finds,
-- if they are known. Answers whether there may be more rows (see below), the last number that was looked at, how many rows
-- that were, when the last of these was submitted, and the rows. If there are too many for its source, it walks along pages
-- instead, and answers these too, unless there are many.

local MOST_LOOKED, MOST_DECODED = 800, 300 -- numbers in one call; the second if all of their rows is looked at
local MOST_SEEN = 2000 -- the same if no kinds have to be read
local MOST_BYTES = 500000
local MOST_PAGES = 5000 -- entries of `pages` that are read
local MOST_OPEN, MOST_WAITING = 2000, 4000 -- that are collected and sorted; the second of those of a tenant that wait
local LARGEST, FIRST = 250, 20 -- numbers that are read at once: the second before it is known how long rows are, and beyond
-- those among which as many were found before as are asked for
local BYTES_AT_ONCE = 200000
local DISORDER = 60 -- seconds by which the order of numbers and that of instants may differ

local MORE, ENDED, TOO_MANY, BEYOND = 0, 1, 2, 3 -- BEYOND: no other row can match

local INDEXES = {
  dead = K.dead, cancelled = K.cancelled, killing = K.killing, keyed = K.keyed, workflows = K.workflows, marked = K.marked,
}

local asked = cmsgpack.unpack(ARGV[1])
local where, bound, oldest_first = asked.where, asked.bound, asked.oldest_first
local filter = ListFilter.new(where, ARGV[3])
local tenant = filter.tenant
local most_looked = filter.of_rest and MOST_DECODED or ARGV[3] and MOST_SEEN or MOST_LOOKED

local function source_of()
  if asked.source == 'pages' then return ListSources.pages(asked.pages, bound, oldest_first) end
  if asked.source == 'given' then
    local numbers = {}
    for at = 1, #ARGV[2], 6 do numbers[#numbers + 1] = sub(ARGV[2], at, at + 5) end
    return ListSources.given(numbers, bound, oldest_first)
  end
  if asked.source == 'group' then
    return ListSources.group(where.group_id, tenant, bound, oldest_first, most_looked + LARGEST)
  end
  if asked.source == 'held' then return ListSources.held(tenant, bound, oldest_first, MOST_OPEN) end
  if asked.source == 'open' then return ListSources.open(filter.statuses, tenant, bound, oldest_first, MOST_OPEN, MOST_WAITING) end
  local label = asked.label
  local prefix = label and struct.pack('>I2', #label) .. label or ''
  return ListSources.index(INDEXES[asked.index], prefix, bound, oldest_first, label and tenant)
end

-- Whether no row can match: nothing has one of these names.
local function is_unknown()
  for _, name in ipairs({where.tenant or false, where.type or false, where.queue or false}) do
    if name and not Store.get(K.text, name) then return true end
  end
  return false
end

if is_unknown() then return {BEYOND, '', 0, '', {}} end
local source, pages = source_of(), nil
if not source then
  if call('HLEN', K.pages) > MOST_PAGES then return {TOO_MANY, '', 0, '', {}} end
  pages = ListSources.open_pages(bound, oldest_first)
  source = ListSources.pages(pages, bound, oldest_first)
end

-- Whether all rows after this one were submitted too early, or too late.
local function is_beyond(n)
  local item = n ~= '' and call('HGET', K.item, n)
  if not item then return false end
  local queued_at = ListFilter.queued_at(item)
  if oldest_first then return where.until_ and queued_at >= where.until_ + DISORDER end
  return where.since and queued_at < where.since - DISORDER
end

local look = {looked = 0, bytes = 0, position = '', last = ''}
local found, read, size, is_cut = {}, 0, FIRST, false
local state = source.ended and ENDED or MORE
local reach = asked.reach or most_looked
while not source.ended and #found < asked.most and look.looked < reach and read < most_looked
  and look.bytes < MOST_BYTES do
  size = math.min(size, reach - look.looked)
  local numbers = source.take(size)
  read = read + size
  local some = ListFilter.look_at(filter, numbers, asked.most - #found, look)
  for i = 1, #some do found[#found + 1] = some[i] end
  is_cut = #found == asked.most and some[#some] ~= numbers[#numbers]
  if source.position and not is_cut then look.position = source.position end
  state = source.ended and not is_cut and not source.partial and ENDED or MORE
  if filter.of_time and not is_cut and is_beyond(look.last) then
    state = BEYOND
    break
  end
  size = math.max(1, math.min(LARGEST, math.floor(BYTES_AT_ONCE / (look.bytes / read + 1))))
  if #found > 0 then size = math.min(size, math.ceil((asked.most - #found) * read / #found) + FIRST) end
end

local last = look.last ~= '' and call('HGET', K.item, look.last)
return {state, look.position, look.looked, last and sub(last, 12, 19) or '', RawRows.read(found, asked.full), pages}
