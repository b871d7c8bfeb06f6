-- uses: stages
-- Write a portion of a stage: items that no other call can see.
-- ARGV: stage(8), how many portions were written before, then the portion (see bulk.lua)
-- Answers an empty list, or the places of items whose ids exist: the portion was not written. Nothing: the stage
-- is refused, since another call has used one of its ids.

local portion = Bulk.read(ARGV, 3)
local taken = Bulk.taken(portion)
if #taken > 0 then return taken end
local data = {}
for i = 3, #ARGV do data[i - 2] = ARGV[i] end
if not Stages.add(ARGV[1], tonumber(ARGV[2]), portion, cmsgpack.pack(data)) then return false end
Store.flush()
return {}
