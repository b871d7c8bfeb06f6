"""Memory: the reference of every rule of `treadle.backend`, and a fast backend for one process.

backend.py   MemoryBackend: the verbs, each a call into one of the modules below
  submit.py claim.py settle.py workers.py       the path of work
  look.py operate.py remove.py schedules.py     reads, operators, recurring work
  audit.py                                      what must always be true
moves.py gates.py groups.py endings.py          the steps that verbs are made of
store.py rows.py                                the tables, and what is in them
lines.py walk.py due.py doomed.py strays.py     the tables of what waits
pile.py                                         what they are made of
"""

from .audit import audit
from .backend import MemoryBackend

__all__ = ["MemoryBackend", "audit"]
