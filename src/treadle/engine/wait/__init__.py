"""Wait: who waits for results here, and how processes wake each other."""
