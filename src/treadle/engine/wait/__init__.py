"""Wait: answer waits for items and groups, and wake other processes."""
