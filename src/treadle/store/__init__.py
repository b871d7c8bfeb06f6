"""What all stores share. It imports data (`item`, `records`, ...), `logs` and `base`; never the engine or a
store.

    rules/                      rules that are plain arithmetic, for the stores written in Python
    rules/submission            dependencies, keys, duplicate ids, cycles
    rules/settlement            what settlements and lost workers make of items and group values
    rules/times                 when items are due and expire, and when a schedule moves on
    rules/limits, rooms         permits of the fleet; what a claim may hand out of types that share a limit
    rules/listing               filter, plan and cursor of a list
    rules/repair, audits        what a requeue opens again; audit entries
    rules/statistics, watching  sums by minute, quarter and hour; what operators read
    fleet                       who is alive, who claims items, who serves what
    wakeups, listening          wake-ups; the connection on which they arrive
    pubsub                      publish/subscribe, as wake-ups need it
    outage                      the store is away: log it once for all loops
    group_end                   how a group ended
    read_refs                   items of several tenants; the groups around groups
    audit_note                  who makes a change, and its log line
    tx_check                    what may be given as `tx=`

`treadle.backend` says what a store does.
"""
