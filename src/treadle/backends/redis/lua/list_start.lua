-- uses: store
-- reads
-- List start: the first page whose rows were submitted at an instant or later, found by halving. Arguments: the instant,
-- then the pages that have rows, in order. Answers how many pages are before it.

local PAGE, SOME = 1000, 50

-- When the first row of a page was submitted; nil if there is none any more.
local function first_queued_at(page)
  for first = page * PAGE, page * PAGE + PAGE - 1, SOME do
    local numbers = {}
    for i = 1, SOME do numbers[i] = struct.pack('>I6', first + i - 1) end
    local items = call('HMGET', K.item, unpack(numbers))
    for i = 1, SOME do
      if items[i] then return (struct.unpack('>d', items[i], 12)) end
    end
  end
end

local at = tonumber(ARGV[1])
local low, high = 2, #ARGV + 1
while low < high do
  local middle = math.floor((low + high) / 2)
  local queued_at = first_queued_at(tonumber(ARGV[middle]))
  if queued_at and queued_at >= at then
    high = middle
  else
    low = middle + 1
  end
end
return low - 2
