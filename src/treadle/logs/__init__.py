"""Log lines and errors as people read them. It imports `base`, `errors` and `item`.

    lines       log lines with the facts of an item as fields; how often a line may repeat
    tracebacks  tracebacks as they are stored, and the fingerprint of an error: what died alike
    masking     URLs without their passwords (`define/secret_values` says what else is secret)
    kept_lines  what handlers log while they run, for the store
    unawaited   a call that was made and never awaited

`treadle.logging` has the formatters for users.
"""
