"""What every other room may use: durations, clocks, ids, names, headers, words of messages, awaitable or not.

Pure, without I/O. It imports nothing of treadle but `errors`. Begin with `timing` and `ids`.
"""

VERSION = "0.1.0"
"""Version of treadle."""
