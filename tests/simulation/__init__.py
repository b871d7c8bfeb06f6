"""The simulator: the real engine, several workers and a client, on an event loop with virtual time.

plan             the actions of one seed: submits, operator calls, kills, stops, pauses, clock jumps
program          the work types that a simulated fleet runs, and random works and options
loop             the event loop: virtual time, a seeded order of callbacks, killed and paused processes
threads          the threads of handlers: one runs at a time, or the loop
network          between a process and the store: calls that fail, are late, lose their answer or come twice
store            the memory backend, which passes every call and its answer to the checker
step_program     the works with steps, and what they tell the world around them
reference        what the store must contain, computed from the contract alone
reference_steps  the same of what an item has recorded, its mailbox and its stream
checker          runs the checks after every step of the store; the list of invariants
work_checks      the checks of submit, claim, heartbeat and settle
step_checks      the checks of steps, sleeps, signals, undos and streams
handler_checks   the rules for what really runs: handlers, threads, limits, lost items
operator_checks  the checks of operator verbs, keys, schedules and reads
fleet            the store, the client and the worker processes of one simulation
actions          what each action of the plan does to the fleet
simulation       runs one seed, then checks what must be true at its end
forgetful        a store that goes back in time while its workers live on, and what must be true then
parts            two stores below one app: a checker and a reference for each, and what holds for both
two_stores       a fleet over two stores between which tenants move, and its movers
coverage         what must happen in every 125 or 2,000 seeds
shrink           makes a failing seed smaller and reports it
__main__         `make simulate SEEDS=20000`
"""
