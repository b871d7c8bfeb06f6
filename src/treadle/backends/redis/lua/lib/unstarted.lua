-- uses: clock store kinds rows lines transitions
-- Unstarted: items of which nothing has begun. They may still be changed.

local Unstarted = {}

-- Whether nothing of it has begun.
function Unstarted.is(row)
  return not row.gone and not row.ended_at and not row.owned and row.attempt == 0 and row.verdict == 0
    and not row.has_steps and not row.suspended
end

-- Give a row that has not started other data, and its place at the end of its new line. `to`: kind, priority and
-- due_at; ready_at, if not now; keep, keep_dead and body with `replaces`. A blocked row stays blocked. It holds no lane any more.
function Unstarted.move(row, to)
  Transitions.leave_line(row)
  Lines.free_lane(row)
  local before = row.kind
  if to.kind ~= before then
    Kinds.count(before, row.status, -1)
    Kinds.count(to.kind, row.status, 1)
    Kinds.leave(before)
  end
  row.kind, row.priority, row.due_at, row.place = to.kind, to.priority, to.due_at, 0
  if to.replaces then row.keep, row.keep_dead, row.body = to.keep, to.keep_dead, to.body end
  if row.status ~= 'b' then Transitions.wait(row) end
  row.ready_at = to.ready_at or row.ready_at
  Rows.rewrite(row)
end

function Unstarted.set_deadline(row, deadline)
  Transitions.unwatch_deadline(row)
  row.deadline = nil
  if deadline then Transitions.watch_deadline(row, deadline) end
  Rows.save(row)
end
