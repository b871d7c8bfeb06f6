"""Mutants: real bugs, planted one at a time. A proof that does not find them proves nothing.

store     bugs of a backend, planted in the memory backend
engine    bugs of the engine
hunt      looks for one: with seeds of the simulator, then with the contract suite
planted   a pytest plugin that plants one, for the contract suite
__main__  `make mutants`: all of them, and a table of who found what after how many seeds
"""
