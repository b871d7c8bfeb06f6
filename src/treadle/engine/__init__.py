"""The engine, in rooms. Each room is a package; the files at the top are shared by all rooms.

    enqueue -> submit -> [backend] -> claim -> dispatch -> attempt (middleware, handler)
                            ^                                  |
        wake-ups, poll -----'              settle <- decide <--'
                                             |-> children, dependents, compensation, group value
                                             '-> after_commit: events, waiters, wake-ups

| room | file | job |
| --- | --- | --- |
| (shared) | core | what a client and the workers of one process share |
| | registry, settings | the work types that an app knows; its settings |
| | hooks | `on_event`, `on_error`, and the log of errors |
| | tasks | background tasks with an owner; many requests in one write, while the next ones collect |
| | timers | one heap of deadlines; the clock of the store |
| | open_transaction | the transaction of a handler, and the requests that are a part of it |
| | guarded_telemetry | what a tracer is told, if there is one; it cannot break anything |
| | store_retry | how long to wait for a store that does not answer |
| | declared_limits | the fleet-wide limits that the code in this process has |
| submit | enqueue | build items, submit them, announce those that were stored |
| | build_item | a Work and its checked options become an Item |
| | place_roots | over several stores by root: ids that say where items are |
| | build_children | children of an item, what they inherit, its compensation |
| | submitter | items of many callers become one write |
| run | runtime | the parts of one running worker, put together |
| | claim, dispatch, batch | ask for work when there is room; hand it to doers; collect batches |
| | portion_claims | ask for portions of bulk actions although no doer has room |
| | permits | what the engine does for doers with limits; what the worker holds of them |
| | isolation | lost items run beside ever fewer others |
| | orders | what operators have ordered for the fleet, as this worker obeys it |
| | held, bound_types | the leases that the worker holds; its work types |
| | attempt, handler_call | run an attempt, stop it when it must end; call its handler |
| | context_services | what the context of an attempt can do |
| | steps, step_calls, step_records | its steps: waits; calls of their functions; what is written |
| | handler_pools | the threads and processes of handlers |
| | process_pool, process_child, process_context | handlers in processes: the pool; a process; their Context |
| | traced | the spans of attempts, for an app with telemetry |
| | decide | the outcome of an attempt becomes a decision |
| | settle | decisions become settlements, which are written in batches |
| | after_commit | what happens once a settlement is in the store |
| | built_in, undecodable, unsatisfied | items that end without an attempt, and why |
| | outcome_log | log failed attempts, deaths and lost leases |
| | heartbeat, worker_report | keep the worker's lease; what the worker says about itself |
| | loops | start and end the background loops; drain and give back |
| wait | waiters, wait_result, read_results | futures of what this process waits for; what waiting returns |
| | wakeups, announce | wake-ups between processes; events of items and groups |
| | unwatched_groups | groups that end with a value that no process waits for |
| schedule | scheduler, entry, occurrence | the loop; one schedule; when it is due next |
| | fire | fire an occurrence once in the fleet |
| upkeep | prune | remove old items; log types without a worker |
| | redrive, backlog | try dead items again; report a backlog |
| | statistics | how much ended, for the metrics of the fleet |
| | samples | how much is due in each queue, once a minute |
"""
