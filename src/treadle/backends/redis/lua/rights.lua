-- reads
-- beside stages
-- Answers the commands that scripts use and the user of the connection may not run. Rights are checked first, and
-- this script may not write: no command changes anything.

local COMMANDS = {
  {'EXISTS'}, {'GET'}, {'HEXISTS', ''}, {'HGET', ''}, {'HGETALL'}, {'HKEYS'}, {'HLEN'}, {'HMGET', ''}, {'HSCAN', 0},
  {'HVALS'}, {'ZCARD'}, {'ZLEXCOUNT', '-', '+'}, {'ZMSCORE', ''}, {'ZRANGE', 0, 0}, {'ZRANGEBYLEX', '-', '+'},
  {'ZRANGEBYSCORE', 0, 0}, {'ZREVRANGE', 0, 0}, {'ZREVRANGEBYLEX', '+', '-'}, {'ZSCORE', ''},
  {'HDEL', ''}, {'HINCRBY', '', 0}, {'HSET', '', ''}, {'INCR'}, {'INCRBY', 0}, {'SET', ''}, {'ZADD', 0, ''},
  {'ZREM', ''}, {'ZREMRANGEBYLEX', '-', '-'},
}

local denied = {}

local function ask(name, ...)
  local answer = redis.pcall(name, ...)
  if type(answer) == 'table' and answer.err and string.find(answer.err, 'ACL failure', 1, true) then
    denied[#denied + 1] = string.lower(name)
  end
end

ask('TIME')
for i = 1, #COMMANDS do
  ask(COMMANDS[i][1], K.meta, unpack(COMMANDS[i], 2))
end
return denied
