-- uses: clock store kinds rows lines bulk
-- Stages: items too many for one call. They are written in portions that no other call looks at, decided in one
-- call, and then unfolded in portions.
--
--   stages      stage(8) -> 'o' (open) or 'x' (another call has used one of its ids), the instant(8) of the last
--               portion, how many items(4) and portions(4)
--               'unfolding' -> stage(8), the next portion(4), the number before its first item(6), queued_at(8),
--               group(6) and parent(6), or nothing for roots
--   stage_rows  stage(8) portion(4) -> the portion, see bulk.lua
--   staged      id -> the stage(8) that has it
--
-- Once it is decided, its items exist. Until it is unfolded, scripts that look at items refuse to run (STAGED, see
-- scripts.py): the caller unfolds it, and repeats its call. So no call sees a part of it. Claims, and other
-- scripts that look only at items that are leased or in line, go on.

local Stages = {}

do
  local FORMAT = '>c1dI4I4'
  local UNFOLDING = 'unfolding'

  local function row_name(stage, portion) return stage .. struct.pack('>I4', portion) end

  -- The state, the instant, the number of items and the number of portions of a stage. Nil: there is none.
  function Stages.get(stage)
    local data = Store.get(K.stages, stage)
    if data then return struct.unpack(FORMAT, data) end
  end

  function Stages.set(stage, state, at, items, portions)
    Store.set(K.stages, stage, struct.pack(FORMAT, state, at, items, portions))
  end

  -- Add a portion. `before`: how many were added before. Returns false if the stage is refused.
  function Stages.add(stage, before, portion, data)
    local state, _, items, portions = Stages.get(stage)
    if state == 'x' or (portions or 0) ~= before then return false end
    for _, class in ipairs(portion.classes) do check_tenant(class.tenant) end
    Bulk.take_ids(portion)
    for _, id in ipairs(Bulk.ids(portion)) do Store.set(K.staged, id, stage) end
    Store.set(K.stage_rows, row_name(stage, before), data)
    Stages.set(stage, 'o', now, (items or 0) + portion.count, before + 1)
    return true
  end

  -- Whether a stage with this number of items can be decided.
  function Stages.is_whole(stage, count)
    local state, _, items = Stages.get(stage)
    return state == 'o' and items == count
  end

  -- The items of a stage exist from now on. `group` and `parent`: as for Bulk.store.
  function Stages.decide(stage, group, parent)
    local _, _, items = Stages.get(stage)
    local first = Store.reserve(K.seq, items)
    Store.set(K.stages, UNFOLDING, stage .. struct.pack('>I4I6d', 0, first, now) .. (group or '') .. (parent or ''))
  end

  local function forget_portion(stage, number, portion)
    local own = {}
    local ids = Bulk.ids(portion)
    Store.load(K.staged, ids)
    for i = 1, #ids do
      if Store.get(K.staged, ids[i]) == stage then own[#own + 1] = ids[i] end
    end
    Store.drop(K.staged, own)
    Store.set(K.stage_rows, row_name(stage, number))
  end

  local function read_portion(stage, number)
    local data = Store.get(K.stage_rows, row_name(stage, number))
    return data and (Bulk.read(cmsgpack.unpack(data), 1))
  end

  -- Unfold the next portion of the stage that was decided. Returns whether there is more.
  function Stages.unfold()
    local data = Store.get(K.stages, UNFOLDING)
    if not data then return false end
    local stage, next_one, first, _, at = struct.unpack('>c8I4I6d', data)
    local queued, owners = sub(data, 19, 26), sub(data, at)
    local _, _, _, portions = Stages.get(stage)
    local portion = read_portion(stage, next_one)
    local group, parent
    if owners ~= '' then group, parent = sub(owners, 1, 6), sub(owners, 7, 12) end
    Bulk.store(portion, first, queued, group, parent)
    forget_portion(stage, next_one, portion)
    if next_one + 1 < portions then
      Store.set(K.stages, UNFOLDING, stage .. struct.pack('>I4I6', next_one + 1, first + portion.count) .. queued .. owners)
      return true
    end
    Store.set(K.stages, UNFOLDING)
    Store.set(K.stages, stage)
    return false
  end

  -- Forget a portion of a stage that is not wanted any more. Returns whether there is more.
  function Stages.drop(stage)
    local _, at, items, portions = Stages.get(stage)
    if not portions then return false end
    local portion = read_portion(stage, portions - 1)
    if portion then forget_portion(stage, portions - 1, portion) end
    if portions > 1 then
      Stages.set(stage, 'x', at, items, portions - 1)
      return true
    end
    Store.set(K.stages, stage)
    return false
  end
end
