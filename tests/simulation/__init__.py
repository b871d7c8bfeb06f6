"""The simulator: the real engine, several workers and a client, on an event loop that owns time and chance.

fate      what is going to be done to a fleet, drawn from the seed: submits, kills, pauses, shutdowns
program   a random program of work, and the types it is made of
loop      virtual time, a seeded order of what is ready; processes that can be killed and paused
network   between a process and the store: calls that fail, are late, are lost on the way back, come twice
store     the memory backend, every step of it shown to the watch
shadow    what the store must hold, from the contract alone
watch     what must be true after every step
world     all of it together, for one seed, and what must be true at its end
expect    what must happen now and then
shrink    a seed that fails, made smaller
__main__  `make simulate SEEDS=20000`
"""
