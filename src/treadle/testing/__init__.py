"""What a test needs: time that only moves when told to, and the contract suites every backend
passes.
"""

from .clock import ManualClock

__all__ = ["ManualClock"]
