-- uses: store kinds
-- Row indexes: where lists find rows.
--
--   pages      page -> how many rows it has; page 'e' -> how many of them have ended. A page: numbers / 1000.
--   key        tenant type key -> n of the row that has it now
--   keyed      length(2) key / n tenant: all rows that had it
--   workflows  length(2) workflow / n tenant
--   workflow_roots  n: roots that have a workflow
--   roots_of_workflow  length(2) workflow tenant / n

local RowIndexes = {}

do
  local left_pages = {} -- pages that a row was removed from

  local function with_length(text) return struct.pack('>I2', #text) .. text end

  -- Add a row to the indexes of what few rows have.
  function RowIndexes.label(row, extra)
    local kind = row.kind
    if extra.k then
      Store.set(K.key, kind.tenant .. kind.type .. extra.k, row.n)
      Store.insert(K.keyed, '', with_length(extra.k) .. row.n .. kind.tenant)
    end
    if extra.w then
      Store.insert(K.workflows, with_length(extra.w), row.n .. kind.tenant)
      if row.group == row.n then
        Store.insert(K.workflow_roots, '', row.n)
        Store.insert(K.roots_of_workflow, with_length(extra.w) .. kind.tenant, row.n)
      end
    end
  end

  function RowIndexes.unlabel(row, extra)
    local kind = row.kind
    if extra.k then
      local holder = kind.tenant .. kind.type .. extra.k
      if Store.get(K.key, holder) == row.n then Store.set(K.key, holder) end
      Store.remove(K.keyed, '', with_length(extra.k) .. row.n .. kind.tenant)
    end
    if extra.w then
      Store.remove(K.workflows, with_length(extra.w), row.n .. kind.tenant)
      if row.group == row.n then
        Store.remove(K.workflow_roots, '', row.n)
        Store.remove(K.roots_of_workflow, with_length(extra.w) .. kind.tenant, row.n)
      end
    end
  end

  local pages = {} -- the names of pages, by their numbers

  -- The page of a row: `list` skips pages without items, and those without open items.
  local function page_of(n)
    local number = math.floor(struct.unpack('>I6', n) / 1000)
    local page = pages[number]
    if not page then
      page = string.format('%d', number)
      pages[number] = page
    end
    return page
  end

  -- A new row.
  function RowIndexes.enter_page(n)
    Store.add(K.pages, page_of(n), 1)
  end

  -- A row has ended (1), or is open again (-1).
  function RowIndexes.count_ended(n, amount)
    Store.add(K.pages, page_of(n) .. 'e', amount)
  end

  -- A row is gone.
  function RowIndexes.leave_page(n, has_ended)
    local page = page_of(n)
    Store.add(K.pages, page, -1)
    if has_ended then Store.add(K.pages, page .. 'e', -1) end
    left_pages[page] = true
  end

  -- Many ended rows are gone.
  function RowIndexes.leave_pages(numbers)
    local counts = {}
    for i = 1, #numbers do
      local number = math.floor(struct.unpack('>I6', numbers[i]) / 1000)
      counts[number] = (counts[number] or 0) + 1
    end
    for number, count in pairs(counts) do
      local page = string.format('%d', number)
      Store.add(K.pages, page, -count)
      Store.add(K.pages, page .. 'e', -count)
      left_pages[page] = true
    end
  end

  Store.before_flush[#Store.before_flush + 1] = function()
    for page in pairs(left_pages) do Store.drop_zero(K.pages, page, {page .. 'e'}) end
  end
end
