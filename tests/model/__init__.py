"""The model: one machine that does anything to two backends at once, and compares all that they say.

The memory backend is the oracle: the simulator and its audit hold it to the contract.
"""
