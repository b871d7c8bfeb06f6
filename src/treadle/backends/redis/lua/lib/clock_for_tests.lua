-- Clock: the instant of this call, in epoch seconds. Tests shift it by the key `shift`, or stop it: '=' and an
-- instant.

local now
do
  local shift = redis.call('GET', K.shift) or '0'
  if string.sub(shift, 1, 1) == '=' then
    now = tonumber(string.sub(shift, 2))
  else
    local time = redis.call('TIME')
    now = tonumber(time[1]) + tonumber(time[2]) / 1000000 + tonumber(shift)
  end
end
local now8 = struct.pack('>d', now)
