"""Bugs of rules that need a real store, a real process or a real loop to show: each names the tests that find
it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from tests.mutants.kit import Patch, mutant
from treadle.backends.postgres import PostgresBackend, pool, schema_sql, wakeups
from treadle.backends.postgres import backend as postgres_backend
from treadle.backends.postgres import settle as postgres_settle
from treadle.backends.postgres.link import LinkWatch
from treadle.backends.postgres.schema import PostgresSchema
from treadle.backends.postgres.statements import text
from treadle.backends.sqlite import process_directory
from treadle.base import loop_mark
from treadle.codec import collisions
from treadle.doers import on_full
from treadle.doers.base import WorkerDoers, managed
from treadle.doers.permit_queue import PermitReturns
from treadle.engine import open_transaction
from treadle.engine.run import settle
from treadle.engine.run.heartbeat import HeartbeatLoop
from treadle.engine.run.settle import SettlementBuilder
from treadle.engine.submit.build_item import ItemBuilder
from treadle.logs import masking

# -------------------------------------------------------------------------------------------------- settling

REFUSED = "tests/engine/test_refused_settlements.py"


@mutant("a refused outcome is replaced without a proof that it is the cause", tests=REFUSED)
def replaced_without_proof(patch: Patch) -> None:
    async def is_cause(error: Any, backend: Any, without: Any) -> bool:
        return True

    patch(settle, "is_cause", is_cause)


@mutant("an outcome that the store cannot hold is tried for ever", tests=REFUSED)
def never_replaced(patch: Patch) -> None:
    patch(settle, "PROOFS", 1_000_000)


@mutant("what was only tried is committed", tests=REFUSED)
def trial_committed(patch: Patch) -> None:
    async def is_cause(error: Any, backend: Any, without: Any) -> bool:
        await backend.settle(without)
        return True

    patch(settle, "is_cause", is_cause)


@mutant("a stop does not wait for refused settlements", tests=REFUSED)
def refused_not_awaited(patch: Patch) -> None:
    def start(self: Any, settling: Any) -> None:
        self.core.tasks.start(settling, "settle")

    patch(settle.Settler, "start_apart", start)


@mutant(
    "a transaction stays open when its attempt is over", tests="tests/engine/test_handler_transactions.py"
)
def transaction_left_open(patch: Patch) -> None:
    patch(settle.Settler, "abandon", lambda self, held: None)


@mutant(
    "one settlement that waits for a lock holds up its batch", tests="tests/engine/test_user_transactions.py"
)
def batch_waits_for_lock(patch: Patch) -> None:
    real = SettlementBuilder.build

    def build(self: Any, batch: Any) -> Any:
        return [replace(settlement, wait=True) for settlement in real(self, batch)]

    patch(SettlementBuilder, "build", build)


# ------------------------------------------------------------------------------------------- asking for work


@mutant(
    "a claim does not tell others what it left to them",
    tests="tests/backends/test_postgres_at_the_same_time.py",
)
def left_untold(patch: Patch) -> None:
    real = PostgresBackend.claim

    async def claim(self: Any, demand: Any) -> Any:
        return replace(await real(self, demand), left=())

    patch(PostgresBackend, "claim", claim)


UNFLUSHED = "tests/backends/test_postgres_unflushed.py"


@mutant("tokens of PostgreSQL have no random part", tests=UNFLUSHED)
def tokens_of_postgres_in_a_row(patch: Patch) -> None:
    real = PostgresSchema.sql
    random = "floor(random() * 16777216)::bigint"
    assert random in schema_sql()
    patch(PostgresSchema, "sql", lambda self, text: real(self, text).replace(random, "0"))


@mutant("a settlement on PostgreSQL does not wait for the disk", tests=UNFLUSHED)
def settlements_unflushed(patch: Patch) -> None:
    real = postgres_settle.SETTLE
    unflushed = f"from {text('connection', 'unflushed')} treadle.settle("
    patch(postgres_settle, "SETTLE", real.replace("from treadle.settle(", unflushed))


@mutant("an item may wait for one that is gone", tests="tests/engine/test_dependencies.py")
def gone_is_waited_for(patch: Patch) -> None:
    real = ItemBuilder.item

    def item(self: Any, *args: Any, **given: Any) -> Any:
        return replace(real(self, *args, **given), must_exist=())

    patch(ItemBuilder, "item", item)


@mutant("permits of a request that arrived late are never returned", tests="tests/unit/test_doer_limits.py")
def late_permits_kept(patch: Patch) -> None:
    patch(PermitReturns, "denied", lambda self, limits: None)


@mutant("workers of one process share a doer", tests="tests/engine/test_doers_of_workers.py")
def doer_shared(patch: Patch) -> None:
    patch(WorkerDoers, "of", lambda self, given: managed(given))


# ---------------------------------------------------------------------------------- processes, threads, loops


@mutant("a worker does not count its supervisor's heartbeats", tests="tests/engine/test_held_gil.py")
def supervisor_ignored(patch: Patch) -> None:
    real = HeartbeatLoop.__init__

    def init(self: Any, core: Any, worker: Any, *others: Any) -> None:
        real(self, core, replace(worker, last_supervisor_beat=None), *others)

    patch(HeartbeatLoop, "__init__", init)


@mutant("an app does not notice that its loop is gone", tests="tests/engine/test_loops_and_forks.py")
def old_loop_kept(patch: Patch) -> None:
    patch(loop_mark.LoopMark, "is_gone", property(lambda self: False))


# ----------------------------------------------------------------------------------------------- transactions


@mutant("calls in a handler's transaction go around it", tests="tests/backends/test_workers.py::TestSqlite")
def transaction_bypassed(patch: Patch) -> None:
    patch(open_transaction.OpenTransaction, "open", _open_unseen)


async def _open_unseen(self: Any) -> Any:
    self._transaction = await self.stack.enter_async_context(self.backend.transaction())
    return self._transaction.connection


@mutant("handlers' transactions may take every connection", tests="tests/engine/test_open_transactions.py")
def unbounded_transactions(patch: Patch) -> None:
    real = pool.PostgresPool.__init__

    def init(self: Any, connect: Any, greet: Any, *, size: int, reserved: int, **given: Any) -> None:
        real(self, connect, greet, size=size, reserved=reserved, **given)
        self._transactions = self._ordinary.__class__(size)

    patch(pool.PostgresPool, "__init__", init)


@mutant(
    "a server that gives no sign of life is waited for", tests="tests/backends/test_postgres_blackhole.py"
)
def link_unwatched(patch: Patch) -> None:
    patch(LinkWatch, "begin", lambda self, connection: None)


# --------------------------------------------------------------------------------------------------- security


@mutant("a wake-up is believed without its signature", tests="tests/backends/test_notify.py")
def signature_unchecked(patch: Patch) -> None:
    patch(wakeups.WakeSignature, "checked", lambda self, message: message[wakeups.SIGNATURE :])


@mutant("wake-ups go to a channel that can be guessed", tests="tests/backends/test_postgres_attacks.py")
def channel_known(patch: Patch) -> None:
    patch(postgres_backend, "channel_name", lambda key: "treadle.treadle")


@mutant("passwords are shown", tests="tests/engine/test_hidden_passwords.py")
def password_shown(patch: Patch) -> None:
    patch(masking, "masked", lambda address: address)


@mutant("values that collide are put into a set", tests="tests/unit/test_codec_hostile.py")
def collisions_unchecked(patch: Patch) -> None:
    patch(collisions, "check_hashes", lambda values: None)


@mutant("links in the process directory are followed", tests="tests/backends/test_sqlite_permissions.py")
def links_followed(patch: Patch) -> None:
    patch(process_directory, "NO_LINKS", 0)


@mutant("an older item replaces a newer one", tests="tests/engine/test_on_full.py")
def oldest_wins(patch: Patch) -> None:
    patch(on_full, "oldest_to_replace", lambda new, holders: list(holders[:1]))
