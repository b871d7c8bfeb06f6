-- uses: store imports
-- flags: allow-oom
-- Store items as another store had them. ARGV: see Imports.items
-- Answers nothing, or the id of an item that is there already.

local there = Imports.items(1)
if there then return there end
Store.flush()
return false
