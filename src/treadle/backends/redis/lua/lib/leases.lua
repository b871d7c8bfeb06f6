-- uses: store rows
-- Leases: whether a token owns its row, and if not, why.

local Leases = {}

Leases.TAKEN, Leases.COMPLETED, Leases.CANCELLED, Leases.NOT_FOUND = 't', 'o', 'c', 'n'

-- Whether a token owns a row. `row`: false if there is none.
function Leases.owns(row, token)
  return row and row.owned and row.token == token
end

-- Why a token does not own its row: a letter. nil: this token has settled it.
function Leases.why_lost(row, token)
  if not row then return Leases.NOT_FOUND end
  for i = 1, #row.settled_by do
    if row.settled_by[i] == token then return nil end
  end
  if not row.ended_at or row.worker then return Leases.TAKEN end
  return row.status == 'C' and Leases.CANCELLED or Leases.COMPLETED
end
