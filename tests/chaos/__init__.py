"""Chaos: real processes on a real store, killed at random moments. Then every item is accounted for.

processes  the processes: one submits, some work
ledger     a file in which they record what they do: one line each, appended in one write
run        starts, kills and suspends them, cuts connections, restarts the server, waits for the end
report     counts lost items, items and effects done twice, groups ended twice, and the time to recover
stores     the stores with a user's own table, and the faults that can be caused from outside

supervised      workers under `treadle worker`, whose children are killed or kill themselves
supervised_app  their app
poison          one item that kills its process, among many innocent ones
journeys        the processes of a run with steps: one submits and signals, some work
steps           `python -m tests.chaos.steps`: kills while handlers of ten steps run
kills           `make kills`: how much work a kill repeats, and how long it takes to recover
"""
