"""The engine, in rooms. Each room is a package; the files at the top are shared by all rooms. Methods that
`tests/mutants` replaces with bugs are public.

    enqueue -> submit -> [backend] -> claim -> dispatch -> attempt (middleware, handler)
                            ^                                  |
        wake-ups, poll -----'              settle <- decide <--'
                                             |-> children, dependents, compensation, group value
                                             '-> after_commit: events, waiters, wake-ups

| room | file | job |
| --- | --- | --- |
| (shared) | core | what a client and the workers of one process share |
| | registry, settings | the work types that an app knows; its settings |
| | hooks | `on_event`, `on_error`, the log of errors |
| | outage, seldom | log an outage of the store once, then once a minute; other repetitions |
| | kept_answer | ask the store once for all that want to know |
| | tasks | background tasks with an owner |
| | read_refs | items of several tenants; the groups around groups |
| | large_values | decode large values in a thread |
| | main_guard | refuse to run a program once more in the process of a handler |
| | combine | many requests in one write: while one batch is written, the next collects |
| | timers | one heap of deadlines |
| | open_transaction | the transaction of a handler, and the requests that are a part of it |
| | telemetry, guarded_telemetry | what a tracer is told, if there is one; it cannot break anything |
| | store_retry | how long to wait for a store that does not answer |
| | declared_limits | the fleet-wide limits that the code in this process has |
| | tenant_view | what a client of one tenant may see of workers and limits |
| submit | enqueue | build items, submit them, announce those that were stored |
| | build_item | a Work and its options become an Item |
| | carry | the headers and the trace that items hand on to what they queue |
| | submitter | items of many callers become one write |
| run | runtime | the parts of one running worker, put together |
| | claim, dispatch, batch | ask for work when there is room; hand it to doers; collect batches |
| | isolation, begin | lost items run beside ever fewer others; tell the store that handlers begin |
| | held | the leases that the worker holds, and its bound work types |
| | attempt, context_services | call a handler, stop it when it must end; what its context can do |
| | handler_threads | where sync handlers run |
| | process_pool, pool_child, process_child | handlers in processes: pool, process, its own side |
| | process_context, process_messages | the Context of a handler in a process, and what both sides send |
| | traced | the spans of attempts, for an app with telemetry |
| | decide | the outcome of an attempt becomes a decision |
| | build_settlement | decisions become settlements, with the values of groups |
| | settle, pending | settlements are written in batches; one that is not written yet |
| | refused | whether a refusal is due to the outcome or to the store |
| | after_commit | what happens once a settlement is in the store |
| | fingerprint | the mark of a death: what died alike has the same |
| | unsatisfied | which prerequisite a doomed item died of |
| | outcome_log | log failed attempts, deaths and lost leases |
| | heartbeat | keep the worker's lease; learn which leases are lost |
| | worker_report, declines | what the worker says about itself in its heartbeats; what `accept` declined |
| | loops, shutdown | start and end the background loops; drain and give back |
| wait | waiters, wait_result | futures of everything this process waits for; what waiting returns |
| | wakeups, announce | wake-ups between processes; events of items and groups |
| | unwatched_groups | groups that end with a value that no process waits for |
| schedule | scheduler, entry, occurrence | the loop; one schedule; when it is due next |
| | fire, fired_items | fire an occurrence once in the fleet; what it submits |
| | standing | whether a schedule fires: active, overdue, orphaned, paused, ended |
| | store_clock | the clock of the store |
| upkeep | prune, redrive, backlog | remove old items; try dead items again; report a backlog |
| | unserved_types | log types that no live worker has |
| why | read, facts, meaning | ask the store; what was found out; what it means for an operator |
| | wording | words for times, workers, items and commands |
"""
