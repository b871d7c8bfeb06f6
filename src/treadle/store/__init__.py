"""What all stores share: rules that are plain arithmetic, the fleet, pub/sub, checks of transactions, audit
notes.

It imports nouns (`item`, `records`, ...), `logs` and `base`; never the engine, and never a store.
`treadle.backend` says what a store does; `rules/` has what stores written in Python would otherwise repeat.
"""
