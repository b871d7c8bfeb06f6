-- Holds: a held row is due at the instant at which it was due, times 2^64: see treadle.store.rules.times.

local Holds = {FACTOR = 2 ^ 64}

function Holds.is_held(row) return row.due_at >= Holds.FACTOR end

-- The instant that is stored while a row is held that is due then.
function Holds.due(due_at) return math.max(due_at, 1) * Holds.FACTOR end

-- The instant that is stored for a row that becomes due then, and stays held if it is.
function Holds.keep(row, due_at) return Holds.is_held(row) and Holds.due(due_at) or due_at end
