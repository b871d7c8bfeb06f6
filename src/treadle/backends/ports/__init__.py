"""A Backend out of three ports.

A queue holds notes, which say no more than "look at this item"; the store holds everything else. What changes
about a group is one record in it (a *ledger*), which is replaced as a whole: that is the one step in which an
attempt settles. What has to happen elsewhere because of it is written down in the same step, done afterwards,
and can be done again: see `settle` and `follow`.

| file | what it is |
| --- | --- |
| calls, records | the ports; records that change in one step |
| names, papers, archive | where what is stored, and how |
| ledger | what becomes of a group's members: pure |
| admit, cycles, submit | new items |
| claim, hands | from notes to leases; what this process has popped |
| settle, follow, gates | an attempt ends, and what follows; who waits in other groups |
| workers, leases | who is alive, and what they hold |
| read, cancel, limits, schedules, signals | the rest |
"""

from .backend import PortsBackend

__all__ = ["PortsBackend"]
