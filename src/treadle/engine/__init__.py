"""The engine: one stage per file, in the order in which work flows.

    enqueue -> itemize -> submit -> [backend] -> claim -> dispatch (doer, batch) -> run (middleware, handler)
                                       ^                                                       |
      wake (signals, or the poll) -----+             settle <- desk <- decide (pure) <---------'
                                                       |-> children, dependents, compensation, group
                                                       '-> announce (events), wait (whoever awaits a handle)

| file | what it is |
| --- | --- |
| core | what a client and a worker of one process share |
| registry, settings, hooks | the types an app knows, what it is set to, whom it tells |
| itemize, submit | a Work and its options become an Item; many callers, one write |
| claim, dispatch, batch | ask for work when there is room; hand it to doers |
| run, active, bound, process | one attempt: call the handler, stop it when it must end |
| decide | an outcome becomes a decision; pure |
| desk, settle, values | decisions become settlements, in batches; what follows after the commit |
| services, outcome | what handlers may ask; what waiting gives |
| wait, signals, announce, unhandled | who waits, who must be woken, what is announced |
| lease, alarm, schedule | the loops beside: heartbeat, deadlines, schedules |
| prune, redrive | ... and what has ended: forgotten, or tried again |
| crew | all of them together, for one worker |
| combine, tasks | natural batching; tasks with an owner |
"""
