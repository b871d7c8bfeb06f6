-- uses: store kinds rows groups dependencies
-- Apart: rows that have nothing to do with others. They are alone in their group, wait for none, and none waits for them.
-- Many of them may be changed in portions: see operate.py.

local Apart = {}

local function is_apart(row)
  return not row.has_extra and not Groups.get(row.group)
    and not Dependencies.is_awaited(row.kind.tenant, row.id, row.id)
end

-- The rows of a list that are apart, and the places of the others. `rows`: false where there is none.
function Apart.split(rows)
  local apart, others = {}, {}
  for i = 1, #rows do
    local row = rows[i]
    if row and is_apart(row) then
      apart[#apart + 1] = row
    elseif row then
      others[#others + 1] = i
    end
  end
  return apart, others
end
