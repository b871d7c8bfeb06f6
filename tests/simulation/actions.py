"""What happens to a fleet: users submit and operate, workers die, stop and pause, the clock jumps."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec.structs import replace

from tests.simulation.fleet import Fleet
from tests.simulation.loop import Process
from tests.simulation.plan import LEASE, TENANTS
from tests.simulation.program import BATCHES, LIMITED, MAKERS, crash, some_options
from tests.simulation.reference import must
from tests.simulation.step_program import JOURNEYS, SIGNALS, STEP_MAKERS
from treadle import Client, StoreUnavailable, TreadleError, WorkFailed
from treadle.errors import CycleError, DuplicateKeyError, InputError
from treadle.item import JOIN_TYPE
from treadle.operate.operator import core_of


class FleetActions(Fleet):
    """One method per kind of `Action`, named after it."""

    # -- users -------------------------------------------------------------------------------------------

    async def _submit(self, rng: random.Random, client: Client) -> None:
        tenant = rng.choice(TENANTS)
        work = self._later_works.pop() if self._later_works and rng.random() < 0.5 else self._make_work(rng)
        if rng.random() < 0.2:
            self._later_works.append(self._make_work(rng))
        known = [id for owner, id in self._acknowledged if owner == tenant]
        options = some_options(rng, work.type, known, [each.id for each in self._later_works])
        work = self._maybe_reuse_id(rng, tenant, work)
        if work.id not in options.get("after", ()):
            submitter = self._submitter(rng, client, work.type)
            await self._enqueue(submitter, tenant, work, options, waits=rng.random() < 0.4)

    def _make_work(self, rng: random.Random) -> Any:
        return MAKERS[rng.choice(self.plan.mix)](rng)

    def _maybe_reuse_id(self, rng: random.Random, tenant: str, work: Any) -> Any:
        """Sometimes use an id of the other tenant. The two items must not affect each other."""
        mine = {id for owner, id in self._acknowledged if owner == tenant} | {id for _, id in self._unknown}
        others = [id for owner, id in self._acknowledged if owner != tenant and id not in mine]
        if others and rng.random() < 0.3:
            self.checker.cover("two tenants, one id")
            self._unknown.append((tenant, id := rng.choice(others)))
            return replace(work, id=id)
        return work

    def _submitter(self, rng: random.Random, client: Client, type: str) -> tuple[Process, Client]:
        """The process that submits: the client, or an app that can run the item at once."""
        apps = self._alive()
        return rng.choice(apps) if type == "local" and apps else (self._client_process, client)

    async def _enqueue(
        self, submitter: tuple[Process, Client], tenant: str, work: Any, options: Any, *, waits: bool
    ) -> None:
        process, client = submitter
        call = self._run_in(process, self._enqueue_and_record(client.tenant(tenant), tenant, work, options))
        while not call.done() and not process.dead:
            await asyncio.wait({call}, timeout=1.0)
        handle = call.result() if call.done() else None
        if handle is not None and waits and not process.dead:
            self._waiting.append(self._run_in(process, self._wait_for_group(handle, tenant, process)))

    async def _enqueue_and_record(
        self, client: Client, tenant: str, work: Any, options: dict[str, Any]
    ) -> Any:
        own = replace(work, definition=client.types[work.type])  # each process has types of its own
        try:
            handle = await client.enqueue(own, **options)
        except StoreUnavailable:
            self.checker.cover("an enqueue with unknown outcome")
            self._unknown.append((tenant, work.id))
            return None
        except (CycleError, DuplicateKeyError, InputError) as error:
            self.checker.cover(f"enqueue refused: {type(error).__name__}")
            return None
        except TreadleError as error:
            self._report(f"enqueue of a new item: {type(error).__name__}: {error}")
            return None
        self.checker.note(f"enqueued {tenant}/{handle.id} {work.type} {options}")
        self._acknowledged[tenant, handle.id] = work.type
        self._check(
            lambda: must(
                self.checker.reference.was_stored((tenant, handle.id)),
                f"{handle.id} was acknowledged and is lost",
            )
        )
        same = handle.existing or handle.id == work.id
        self._check(lambda: must(same, f"{work.id} was stored as {handle.id}"))
        return handle

    async def _wait_for_group(self, handle: Any, tenant: str, process: Process) -> None:
        try:
            await handle.group()
        except WorkFailed:
            self.checker.cover("a waiter got a failure")
        except TreadleError as error:
            self.checker.cover(f"a waiter got {type(error).__name__}")
            return
        group = self.checker.reference.groups.get((tenant, handle.group_id))
        if group is not None and group.ref not in self._reused:
            self._check(
                lambda: must(group.times_ended, f"group {handle.group_id} was reported as ended and is open")
            )
        self.checker.cover("waited to the end")

    async def _journey(self, rng: random.Random, client: Client) -> None:
        """Enqueue an item with steps, and sometimes send it a signal at once."""
        tenant, type = (
            rng.choice(TENANTS),
            rng.choice(("journey", "journey", "sync_journey", "doomed_journey")),
        )
        work = STEP_MAKERS[type](rng)
        options = {"expires_in": rng.uniform(1, 20)} if rng.random() < 0.15 else {}
        await self._enqueue((self._client_process, client), tenant, work, options, waits=rng.random() < 0.3)
        if rng.random() < 0.3:
            await self._send(rng, client, (tenant, work.id))

    async def _signal(self, rng: random.Random, client: Client) -> None:
        """Send a signal to an item with steps. With a key it is sent until the store answers."""
        known = [ref for ref, type in self._acknowledged.items() if type in JOURNEYS]
        waiting = [ref for ref in known if self._is_suspended(ref)]
        if known:
            await self._send(rng, client, rng.choice(waiting if waiting and rng.random() < 0.7 else known))

    def _is_suspended(self, ref: tuple[str, str]) -> bool:
        expected = self.checker.reference.items.get(ref)
        return expected is not None and expected.recorded.suspended

    async def _send(self, rng: random.Random, client: Client, ref: tuple[str, str]) -> None:
        tenant, id = ref
        name, value = rng.choice(SIGNALS), f"signal {rng.random()}"
        key = rng.choice((None, f"key{rng.randint(0, 20)}"))
        while True:
            call = client.tenant(tenant).signal(id, name, value, key=key)
            try:
                await asyncio.wait_for(self._run_in(self._client_process, call), 60)
            except StoreUnavailable:
                if key is not None:
                    await self._before_again()
                    continue
            except TreadleError as error:
                self.checker.cover(f"{type(error).__name__} to a sender")
            return

    async def _operate(self, rng: random.Random, client: Client) -> None:
        """Cancel, requeue, trigger, complete or update, for all tenants or bound to one, the right one or
        not."""
        if not self._acknowledged:
            return
        ref = rng.choice(list(self._acknowledged))
        verb = rng.choice(("cancel", "requeue", "requeue", "trigger", "complete", "update"))
        waiting = [ref for ref, type in self._acknowledged.items() if type in BATCHES or type in LIMITED]
        if waiting and rng.random() < 0.3:
            ref, verb = waiting[-1], "cancel"  # perhaps while it waits in its worker
        suspended = [one for one in self._acknowledged if self._is_suspended(one)]
        if suspended and rng.random() < 0.3:
            ref, verb = rng.choice(suspended), rng.choice(("trigger", "trigger", "cancel", "complete"))
        bound = client if rng.random() < 0.3 else client.tenant(rng.choice(TENANTS))
        if rng.random() < 0.5:
            ref = self._some_child(rng, ref)
        arguments = (ref[1], 7) if verb == "complete" else (ref[1],)
        how: dict[str, Any] = self._some_changes(rng) if verb == "update" else {}
        if verb == "requeue":
            if rng.random() < 0.3 and (group := self.checker.reference.items.get(ref)) is not None:
                verb, arguments = "repair", (group.group.ref[1],)
            else:
                how = {"alone": rng.random() < 0.2, "cancelled": rng.random() < 0.3}
                how |= self._some_step(rng, ref)
                arguments = ([ref[1], *(one for _, one in rng.sample(sorted(self._acknowledged), 1))],)
        try:
            call = getattr(bound, verb)(*arguments, **how)
            await asyncio.wait_for(self._run_in(self._client_process, call), 60)
        except TreadleError as error:
            self.checker.cover(f"{type(error).__name__} to an operator")

    def _some_step(self, rng: random.Random, ref: tuple[str, str]) -> dict[str, Any]:
        expected = self.checker.reference.items.get(ref)
        names = [] if expected is None else list(expected.recorded.steps)
        return {"from_step": rng.choice(names)} if names and rng.random() < 0.4 else {}

    def _some_changes(self, rng: random.Random) -> dict[str, Any]:
        now = self.store_clock.now()
        changes = {
            "run_at": now + rng.uniform(-1, 6),
            "priority": rng.randint(-5, 5),
            "lane": rng.choice("abc"),
            "queue": rng.choice(("default", "bulk")),
            "deadline": rng.choice((None, now + rng.uniform(1, 20))),
        }
        return {name: changes[name] for name in rng.sample(sorted(changes), rng.randint(1, 3))}

    def _some_child(self, rng: random.Random, ref: tuple[str, str]) -> tuple[str, str]:
        """An item that the handlers of this one queued, at any depth, and that is dead if there is one."""
        expected = self.checker.reference.items.get(ref)
        below = self.checker.reference.descendants([expected]) if expected is not None else []
        below = [one for one in below if one.item.type != JOIN_TYPE]
        dead = [one.ref for one in below if one.status == "dead"]
        return rng.choice(dead or [one.ref for one in below] or [ref])

    async def _reuse(self, rng: random.Random, client: Client) -> None:
        """Delete a group that has ended, unless it was pruned, and enqueue another one with its id."""
        over = [ref for ref, type in self._acknowledged.items() if type == "counting" and self._is_over(ref)]
        if not over:
            return
        tenant, id = ref = rng.choice(over)
        if ref in self.checker.reference.groups:
            try:
                await self.store.delete([id], tenant=tenant)
            except TreadleError:
                return  # something waits for it
        self._reused.add(ref)
        self._reusing.add(ref)
        self.checker.reused.add(ref)
        self.checker.cover("an id was used again")
        work = replace(MAKERS["counting"](rng), id=id)
        await self._enqueue((self._client_process, client), tenant, work, {}, waits=False)
        self._reusing.discard(ref)

    def _is_over(self, ref: tuple[str, str]) -> bool:
        if ref in self._reusing or ref in self._unknown:
            return False
        group = self.checker.reference.groups.get(ref)
        return self.checker.reference.was_stored(ref) if group is None else group.ended_at is not None

    async def _pause_queue(self, rng: random.Random, client: Client) -> None:
        queue, tenant = rng.choice(("default", "bulk")), rng.choice((None, *TENANTS))
        bound = client if tenant is None else client.tenant(tenant)
        what: dict[str, Any] = {"queue": queue}
        if rng.random() < 0.4:
            what = {"type": rng.choice(sorted(core_of(client).registry.types))}
        elif tenant is not None and rng.random() < 0.3:
            what = {}
        await self._insist(lambda: bound.pause(**what))
        await asyncio.sleep(rng.uniform(0, 8))
        await self._insist(lambda: bound.resume(**what))

    async def _insist(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Repeat a call of the client until the store answers."""
        while True:
            try:
                return await self._run_in(self._client_process, call())
            except StoreUnavailable:
                await self._before_again()

    # -- faults ------------------------------------------------------------------------------------------

    async def _kill(self, rng: random.Random, client: Client) -> None:
        alive = [process for process, _ in self._workers if not (process.dead or process.stopped)]
        if alive:
            await self._replace(rng.choice(alive))
        else:
            await self._start_worker()

    async def _burst(self, rng: random.Random, client: Client) -> None:
        """Enqueue more items of a limited type than its limit allows at once, all in one lane."""
        tenant, type, lane = rng.choice(TENANTS), rng.choice(sorted(LIMITED)), rng.choice(("", "a"))
        for _ in range(rng.randint(3, 8)):
            submitter = (self._client_process, client)
            await self._enqueue(submitter, tenant, MAKERS[type](rng), {"lane": lane}, waits=False)

    async def _poison(self, rng: random.Random, client: Client) -> None:
        """Enqueue an item that kills its worker, in a line with others."""
        work = crash(rng.choice((0.0, rng.uniform(0, 3))))
        options = {"lane": rng.choice("abc")} if rng.random() < 0.5 else {}
        await self._enqueue((self._client_process, client), rng.choice(TENANTS), work, options, waits=False)

    async def _stop(self, rng: random.Random, client: Client) -> None:
        """Stop a worker. It gives its leases back, and no attempt is spent."""
        if not (alive := [(one, app) for one, app in self._alive() if self._starting[one].done()]):
            return
        in_threads = [(one, app) for one, app in alive if self.handlers.threads_of(one)]
        process, app = rng.choice(in_threads if in_threads and rng.random() < 0.7 else alive)
        process.stopping = True
        self.checker.note(f"{process} stops")
        if self.checker.strict_timing:
            self.checker.stopping_workers.add(app.worker.id)
            self.checker.cover("a shutdown under strict timing")
        began, idle = self.loop.now, not self.handlers.workers[app.worker.id].may_run
        stopping = self._run_in(process, app.stop(drain=rng.choice((0, 1, 3, 8))))
        while not stopping.done() and not process.dead:
            await asyncio.wait({stopping}, timeout=1.0)
        if not process.dead:
            stopping.result()
            process.stopped = True
            took = self.loop.now - began
            must(not (idle and self.checker.strict_timing) or took < 4, f"{process} stopped after {took:g} s")
            await self._exit(process, at_once=rng.random() < 0.5)
        await self._start_worker()

    async def _exit(self, process: Process, *, at_once: bool) -> None:
        """A process that has stopped ends: at once, with a thread that may still run in it, or after it."""
        threads = self.handlers.threads_of(process)
        if threads and at_once:
            self.checker.cover("a process ended while its thread ran")
            process.dead = True
        elif threads:
            self.checker.cover("a process waited for its thread")
            await asyncio.sleep(max(run.until for run in threads) - self.store_clock.now())
        await self._check_no_tasks_left(process)

    async def _pause(self, rng: random.Random, client: Client) -> None:
        if alive := self._alive():
            victim = rng.choice(alive)[0]
            victim.paused_until = self.loop.now + rng.uniform(0, 3 * LEASE)
            self.checker.note(f"{victim} paused until {victim.paused_until:.1f}")
            self.checker.cover("paused")

    async def _jump_clock(self, rng: random.Random, client: Client) -> None:
        self.store_clock.jumped += rng.uniform(0, 2 * LEASE)
        self.checker.cover("the store's clock jumped")
        self.checker.note("the store's clock jumped")

    async def _check_no_tasks_left(self, process: Process) -> None:
        """A stopped process must leave no tasks. A call that was on its way has 60 s to end."""
        until = self.loop.now + 60
        while not process.dead and (left := self._left_by(process)):
            must(self.loop.now < until, f"{process} left {left[:3]} behind")
            await asyncio.wait(left, timeout=1)

    def _left_by(self, process: Process) -> list[asyncio.Task[Any]]:
        return [task for task in self.loop.left_by(process) if task not in self._waiting]
