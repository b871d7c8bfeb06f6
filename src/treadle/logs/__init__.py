"""Log lines: their fields, tracebacks, what is masked, the context of a running item, forgotten awaits.

It imports `base`, `errors` and `item`. Begin with `lines`; `treadle.logging` has the formatters for users.
"""
