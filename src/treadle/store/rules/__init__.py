"""The storage rules, written once for the backends that are written in Python.

Nothing here does I/O or keeps state beyond one call. A backend passes in what it has stored, and stores what
it gets back.

times.py        when items are due and expire, how schedules move on
submission.py   the plan of a submission: keys, duplicate ids, dependencies, cycles
settlement.py   items that are put back or lose their worker, history, tokens, the values of groups
steps.py        when waits are over, what a requeue forgets
repair.py       which items a requeue opens again
listing.py      how items are found by a filter, cursors and pages
orders.py       pauses and limits that operators order: versions, what is in force
limits.py       permits of fleet-wide limits; room that types share in a claim
steps.py        when waits are over, what a requeue forgets
records.py      audit entries and statistics
tenant_moves.py    marks of a tenant that moves from store to store, step by step
watching.py     what operators read about items, workers and limits
"""

PORTION = 1000
"""How many items of each kind (freed, due, expired) one claim processes before it hands out work."""
MOST_DOOMED = 100
"""How many doomed items one claim hands out."""
