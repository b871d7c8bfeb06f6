"""What every other room may use. Pure, without I/O. It imports nothing of treadle but `errors`.

timing         durations and instants; the clock that code gets passed in
ids, headers   ids, names and headers: made, checked
callables      functions that users give: async or not, called safely
loop_mark      which event loop, of which process, something belongs to
wording        durations, counts and lists in words, for messages
"""

VERSION = "0.1.0"
"""Version of treadle."""
