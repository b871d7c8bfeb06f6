-- uses: store workers
-- Worker list: workers as workers.py reads them.

-- All workers, in the order in which they were registered: name, until(8), types ('-' for every type, else 't'
-- and the types), how many rows it runs, info ('-' if it has none, else 'i' and the info).
function Workers.list()
  local rows, running, found = call('HGETALL', K.workers), {}, {}
  if #rows == 0 then return found end
  for _, number in ipairs(call('HVALS', K.held)) do running[number] = (running[number] or 0) + 1 end
  local names = {}
  for i = 1, #rows, 2 do names[#names + 1] = rows[i] end
  Store.load(K.workers, names)
  Store.load(K.worker_info, names)
  for i = 1, #names do found[i] = Workers.get(names[i]) end
  sort(found, function(a, b) return struct.unpack('>I4', a.number) < struct.unpack('>I4', b.number) end)
  for i = 1, #found do
    local worker, info = found[i], Store.get(K.worker_info, found[i].name)
    found[i] = {
      worker.name, struct.pack('>d', worker.until_), worker.packed and 't' .. worker.packed or '-',
      running[worker.number] or 0, info and 'i' .. info or '-',
    }
  end
  return found
end
