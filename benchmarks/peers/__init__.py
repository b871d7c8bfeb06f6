"""Other queues, measured the same way, in the same rounds. `make bench-peers`.

One file per peer, with its tuning and where that advice comes from. A peer is a module, loaded in a process
that measures nothing else (session.py), on an empty store whose address is `shared.URL`. It has `TUNED` and
`PACE` (about how many no-ops a worker process of it runs in a second: sizes what is measured, so that a slow
peer takes no longer than a quick one), and of these those that it can do; each may be a coroutine function:

| name | what |
| --- | --- |
| setup() | makes its tables, once |
| client() | an async context manager: what it submits with, `c` below; None without |
| one(c, i) | submits a no-op: `shared.tick()` |
| many(c, numbers) | submits as many no-ops in the fastest way that it has for many |
| awaited(c, n) | n jobs that return a number submitted at once, all results awaited, their sum checked |
| fan_in(c, n) | n such jobs and one that runs when they have ended; its result awaited |
| worker() | runs a worker until it is killed |
| commands(n) | the command lines of its own program for a worker of n processes, instead of worker() |
| inside(c) | an async context manager: a worker in this very process |
| PACKAGE | what it is installed as, if not by the name of its file |
| LEFT | SQL that counts what is not ended, where the end of a job is written later than the job |
| UVLOOP | true where its own program runs on uvloop |
"""
