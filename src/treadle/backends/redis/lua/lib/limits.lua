-- uses: clock store permits
-- Limits: how many permits are left, and when the next one is. The rules are those of treadle.store.rules.limits.
--
--   limits       name 0 algorithm -> at(8) used(8) before(8) limit(8) window(8): the state, and what the last
--                request asked for. `slots` limits are in permits.lua.
--   limit_names  name 0 algorithm, in order
--   limits_idle  the same, scored by an instant before which it is in use
--
-- A limit is a list: name, limit, window, algorithm. A state is a table: at, used, before.

local Limits = {}

do
  local FUZZ = 1e-6
  local floor, max, min = math.floor, math.max, math.min

  -- States ------------------------------------------------------------------------------------------------

  local function key_of(name, algorithm) return name .. '\0' .. algorithm end

  local function stored(key)
    local row = Store.get(K.limits, key)
    if not row then return nil end
    local at, used, before, limit, window = struct.unpack('>ddddd', row)
    return {at = at, used = used, before = before}, limit, window
  end

  local function state_of(limit)
    if limit[4] == 'slots' then return {at = now, used = Permits.held(limit[1]), before = 0} end
    return stored(key_of(limit[1], limit[4])) or {at = now, used = 0, before = 0}
  end

  -- When an unused state is like new and need not be stored any more.
  local function idle_at(algorithm, state, limit, window)
    if algorithm == 'token_bucket' then
      return limit > 0 and state.at + state.used * window / limit or state.at
    end
    return state.at + (algorithm == 'fixed_window' and 1 or 2) * window
  end

  local function save(limit, state)
    local key = key_of(limit[1], limit[4])
    if not Store.get(K.limits, key) then
      Store.score(K.limits_idle, key, idle_at(limit[4], state, limit[2], limit[3]))
      Store.insert(K.limit_names, '', key)
    end
    Store.set(K.limits, key, struct.pack('>ddddd', state.at, state.used, state.before, limit[2], limit[3]))
  end

  local function slide(window, state)
    local start = floor(now / window) * window
    if state.at >= start then return {at = start, used = state.used, before = state.before} end
    if state.at >= start - window then return {at = start, used = 0, before = state.used} end
    return {at = start, used = 0, before = 0}
  end

  -- The state as of now. A clock that went back neither returns nor takes permits.
  local function advance(limit, state)
    local algorithm, window = limit[4], limit[3]
    if algorithm == 'slots' then return state end
    if algorithm == 'sliding_window' then return slide(window, state) end
    if algorithm == 'token_bucket' then
      local refilled = max(0, now - state.at) * limit[2] / window
      return {at = now, used = max(0, state.used - refilled), before = 0}
    end
    if state.used > 0 and now < state.at + window - FUZZ then
      return {at = min(state.at, now), used = state.used, before = 0}
    end
    return {at = now, used = 0, before = 0}
  end

  local function in_force(limit, state)
    if limit[4] ~= 'sliding_window' then return state.used end
    local share = 1 - (now - state.at) / limit[3]
    return state.used + state.before * min(1, max(0, share))
  end

  local function allowance(limit, state)
    local left = limit[2] - in_force(limit, state)
    local tolerance = min(0.5, FUZZ * limit[2] / limit[3] + 1e-9)
    return max(0, min(limit[2], floor(left + tolerance)))
  end

  -- When a full sliding window has weight for one more: see `_slid_to` in treadle.store.rules.limits.
  local function slid_to(limit, state)
    local rest = limit[2] - 1 - state.used
    if rest >= 0 then return state.at + limit[3] * (1 - rest / state.before) end
    return state.at + limit[3] * (2 - (limit[2] - 1) / state.used)
  end

  local function wait_for_one(limit, state)
    if limit[4] == 'slots' or allowance(limit, state) >= 1 then return 0 end
    if limit[2] < 1 then return math.huge end
    if limit[4] == 'token_bucket' then return (state.used + 1 - limit[2]) * limit[3] / limit[2] end
    if limit[4] == 'fixed_window' then return state.at + limit[3] - now end
    return slid_to(limit, state) - now
  end

  -- Permits -----------------------------------------------------------------------------------------------

  -- Take up to `count` permits under all of these limits. `number`: of the worker; nil if it is not alive.
  -- `lease`: nil, or n(6) and token(8) of the lease to which they belong.
  -- Returns how many, and after how many seconds another may be available.
  function Limits.take(limits, count, number, lease)
    local states = {}
    for i = 1, #limits do
      if limits[i][4] == 'slots' and not number then return 0, 0 end
      states[i] = advance(limits[i], state_of(limits[i]))
      count = min(count, allowance(limits[i], states[i]))
    end
    count = max(0, count)
    local wait = 0
    for i = 1, #limits do
      local limit, state = limits[i], states[i]
      local spent = {at = state.at, used = state.used + count, before = state.before}
      wait = max(wait, wait_for_one(limit, spent))
      if limit[4] ~= 'slots' then
        save(limit, spent)
      elseif count > 0 then
        Permits.give(number, limit[1], count)
        if lease then Permits.give_to_lease(number, limit[1], sub(lease, 7), sub(lease, 1, 6)) end
      end
    end
    return count, wait
  end

  -- Pruning -----------------------------------------------------------------------------------------------

  -- Remove up to `most` claimed keys that have expired, and limits that are like new.
  function Limits.prune(most)
    local until_now = string.format('%.17g', now)
    for _, key in ipairs(call('ZRANGEBYSCORE', K.claimed_until, '-inf', until_now, 'LIMIT', 0, most)) do
      Store.set(K.claimed, key)
      Store.score(K.claimed_until, key)
    end
    local keys = call('ZRANGEBYSCORE', K.limits_idle, '-inf', until_now, 'LIMIT', 0, most)
    Store.load(K.limits, keys)
    for _, key in ipairs(keys) do
      local state, limit, window = stored(key)
      local idle = state and idle_at(string.match(key, '[^%z]+$'), state, limit, window)
      if idle and idle > now then
        Store.score(K.limits_idle, key, idle)
      else
        Store.set(K.limits, key)
        Store.score(K.limits_idle, key)
        Store.remove(K.limit_names, '', key)
      end
    end
  end
end
