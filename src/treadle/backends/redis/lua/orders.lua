-- uses: clock calls
-- reads
-- Answers now(8), and `paused` and `orders`: see order.lua.

return {now8, call('HGETALL', K.paused), call('HGETALL', K.orders)}
