"""Chaos: real processes on a real store, killed at random moments; then every item is accounted for.

actors    the processes: one submits, some work
ledger    what they say they did: one line each, appended in one write
storm     starts them, kills and suspends them, cuts connections, restarts the server, waits for the end
account   counts: what was lost, done twice, closed twice; how long it took to recover
stores    the user's own table, and what can be done to a store from outside
"""
