"""Chaos: real processes on a real store, killed at random moments; then every item is accounted for.

actors    the processes: one submits, some work
ledger    what they say they did: one line per acknowledgement, appended in one write
storm     starts them, kills them, waits for the end, and counts
"""
