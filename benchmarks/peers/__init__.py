"""Other queues, measured the same way, in the same rounds. `make bench-peers`.

One file per peer, with its tuning and the source of that advice. A peer is a module. A process that measures
nothing else loads it (session.py), on an empty store at the address `shared.URL`. It has `TUNED` and `PACE`:
about how many no-ops one of its worker processes runs in a second. `PACE` scales the cases, so that a slow
peer takes no longer than a fast one. It also has those of the following that it supports. Each may be a
coroutine function:

| name | what |
| --- | --- |
| setup() | makes its tables, once |
| client() | an async context manager that gives the client, `c` below. Without it `c` is None |
| one(c, i) | submits a no-op: `shared.tick()` |
| many(c, numbers) | submits one no-op per number, in the peer's fastest way |
| awaited(c, n) | submits n jobs that return a number, awaits all results and checks their sum |
| fan_in(c, n) | submits n such jobs and one that runs when they have ended, and awaits its result |
| worker() | runs a worker until it is killed |
| commands(n) | the command lines of its own program for a worker of n processes, instead of worker() |
| inside(c) | an async context manager: a worker in this process |
| VERSION | its version, if it is not a Python package |
| PACKAGE | the name of its package, if it is not the name of its file |
| LEFT | SQL or a command that counts the open jobs, if the end of a job is written after it has run |
| UVLOOP | true if its own program runs on uvloop |
"""
