"""What all stores share. It imports data (`item`, `records`, ...), `logs` and `base`; never the engine or a
store.

    rules/                      rules that are plain arithmetic, for the stores written in Python
    rules/submission            dependencies, keys, duplicate ids, cycles
    rules/settlement            what settlements and lost workers make of items and group values
    rules/times                 when items are due and expire, and when a schedule moves on
    rules/limits                permits of the fleet; what a claim may hand out of types that share a limit
    rules/listing               filter, plan and cursor of a list
    rules/repair, watching      what a requeue opens again; what operators read
    rules/records               audit entries; statistics by minute, quarter and hour
    portable, portable_rows     all that a store holds, as records of one form; files of them; rows of them
    fleet                       who is alive, who claims items, who serves what
    wakeups, listening          wake-ups, and publish/subscribe for them; the connection on which they arrive
    outage                      the store is away: log it once for all loops
    reads                       items of several tenants; the groups around groups; how a group ended
    audit_note                  who makes a change, and its log line
    user_transaction            what may be given as `tx=`, and what happens after its commit

`treadle.backend` says what a store does.
"""
