"""Mutants: real bugs, planted one at a time. A proof that does not find them proves nothing.

store     bugs of a backend, planted in the memory backend
engine    bugs of the engine
combined  bugs that show only where features meet: losses, isolation, begun attempts
moves     bugs of moves of tenants, which seeds with two stores find
waiting   bugs of items that wait in their worker, for a permit or for a batch
threads   bugs of sync handlers, and of items that skip the queue
hunt      looks for a bug: with seeds of the simulator, then with the contract suite
planted   a pytest plugin that plants a bug, for the contract suite
__main__  `make mutants`: all bugs, and a table of what found each one after how many seeds
"""
