-- uses: clock store step_bytes
-- Steps: what items have recorded. Rows whose items have steps say so: see row_bytes.lua.
--
--   steps         n / number(6) name     in the order in which they were recorded first
--   step_numbers  the last number
--   recorded      n 's' name -> a step: see step_bytes.lua     n 'w' -> length(2) name of each that is not over
--                 n 'p' -> at(8) progress     n 'c' -> how many chunks(4)     n 'c' number(4) -> at(8) chunk
--                 n 'l' -> token(8) of each log, in the order of their last writes     n 'l' token -> a log
--                 n 'm' and signal_keys: see mailboxes.lua

local Steps = {}
local KEPT_LOGS = 10

do
  local function field_of(n, name) return n .. 's' .. name end

  local function with_length(name) return struct.pack('>I2', #name) .. name end

  -- The names of the steps that are not over, with their lengths, each in a list.
  local function open_names(n)
    local data, names, at = Store.get(K.recorded, n .. 'w') or '', {}, 1
    while at <= #data do
      local length = struct.unpack('>I2', data, at)
      names[#names + 1] = sub(data, at + 2, at + 1 + length)
      at = at + 2 + length
    end
    return names
  end

  local function open(n, name)
    Store.set(K.recorded, n .. 'w', (Store.get(K.recorded, n .. 'w') or '') .. with_length(name))
  end

  local function close(n, name)
    local left = {}
    for _, other in ipairs(open_names(n)) do
      if other ~= name then left[#left + 1] = with_length(other) end
    end
    Store.set(K.recorded, n .. 'w', #left > 0 and concat(left))
  end

  -- The steps of a row, as stored, in order: name, data.
  local function all(n)
    local rests, fields, steps = Store.list(K.steps, n), {}, {}
    for i = 1, #rests do fields[i] = field_of(n, sub(rests[i], 7)) end
    Store.load(K.recorded, fields)
    for i = 1, #rests do steps[i] = {name = sub(rests[i], 7), data = Store.get(K.recorded, fields[i])} end
    return steps
  end

  -- Read what the writing of steps looks at, in one command: pairs of a number and a name.
  function Steps.load(pairs_)
    local fields = {}
    for i = 1, #pairs_, 2 do fields[#fields + 1] = field_of(pairs_[i], pairs_[i + 1]) end
    Store.load(K.recorded, fields)
  end

  -- Write a step of a row, in this attempt. It takes the place of the one of its name.
  function Steps.write(n, attempt, name, sent)
    local field = field_of(n, name)
    local before = Store.get(K.recorded, field)
    local number, times, is_forgotten, was_over = nil, 0, false, true
    if before then number, times, is_forgotten, was_over = StepBytes.place(before) end
    if is_forgotten then Store.remove(K.steps, n, number .. name) end
    if not number or is_forgotten then
      number = struct.pack('>I6', Store.next(K.step_numbers))
      Store.insert(K.steps, n, number .. name)
    end
    local data = StepBytes.stored(sent, number, times, struct.pack('>I4', attempt))
    local _, _, _, is_over = StepBytes.place(data)
    if was_over and not is_over then open(n, name) elseif is_over and not was_over then close(n, name) end
    Store.set(K.recorded, field, data)
    return data
  end

  local function remove(n, step)
    local number, _, _, was_over = StepBytes.place(step.data)
    if not was_over then close(n, step.name) end
    Store.remove(K.steps, n, number .. step.name)
    Store.set(K.recorded, field_of(n, step.name))
  end

  Steps.remove = remove

  -- The steps of a row that are not over, in order: name, data, kind, until_, signal.
  function Steps.open(n)
    local steps = {}
    for i, name in ipairs(open_names(n)) do
      local data = Store.get(K.recorded, field_of(n, name))
      local kind, until_, signal = StepBytes.wait(data)
      steps[i] = {name = name, data = data, kind = kind, until_ = until_, signal = signal}
    end
    sort(steps, function(a, b) return Store.before(sub(a.data, 1, 6), sub(b.data, 1, 6)) end)
    return steps
  end

  -- A step that was not over is over, with this value or nil.
  function Steps.answer(n, step, value)
    close(n, step.name)
    Store.set(K.recorded, field_of(n, step.name), StepBytes.answered(step.data, value))
  end

  -- The data of the step with a name. False: there is none, or it is forgotten.
  function Steps.find(n, name)
    local data = Store.get(K.recorded, field_of(n, name))
    if not data then return false end
    local _, _, is_forgotten = StepBytes.place(data)
    return not is_forgotten and data
  end

  -- What a requeue makes of the steps of a row: the same as `requeued_steps` in treadle.store.rules. Returns whether
  -- one is left.
  function Steps.requeue(n, is_dead, from)
    local is_after, left = false, false
    for _, step in ipairs(all(n)) do
      local _, _, is_forgotten, is_over = StepBytes.place(step.data)
      is_after = is_after or (step.name == from and not is_forgotten)
      if not is_over then
        remove(n, step)
      else
        left = true
        if not is_forgotten and (is_after or (is_dead and StepBytes.has_undo(step.data))) then
          Store.set(K.recorded, field_of(n, step.name), StepBytes.forgotten(step.data))
        end
      end
    end
    return left
  end

  -- How many chunks the stream of a row has.
  function Steps.chunks(n)
    local count = Store.get(K.recorded, n .. 'c')
    return count and struct.unpack('>I4', count) or 0
  end

  -- The tokens of the logs of a row.
  local function logged(n)
    local data, tokens = Store.get(K.recorded, n .. 'l') or '', {}
    for at = 1, #data, 8 do tokens[#tokens + 1] = sub(data, at, at + 7) end
    return tokens
  end

  -- Write the log of an attempt in the place of what this token has written. The last KEPT_ATTEMPTS are kept.
  function Steps.write_log(n, token, log)
    local left = {}
    for _, other in ipairs(logged(n)) do
      if other ~= token then left[#left + 1] = other end
    end
    if #left >= KEPT_LOGS then Store.set(K.recorded, n .. 'l' .. table.remove(left, 1)) end
    left[#left + 1] = token
    Store.set(K.recorded, n .. 'l', concat(left))
    Store.set(K.recorded, n .. 'l' .. token, log)
  end

  -- Forget all that a row has recorded.
  function Steps.delete(n)
    local fields, members = {n .. 'w', n .. 'p', n .. 'c', n .. 'l'}, {}
    for _, token in ipairs(logged(n)) do fields[#fields + 1] = n .. 'l' .. token end
    for i, rest in ipairs(Store.list(K.steps, n)) do
      members[i], fields[#fields + 1] = n .. rest, field_of(n, sub(rest, 7))
    end
    for number = 1, Steps.chunks(n) do fields[#fields + 1] = n .. 'c' .. struct.pack('>I4', number) end
    Store.drop(K.recorded, fields)
    Store.write('ZREM', K.steps, members)
  end
end
