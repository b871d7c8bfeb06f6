"""The model: one state machine makes the same calls to two backends and compares everything they return.

The memory backend is the reference. The simulator and its audit hold it to the contract.
"""
