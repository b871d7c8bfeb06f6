-- uses: store
-- Portions: what a tenant that leaves or comes makes to do, when that is decided. The keys are parked until all is done, and
-- `meta` says what: see tenant_moves.py. A portion that comes late, or twice, does nothing.
--
--   meta  part_state ('leaving' or 'coming'), part_move (an id), part_at (how many portions were done)

local Portions = {}

-- Whether a portion is to be done. `at`: how many are done; nil if that does not matter.
function Portions.are_due(state, move, at)
  local found = call('HMGET', K.meta, 'part_state', 'part_move', 'part_at')
  return found[1] == state and found[2] == move and (not at or found[3] == at)
end

function Portions.count(done)
  Store.set(K.meta, 'part_at', string.format('%d', done))
end
