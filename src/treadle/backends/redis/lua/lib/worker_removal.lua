-- uses: clock store rows transitions workers permits
-- Worker removal: what becomes of the rows and permits of a worker that is gone.
-- Call it before anything is leased in the same call.

do
  local PORTION = 100 -- how many rows, and workers, one call frees before it lets others run

  -- The rows that a worker holds, in the order in which they were leased.
  function Workers.rows(worker)
    local numbers, rows, order = Workers.held(worker), {}, {}
    Rows.load(numbers)
    Store.load(K.past, numbers)
    for i = 1, #numbers do
      local row = Rows.get(numbers[i])
      if row then
        rows[#rows + 1] = row
        order[row] = struct.unpack('>I5', row.token)
      end
    end
    sort(rows, function(a, b) return order[a] < order[b] end)
    return rows
  end

  -- Remove a worker, and free all that it held. Returns how many rows.
  function Workers.remove(worker)
    local name = worker.name
    Store.set(K.workers, name)
    Store.set(K.worker_info, name)
    Store.score(K.workers_until, name)
    Workers.forget_types(worker)
    Permits.return_all(worker.number)
    local rows, release = Workers.rows(worker), Store.get(K.worker_release, name)
    for i = 1, #rows do Transitions.free(rows[i], release) end
    if release then Store.set(K.worker_release, name) end
    return #rows
  end

  -- Remove workers whose lease has lapsed, each as a whole, until a portion of rows is freed. Returns how many
  -- rows, and whether there may be more such workers.
  function Workers.remove_lapsed()
    local names = call('ZRANGEBYSCORE', K.workers_until, '-inf', string.format('%.17g', now), 'LIMIT', 0, PORTION)
    local freed, workers = 0, 0
    for i = 1, #names do
      if freed + workers >= PORTION then break end
      local worker = Workers.get(names[i])
      if worker then freed = freed + Workers.remove(worker) end
      workers = workers + 1
    end
    return freed, workers < #names or #names == PORTION
  end
end
