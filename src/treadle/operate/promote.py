"""Promote: all that a store holds goes to another one, or into a file, and back.

A promotion is decided by one step, in the old store: its mark `moved`. Before that step the old store owns
the work, and thaws if this process dies. After it the new one does. Its own mark, `importing`, is removed
last, by this process, or by a later one that finds the two marks of the same move.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from msgspec import DecodeError, Struct

from treadle.backend import Backend, Export, Import, check_capable, is_in_memory, store_name
from treadle.base.wording import listed
from treadle.errors import (
    BackendError,
    InputError,
    StoreMoved,
    StoreNotEmpty,
    StoreUnavailable,
    StoreUnfinished,
    TreadleError,
)
from treadle.item import AuditNote
from treadle.records import StoreMark
from treadle.store import portable
from treadle.store.portable import (
    AnyRecord,
    FileReader,
    FileWriter,
    Head,
    PortableAudit,
    PortableGroup,
    PortableKey,
    Tally,
    damaged,
)
from treadle.store.rules.tenant_moves import MARKS, PREFIX

PORTION: Final = 1000
FREEZE: Final = 120.0
"""Seconds after which a store thaws by itself if nothing is heard of this process."""
SKEW: Final = 1.0
"""Seconds by which the clocks of two stores may differ: instants are taken as they are."""

_UNFIT: Final[tuple[type[Exception], ...]] = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError),
    *(DecodeError, struct.error),
)

Read: TypeAlias = Callable[[int], Awaitable[Sequence[bytes]]]
Progress: TypeAlias = Callable[[str, int], None]
"""Called with what is done now, and with how many records were."""


class Promoted(Struct, frozen=True):
    """What was done."""

    counts: dict[str, int]
    """Records by kind."""
    statuses: dict[str, int]
    """Items by status."""
    checksum: str
    finished: bool = False
    """An earlier call had copied it: this one did the rest."""


class _Copied(NamedTuple):
    head: Head
    tally: Tally


# ------------------------------------------------------------------------------------------------------ files


async def export_to(
    backend: Backend, file: BinaryIO, progress: Progress, *, tenant: str | None = None
) -> Promoted:
    """Write all that a store holds, or what it holds of a tenant. It may go on meanwhile, except on Redis."""
    check_capable(backend, "moving")
    writer, tally = FileWriter(file), Tally()
    async with backend.export(tenant=tenant) as export:
        while portion := await export.read(PORTION):
            tally.add(map(portable.decode, portion))
            writer.write(portion)
            progress("export", tally.total)
    writer.end()
    return _promoted(tally)


async def import_from(
    file: BinaryIO, backend: Backend, note: AuditNote | None, name: str, progress: Progress
) -> Promoted:
    """Fill an empty store from a file, or add a tenant to one in use: all of it, or nothing."""
    check_capable(backend, "moving")
    _check_kept(backend)
    move = _new_move()
    records = FileReader(file)
    first = records.read(1)

    async def read(limit: int) -> Sequence[bytes]:
        nonlocal first
        given, first = first, []
        return given or records.read(limit)

    try:
        return await _import_all(read, backend, move, note, name, progress)
    except StoreNotEmpty:
        head = portable.decode(first[0]) if first else None
        if not isinstance(head, Head) or head.tenant is None or "parts" not in backend.capabilities:
            raise
        return await _import_beside(read, backend, move, head.tenant, note, name, progress)


async def _import_beside(
    read: Read,
    backend: Backend,
    move: str,
    tenant: str,
    note: AuditNote | None,
    name: str,
    progress: Progress,
) -> Promoted:
    """Add a tenant to a store that is in use."""
    with _fault_of_file():
        async with backend.import_(move, tenant=tenant) as filled:
            copied = await _copy(read, filled, None, lambda done: progress("import", done))
            await _add_note(filled, copied, note, "import", name)
            await filled.finish()
    return _promoted(copied.tally)


async def _import_all(
    read: Read, backend: Backend, move: str, note: AuditNote | None, name: str, progress: Progress
) -> Promoted:
    try:
        with _fault_of_file():
            async with backend.import_(move) as filled:
                copied = await _copy(read, filled, None, lambda done: progress("import", done))
                await _add_note(filled, copied, note, "import", name)
                await filled.finish()
            await _compare(backend, move, copied.tally, lambda done: progress("compare", done))
    except BaseException:
        await backend.discard(move)
        raise
    await backend.own(move)
    return _promoted(copied.tally)


@contextlib.contextmanager
def _fault_of_file() -> Generator[None]:
    """What a store cannot take from records that were read."""
    try:
        yield
    except TreadleError:
        raise
    except _UNFIT as error:
        raise damaged(f"a record does not fit the store ({type(error).__name__}: {error})") from error


# -------------------------------------------------------------------------------------------------- promoting


async def promote(
    old: Backend, new: Backend, note: AuditNote | None, progress: Progress, *, skew: float = SKEW
) -> Promoted:
    """Let another store own all that one holds. Repeat it after a crash: it begins anew, or does the rest."""
    check_capable(old, "moving")
    check_capable(new, "moving")
    _check_kept(old)
    _check_kept(new)
    await _check_different(old, new)
    mark = await old.mark()
    if mark is not None:
        return await _finish(old, new, mark)
    async with old.export():
        pass  # it raises if there is no store: `open` would make one
    await _check_ready(old, new, skew)
    move, address = _new_move(), store_name(new)
    async with old.export(freeze=FREEZE) as export:
        first = await export.read(1)
        _check_head(portable.decode(first[0]))

        async def read(limit: int) -> Sequence[bytes]:
            nonlocal first
            given, first = first, ()
            return given or await export.read(limit)

        try:
            async with new.import_(move, store_name(old)) as filled:
                copied = await _copy(
                    _without_marks(read, new), filled, export, lambda done: progress("copy", done)
                )
                await _add_note(filled, copied, note, "promote", f"{store_name(old)} to {address}")
                await filled.finish()
            content = await _compare(new, move, copied.tally, lambda done: progress("compare", done), export)
        except BaseException:
            await new.discard(move)
            raise
        await export.move(move, address, content)
    await new.own(move)
    return _promoted(copied.tally)


async def give_up(old: Backend, new: Backend) -> bool:
    """Let the old store own the work, and empty the new one of what a promotion has left there: one that has
    failed, or one that has ended, as long as the new store is unused. False: there was none.
    `StoreUnfinished` if what is there came from elsewhere. After a crash, call it again.

    It takes the steps of a promotion back, the last one first. So a crash leaves two stores as a promotion
    leaves them that was killed."""
    await _check_different(old, new)
    mark = await old.mark()
    if mark is not None and mark.state == "moved":
        await _give_back(old, new, mark)
        await old.take_back(mark.move)  # the decision
        await new.discard(mark.move)
        return True
    other = await new.mark()
    if other is None or other.state != "importing":
        return False
    if other.source != store_name(old):
        raise StoreUnfinished(other.move, other.source)
    await new.discard(other.move)
    return True


async def _give_back(old: Backend, new: Backend, mark: StoreMark) -> None:
    """Let the new store own nothing, if it still is as it was when it began to own the work."""
    other = await new.mark()
    if other is not None and other.is_of(mark.move):
        return
    await _own(old, new, mark)
    async with new.export(freeze=FREEZE) as export:
        found = Tally()
        while portion := await export.read(PORTION):
            records = [portable.decode(data) for data in portion]
            _check_head(records[0])
            found.add(records)
        if found.content != mark.content:
            raise BackendError(
                f"{store_name(new)} was used after the promotion, and {store_name(old)} has nothing of that: "
                "there is no way back. Promote the new store into another one, which is empty"
            )
        await export.give_back(mark.move, store_name(old))


async def _finish(old: Backend, new: Backend, mark: StoreMark) -> Promoted:
    """Do what is left of a promotion whose decision was made."""
    if mark.state == "importing":
        raise StoreUnfinished(mark.move, mark.source)
    if mark.state == "frozen":
        raise StoreUnavailable("the old store is frozen by another export: try again")
    await _own(old, new, mark)
    return Promoted({}, {}, "", finished=True)


async def _own(old: Backend, new: Backend, mark: StoreMark) -> None:
    """Let the new store own the work, if it is the one that has it."""
    try:
        await new.own(mark.move)
    except (StoreUnavailable, StoreMoved):
        raise
    except BackendError as error:
        if mark.to != store_name(new):
            raise StoreMoved(mark.to) from error
        raise BackendError(
            f"{store_name(old)} was moved to {mark.to} by move {mark.move}, which does not hold it: {error}. "
            "Restore it from its backup. What the old store held is still there, under names with `parked`"
        ) from error


def _check_kept(backend: Backend) -> None:
    if is_in_memory(backend):
        raise InputError("memory:// ends with this process: nothing can be moved out of it, or into it")


async def _check_different(old: Backend, new: Backend) -> None:
    """Raise for one store, also if it has two addresses."""
    if store_name(old) == store_name(new):
        raise InputError(f"the old store and the new one are the same: {store_name(old)}")
    identity = await old.identity()
    if identity is not None and identity == await new.identity():
        raise InputError(f"{store_name(old)} and {store_name(new)} are two addresses of one store")


async def _check_ready(old: Backend, new: Backend, skew: float) -> None:
    """Raise what would be in the way, before anything is done."""
    await old.open()
    try:
        alive = [worker.id for worker in await old.workers() if worker.until > await old.now()]
        _check_idle(alive)
        difference = 0.0
        mark = await new.mark()
        if mark is not None and mark.state == "moved":
            raise StoreMoved(mark.to)
        if mark is not None and not mark.gives_way(store_name(old)):
            raise StoreUnfinished(mark.move, mark.source)
        if mark is None:
            await new.open()
            try:
                difference = abs(await new.now() - await old.now())
            finally:
                await new.close()
        if difference > skew:
            raise BackendError(
                f"the clocks of the stores differ by {difference:.1f} s: set them right, or allow it with "
                "--skew"
            )
    finally:
        await old.close()


def _check_head(head: AnyRecord) -> None:
    if isinstance(head, Head):
        _check_idle(head.workers)


def _check_idle(workers: Sequence[str]) -> None:
    if workers:
        raise BackendError(f"workers are running: {listed(workers)}. Stop them, then promote again")


async def _copy(
    read: Read,
    filled: Import,
    export: Export | None,
    progress: Callable[[int], None],
) -> _Copied:
    """Copy all records. `export`: its freeze is kept up."""
    tally, head, last = Tally(), None, None
    outer: dict[int, int] = {}
    while portion := await read(PORTION):
        decoded = [portable.decode(data) for data in portion]
        last = portable.check_order(decoded, last)
        if isinstance(decoded[0], Head):
            head = decoded[0]
        tally.add(decoded)
        for one in decoded:
            if isinstance(one, PortableGroup) and one.outer is not None:
                outer[one.number] = one.outer
        await filled.write(portion)
        if export is not None:
            await export.read(0)
        progress(tally.total)
    if head is None:
        raise InputError("there are no records: this is no whole export")
    portable.check_nesting(outer)
    return _Copied(head, tally)


def _without_marks(read: Read, new: Backend) -> Read:
    """Raise for a store from which tenants have moved, if the new one cannot refuse what comes for them."""
    if "tenant_moves" in new.capabilities:
        return read

    async def checked(limit: int) -> Sequence[bytes]:
        found = await read(limit)
        for data in found:
            record = portable.decode(data)
            if isinstance(record, PortableKey) and record.tenant == MARKS and record.key.startswith(PREFIX):
                raise BackendError(
                    f"the tenant {record.key.removeprefix(PREFIX)!r} has moved: a store that has taken part "
                    f"in that is promoted to SQLite, PostgreSQL or Redis only, not to {store_name(new)}"
                )
        return found

    return checked


async def _add_note(filled: Import, copied: _Copied, note: AuditNote | None, verb: str, about: str) -> None:
    """Note in the new store who has filled it, and why."""
    if note is None:
        return
    entry = PortableAudit(
        no=copied.tally.last_audit + 1,
        at=copied.head.at,
        actor=note.actor,
        verb=verb,
        count=copied.tally.counts.get("item", 0),
        about=about,
        reason=note.reason,
        address=note.address,
    )
    copied.tally.add([entry])
    await filled.write([portable.encode(entry)])


async def _compare(
    new: Backend, move: str, wanted: Tally, progress: Callable[[int], None], frozen: Export | None = None
) -> str:
    """Read the new store, and raise if it is not what was read from the old one. Returns its content."""
    found = Tally()
    async with new.export(move=move) as export:
        while portion := await export.read(PORTION):
            found.add(map(portable.decode, portion))
            if frozen is not None:
                await frozen.read(0)
            progress(found.total)
    if not found.is_copy_of(wanted):
        how = (
            f"{wanted.counts} with checksum {wanted.checksum} were read, and "
            f"{found.counts} with {found.checksum} were written"
        )
        if frozen is None:
            raise damaged(f"no store holds what is in it: {how}")
        raise BackendError(f"the copy differs: {how}. Nothing was moved. This is a bug of treadle")
    return found.content


def _new_move() -> str:
    return secrets.token_hex(8)


def _promoted(tally: Tally) -> Promoted:
    return Promoted(dict(tally.counts), dict(tally.statuses), tally.checksum)
