"""Other queues, measured the same way, in the same rounds. `make bench-peers`.

One file per peer, with its tuning and where that advice comes from. A peer is a module with `TUNED`, and of
these functions those that it can do, each of which answers a rate per second on an empty store:

| function | what is measured |
| --- | --- |
| one_by_one(url, n) | n jobs submitted, each in its own call, nobody running them |
| bulk(url, n) | the same in the fastest way that it has for many |
| drain(url, n) | n no-ops waiting; from the start of the worker until the store says that none is left |
| awaited(url, n) | n jobs submitted and awaited at once, with a worker in the same process |
"""
