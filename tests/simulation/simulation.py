"""A simulation of one seed, and what must be true at its end."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import hashlib
import json
import random

from tests.simulation.actions import FleetActions
from tests.simulation.checker import Checker
from tests.simulation.coverage import missing
from tests.simulation.network import FAULTS
from tests.simulation.plan import LEASE, Action
from tests.simulation.program import RNG, WORLD
from tests.simulation.reference import ReferenceItem, Violation, must
from tests.simulation.threads import simulated_threads
from treadle import Client
from treadle.base.ids import set_id_generator
from treadle.item import GROUP_MARK, Filter, Ref, Signal, Wake

TIME_TO_FINISH = 900.0
"""Simulated seconds in which a fleet without faults must finish everything."""


class Simulation(FleetActions):
    name = "simulator"
    setting = ""
    """Of `make simulate`."""
    missing = staticmethod(missing)

    def run(self) -> Checker:
        """Run the seed. Raises `Violation`, or the exception of a check that failed otherwise."""
        set_id_generator(self._id)
        context = contextvars.copy_context()
        context.run(RNG.set, random.Random(self.rng.random()))
        context.run(WORLD.set, self)
        asyncio.set_event_loop(self.loop)
        self.loop.violation = lambda: self.checker.violation
        gc.disable()  # saves a sixth of the time; a simulation is small
        try:
            with simulated_threads():
                context.run(self.loop.run_until_complete, self._run())
            return self.checker
        finally:
            self.loop.violation = lambda: None
            self._end_all_tasks(context)
            gc.enable()
            set_id_generator(None)
            asyncio.set_event_loop(None)
            self.loop.close()

    @property
    def options(self) -> str:
        """Of `make simulate`, to replay it."""
        return f"{self.setting}SEED={self.seed}"

    @property
    def history(self) -> str:
        """A hash of the timeline: the same for the same seed."""
        return hashlib.sha256("\n".join(self.checker.timeline).encode()).hexdigest()[:16]

    def figures(self) -> dict[str, float]:
        """Totals for the report."""
        items = self.checker.reference.items.values()
        return {
            "seconds": self.loop.now,
            "steps of the store": self.checker.steps,
            "items": len(items),
            "leases": sum(expected.leases for expected in items),
            "workers killed": self.kills,
            "workers stopped": sum(process.stopped for process, _ in self._workers),
        }

    async def _run(self) -> None:
        client = self._client()
        for _ in range(self.plan.workers):
            await self._start_worker()
        running: list[asyncio.Task[None]] = []
        for action in self.plan.actions:
            await asyncio.sleep(max(0.0, action.at - self.loop.now))
            running.append(asyncio.ensure_future(self._do(action, client)))
        await asyncio.sleep(self.rng.uniform(0, 10))
        await self._finish(client, running)

    async def _do(self, action: Action, client: Client) -> None:
        await getattr(self, f"_{action.kind}")(random.Random(action.seed), client)

    # -- the end -----------------------------------------------------------------------------------------

    async def _finish(self, client: Client, running: list[asyncio.Task[None]]) -> None:
        """Without faults, and with a worker that stays alive, everything must end."""
        self._finishing = True
        self.faults.clear(*FAULTS)
        self.checker.note("no more faults")
        for kind in range(len(self.plan.kinds)):
            await self._start_worker(kind, restricted=False)
        if running:
            await asyncio.wait(running, timeout=120)
        for action in running:
            must(action.done(), f"{action} hangs")
            action.result()
        for work in self._later_works:
            await self._enqueue((self._client_process, client), "acme", work, {}, waits=False)
        await self.store.drop_schedule("beat")
        await self._check_everything_ends()
        await self._check_handlers_end()
        await self._check_waiters_are_answered()
        self._cover_unknown_enqueues()
        await self._check_counting_groups()
        await self._check_what_is_stored()
        await self._stop_everything(client)

    async def _check_everything_ends(self) -> None:
        deadline = self.loop.now + TIME_TO_FINISH
        while stuck := self._open():
            for order in list(self.checker.reference.orders.values()):
                # A pause that was late has arrived after the resume.
                await self.store.withdraw(order)
            must(
                self.loop.now < deadline, f"still open after {TIME_TO_FINISH:g} s without faults: {stuck[:5]}"
            )
            await self._answer_waits()
            await asyncio.sleep(0.5 if self.loop.now < deadline - TIME_TO_FINISH + 20 else 5)

    async def _answer_waits(self) -> None:
        """Send the signals that suspended items wait for without a time limit."""
        for expected in [one for one in self.checker.reference.open_items() if one.recorded.suspended]:
            for step in list(expected.recorded.steps.values()):
                if step.kind == "signal" and not step.over and step.until is None:
                    signal = Signal(id=expected.ref[1], name=step.signal, value=b'"the end"')
                    await self.store.signal([signal], tenant=expected.ref[0])
                    await self.store.publish(Wake(ready=True))

    def _open(self) -> list[ReferenceItem]:
        """The open items that do not wait, directly or through others, for an id that was never submitted."""
        reference = self.checker.reference

        def waits(expected: ReferenceItem) -> bool:
            return expected.status == "blocked" and any(
                is_missing((expected.ref[0], name)) for name in expected.pending
            )

        def is_missing(ref: Ref) -> bool:
            tenant, name = ref
            if name.startswith(GROUP_MARK):
                group = reference.groups.get((tenant, name[1:]))
                return group is None or any(
                    waits(one) for one in reference.open_items() if one.group is group
                )
            other = reference.items.get(ref)
            return other is None or (not other.ended and waits(other))

        return [expected for expected in reference.open_items() if expected.doom or not waits(expected)]

    async def _check_handlers_end(self) -> None:
        """A handler whose item was ended by another process ends within four leases."""
        deadline = self.loop.now + 4 * LEASE
        while running := [lease.id for _, app in self._alive() for lease in app.active()]:
            must(self.loop.now < deadline, f"all items have ended, but handlers of {running} still run")
            await asyncio.sleep(1)

    async def _check_waiters_are_answered(self) -> None:
        """Every waiter in a live process, for a group that has ended, gets its answer."""
        if self._waiting:
            await asyncio.wait(self._waiting, timeout=20 + 10 * self.plan.poll_interval)
        open_groups = {expected.group for expected in self.checker.reference.open_items()}
        dead = [process for process, _ in self._workers if process.dead or process.stopping]
        gone = {task for process in dead for task in self.loop.left_by(process)}
        for waiter in self._waiting:
            if not waiter.done() and waiter not in gone:
                must(open_groups, "a waiter never got its answer")
                waiter.cancel()
            elif waiter.done():
                waiter.result()

    def _cover_unknown_enqueues(self) -> None:
        for ref in self._unknown:
            there = ref in self.checker.reference.items
            self.checker.cover("an unknown enqueue was stored" if there else "an unknown enqueue was not")

    async def _check_counting_groups(self) -> None:
        """The value of each `counting` group has each of its children once that succeeded, and no other."""
        for (tenant, id), type in self._acknowledged.items():
            if type != "counting":
                continue
            (group,) = await self.store.group([id], tenant=tenant)
            if group is None or group.type != "counting" or group.open:
                continue
            page = await self.store.list(Filter(tenant=tenant, group_id=id), limit=1000)
            if any(item.worker is None and item.status == "success" for item in page.items):
                continue  # an operator completed one of them
            counted = [item.id for item in page.items if item.type == "counted" and item.status == "success"]
            value = json.loads(group.value.rpartition(b"\x00")[2]) if isinstance(group.value, bytes) else []
            must(sorted(value) == sorted(counted), f"group {id} has {value}, but {counted} succeeded")

    async def _check_what_is_stored(self) -> None:
        self._check(self.checker.compare)
        self._check(self.checker.audit)

    async def _stop_everything(self, client: Client) -> None:
        """Stop all live processes. None of their loops has died, and they leave no tasks."""
        for process, app in self._alive():
            runtime = app.worker._runtime
            if runtime is not None and runtime.failed is not None and runtime.failed.done():
                raise Violation(f"a loop of {process} died: {runtime.failed.exception()}")
            await asyncio.wait_for(self._starting[process], 60)
            process.stopping = True
            self.checker.stopping_workers.add(app.worker.id)
            await asyncio.wait_for(self._run_in(process, app.stop()), 60)
            await self._exit(process, at_once=True)
        await asyncio.wait_for(self._run_in(self._client_process, client.close()), 60)
        await self._check_no_tasks_left(self._client_process)
