"""What a handler sees and returns: `Context`, `Result` and its plan, middleware, transactions, tracers.

It imports what is below it, and `define`, since handlers add work. Nothing here runs an item: `engine/run`
does. Begin with `context` and `result`.
"""
