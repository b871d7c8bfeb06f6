"""What a handler sees and returns. `engine/run` runs it. It imports what is below it, and `define`.

context                 `Context`, its sync side, and how an attempt learns that it should end
result, result_plan     what a handler wants to happen next; what that asks of the engine
steps                   what it records, and how it waits
call_next               middleware
orm_session             sessions of SQLAlchemy in a transaction
steps                   `Step`, and what a handler asks of steps
telemetry               what a tracer is told
"""
