-- uses: clock
-- Step bytes: what is stored of a step. step_bytes.py has the same formats for Python.
--
--   sent    flags(1) time(8) took(8) length(2) signal [length(4) undo] [value]
--   stored  number(6) times(4) at(8) attempt(4), then as sent
--
-- The flags: its kind, as STEP_KINDS in treadle.item, and 8 over, 16 has a value, 32 has an undo, 64 time is a delay
-- (only sent), 128 time is when the wait is over at the latest.

local StepBytes = {}

do
  local OVER, HAS_VALUE, HAS_UNDO, IS_DELAY, HAS_UNTIL = 8, 16, 32, 64, 128
  local HEAD = 22 -- bytes before the flags
  local FORGOTTEN = 5 -- a kind
  local pack, unpack_bytes, band, byte = struct.pack, struct.unpack, bit.band, string.byte

  -- A step that is sent, as it is stored. `number`: six bytes. `attempt`: four bytes.
  function StepBytes.stored(sent, number, times, attempt)
    local flags, time = unpack_bytes('>Bd', sent)
    if band(flags, IS_DELAY) > 0 then flags, time = flags - IS_DELAY + HAS_UNTIL, now + time end
    return number .. pack('>I4', times) .. now8 .. attempt .. pack('>Bd', flags, time) .. string.sub(sent, 10)
  end

  -- Its number and how often it was forgotten; whether it is forgotten now, and whether it is over.
  function StepBytes.place(data)
    local number, times = unpack_bytes('>c6I4', data)
    local flags = byte(data, HEAD + 1)
    return number, times, flags % 8 == FORGOTTEN, band(flags, OVER) > 0
  end

  -- Whether it can be undone.
  function StepBytes.has_undo(data) return band(byte(data, HEAD + 1), HAS_UNDO) > 0 end

  -- What it waits for: its kind, when it is over at the latest or nil, and the name of a signal or ''.
  function StepBytes.wait(data)
    local flags, time, _, length, at = unpack_bytes('>BddI2', data, HEAD + 1)
    return flags % 8, band(flags, HAS_UNTIL) > 0 and time or nil, string.sub(data, at, at + length - 1)
  end

  -- A wait that was answered. `value`: nil for none. It has neither a value nor an undo before.
  function StepBytes.answered(data, value)
    local flags = byte(data, HEAD + 1) + OVER + (value and HAS_VALUE or 0)
    return string.sub(data, 1, HEAD) .. string.char(flags) .. string.sub(data, HEAD + 2) .. (value or '')
  end

  -- What is left of a step that a requeue forgets.
  function StepBytes.forgotten(data)
    local number, times, at = unpack_bytes('>c6I4c8', data)
    return number .. pack('>I4', times + 1) .. at .. pack('>I4BddI2', 0, FORGOTTEN + OVER, 0, 0, 0)
  end
end
