"""The simulator: the real engine, several workers and a client, on an event loop that owns time and chance.

loop      virtual time, a seeded order of what is ready; processes that can be killed and paused
network   between a process and the store: calls that fail, are late, are lost on the way back
program   a random program of work, and the types it is made of
watch     what must be true after every step, and at the end
world     all of it together, for one seed
__main__  `make simulate SEEDS=20000`
"""
