-- Calls: a command that fails is sent once more. For scripts that write as they go: nothing may stop them halfway.

local function call(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then return redis.call(...) end
  return answer
end
