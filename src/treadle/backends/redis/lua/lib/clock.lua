-- Clock: the instant of this call, in epoch seconds.

local now
do
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local now8 = struct.pack('>d', now)
