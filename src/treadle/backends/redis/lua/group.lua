-- uses: store kinds rows groups raw_rows shown_groups
-- reads
-- Group: groups by id. Arguments: a tenant or '', ids. Answers a group, or false, for each id.

local tenant = RawRows.text(ARGV[1])
local ids, found = {}, {}
for i = 2, #ARGV do ids[i - 1] = ARGV[i] end
ShownGroups.load(ids)
for i = 1, #ids do found[i] = Groups.find(tenant, ids[i]) end
return ShownGroups.answers(found)
