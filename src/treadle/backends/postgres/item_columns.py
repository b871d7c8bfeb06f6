"""New items as columns, sorted by id and tenant."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import attrgetter, lt
from typing import Any, Final, NamedTuple, TypeAlias

from treadle.errors import BackendError
from treadle.item import GROUP_MARK, Item, Ref, Submission
from treadle.store.rules.submission import find_cycle

from .columns import ANY_SCOPE, KEY_POLICY_CODES, OPEN_SCOPE, data, joined, names, numbers, shortened
from .statements import numbered, statement, text

MOST_BYTES: Final = 64 << 20
"""Bytes of inputs and results in one call, about."""
LARGEST: Final = 900 << 20
"""Bytes that one call can have: the server takes less than a gigabyte in one message, and in one array."""

NO_COLUMNS: Final = (None,) * len(numbered(text("submit", "item_columns"))[1])

NO_POLICIES: Final = (None, None)

STORE_ONE, _parameters = numbered(text("submit", "store_one"))
"""Takes the shape of an item, its nonce, id and input. A lone item is stored in four fifths of the time that
`store_items` takes."""
STORE_ALIKE: Final = statement("submit", "store_alike")
"""Takes the nonces, count, ids and inputs of items, and their shape."""

SHAPE: Final = tuple(name for name in _parameters if name not in ("nonce", "id", "input"))
"""The fields of an item's shape: all but its id and input."""
_shape: Final[Callable[[Item], tuple[object, ...]]] = attrgetter(*SHAPE)
_shape_and_kind: Final[Callable[[Item], tuple[object, ...]]] = attrgetter(
    *SHAPE, "key", "after", "lease_to", "contributes", "group_id"
)
"""With the fields by which an item is plain."""
_id: Final[Callable[[Item], str]] = attrgetter("id")
_input: Final[Callable[[Item], bytes]] = attrgetter("input")
_options: Final[Callable[[Item], bytes]] = attrgetter("options")


def shape_of(submissions: Iterable[Submission]) -> tuple[object, ...] | None:
    """What the items of these have in common besides their ids and inputs. None if they differ, or if one is
    not plain."""
    items: list[Item] = []
    for submission in submissions:
        items += submission.items[:1] if submission.alike else submission.items
    if not items or not is_plain(items[0]):
        return None
    if len(items) > 1 and not all(map(_shape_and_kind(items[0]).__eq__, map(_shape_and_kind, items))):
        return None
    return _shape(items[0])


def is_plain(item: Item) -> bool:
    """It has no key or dependencies, is not to be leased at once, contributes, and joins no nested group."""
    return (
        item.key is None
        and not item.after
        and item.need <= 0
        and item.lease_to is None
        and item.contributes
        and item.group_id is None
    )


def store_alike(
    items: Sequence[Item], nonces: Sequence[int], shape: tuple[object, ...]
) -> tuple[str, tuple[object, ...]]:
    """The statement that stores items of this shape, and its arguments. It inserts them in the order of their
    ids, so that two calls with the same ids do not wait for each other."""
    if len(items) == 1:
        return STORE_ONE, (*shape, nonces[0], items[0].id, items[0].input)
    ids = list(map(_id, items))
    inputs = data(list(map(_input, items)))
    return STORE_ALIKE, (numbers(nonces), len(ids), names(ids, whole=True), inputs, *shape)


class ItemRows(NamedTuple):
    """Items, followed by placeholders for ids that they wait for and that are not among them."""

    order: Sequence[int]
    """For each row the item it is. Numbers beyond the last item are placeholders."""
    owners: Sequence[int]
    """For each row the number of the request that its item belongs to; -1 for placeholders."""
    columns: tuple[object, ...]
    plain: bool
    """Every item is plain: see `is_plain`."""
    policies: tuple[object, object] = NO_POLICIES
    """The columns of the key policies."""
    contributes: str | None = None
    """A column of its own; None if all contribute."""


def rows_of(items: Sequence[Item], owners: Sequence[int]) -> ItemRows:
    """The rows of these items; `owners[n]` is the request of item n."""
    if not items:
        return ItemRows((), (), NO_COLUMNS, True)
    plain = all(map(is_plain, items))
    missing = [] if plain else _placeholders(items, owners)
    keys = [(item.id, item.tenant, 0) for item in items]
    keys += [(item.id, item.tenant, 1) for item in missing]
    order = ordered(keys)
    if isinstance(order, range):
        everything: Sequence[Row] = [*items, *missing] if missing else items
        owner: Sequence[int] = [*owners, *(-1 for _ in missing)] if missing else owners
        rank = None
    else:
        together: Sequence[Row] = [*items, *missing]
        everything = [together[n] for n in order]
        owner = [owners[n] if n < len(items) else -1 for n in order]
        rank = numbers([n + 1 for n in order], whole=True)
    policies = NO_POLICIES if plain else _policies(everything)
    contributes = None
    if not all(item.contributes for item in items):
        contributes = numbers([row.contributes for row in everything])
    columns = (rank, numbers(owner), *_columns(everything, plain))
    return ItemRows(order, owner, columns, plain, policies, contributes)


class Placeholder:
    """Stands for an id that is waited for: a row without a type, which is stored only if the id does not
    exist."""

    type = queue = lane = parent = workflow = workflow_type = key = lease_to = None
    attempts = run_at = expires_in = deadline = keep_dead = input = options = None
    priority = need = 0
    delay = keep = 0.0
    after: tuple[str, ...] = ()
    counting = "success"
    key_scope = "open"
    contributes = True
    key_policy = "existing"
    debounce_max = None

    __slots__ = ("id", "tenant")

    def __init__(self, tenant: str, id: str) -> None:
        self.tenant = tenant
        self.id = id


Row: TypeAlias = Item | Placeholder


def _placeholders(items: Sequence[Item], owners: Sequence[int]) -> list[Placeholder]:
    """One for each id that is waited for and may not be among these items. For an item with a key an earlier
    one may answer, and then only items of the same request mean that one."""
    sure: dict[Ref, int | None] = {}
    for item, owner in zip(items, owners, strict=True):
        sure[item.tenant, item.id] = None if item.key is None else owner
    # Without a placeholder, the store refuses what waits for an id that does not exist.
    must_exist = {(item.tenant, id_of(name)) for item in items for name in item.must_exist}
    named: dict[Ref, None] = {}
    for item, owner in zip(items, owners, strict=True):
        for name in item.after:
            ref = item.tenant, id_of(name)
            if ref not in must_exist and (ref not in sure or sure[ref] not in (None, owner)):
                named[ref] = None
    return [Placeholder(*ref) for ref in named]


def ordered(keys: Sequence[Any]) -> Sequence[int]:
    """The indexes of these keys in sorted order; a range if they are sorted already."""
    if all(map(lt, keys, islice(keys, 1, None))):
        return range(len(keys))
    return sorted(range(len(keys)), key=keys.__getitem__)


def _columns(rows: Sequence[Row], plain: bool) -> tuple[object, ...]:
    return (
        names([row.id for row in rows], whole=True),
        names([row.tenant for row in rows]),
        names([row.type for row in rows]),
        names([row.queue for row in rows]),
        names([row.lane for row in rows]),
        numbers([row.priority for row in rows]),
        numbers([row.attempts for row in rows]),
        numbers([row.run_at for row in rows]),
        numbers([row.delay for row in rows]),
        numbers([row.deadline for row in rows]),
        numbers([row.expires_in for row in rows]),
        names([row.parent for row in rows]),
        names([row.workflow for row in rows]),
        names([row.workflow_type for row in rows]),
        None if plain else names([joined(row.after) if row.after else None for row in rows]),
        numbers([row.need for row in rows]),
        None if plain else numbers([int(row.counting == "done") for row in rows]),
        None if plain else names([row.key for row in rows]),
        None if plain else numbers([_scope(each) for each in shortened([row.key_scope for row in rows])]),
        numbers([row.keep for row in rows]),
        numbers([row.keep_dead for row in rows]),
        data([row.input for row in rows]),
        data([row.options for row in rows]),
    )


def _policies(rows: Sequence[Row]) -> tuple[object, object]:
    codes = [KEY_POLICY_CODES[row.key_policy] for row in rows]
    if not any(codes):
        return NO_POLICIES
    return numbers(codes), numbers([row.debounce_max for row in rows])


def _scope(scope: str | float) -> float:
    if scope == "open":
        return OPEN_SCOPE
    return ANY_SCOPE if scope == "any" else max(0.0, float(scope))


def id_of(name: str) -> str:
    """The id in a name of `after`, which may mean an item or a group."""
    return name.removeprefix(GROUP_MARK)


def circular(items: Sequence[Item], group: str | None = None) -> bool:
    """Whether these items seem to wait for each other. The store decides: some prerequisites may have
    ended. A group waits for its members. `group`: the group that they join, if they name no other; None: each
    is the root of its own."""
    blocked: dict[Ref, Item] = {}
    named: dict[Ref, list[Ref]] = {}
    """What a name stands for, as far as it is blocked: an item, or the members of a group."""
    for item in items:
        if item.after:
            ref = item.tenant, item.id
            blocked[ref] = item
            named.setdefault(ref, []).append(ref)
            joined = item.group_id or group or item.id
            named.setdefault((item.tenant, GROUP_MARK + joined), []).append(ref)
    if not any((item.tenant, name) in named for item in blocked.values() for name in item.after):
        return False

    def waits_for(ref: Ref) -> list[Ref]:
        return [found for name in blocked[ref].after for found in named.get((ref[0], name), ())]

    return find_cycle(blocked, waits_for) is not None


def marks(items: Sequence[Item]) -> tuple[set[object], set[object]]:
    """The names that earlier requests of the same call must not have, and the names that later ones must not.

    A request with an id or a key of an earlier one must see what became of that one. So must a request with a
    blocked item that an earlier one waits for. An id that must exist has no placeholder in its call."""
    if len(items) == 1 and items[0].key is None and not items[0].after:
        refs: set[object] = {(items[0].tenant, items[0].id)}
        return refs, refs
    refs = {(item.tenant, item.id) for item in items}
    refs |= {(item.tenant, item.type, item.key) for item in items if item.key is not None}
    named: set[object] = {(item.tenant, id_of(name), "waited for") for item in items for name in item.after}
    blocked: set[object] = {(item.tenant, item.id, "waited for") for item in items if item.after}
    old = {(item.tenant, id_of(name)) for item in items for name in item.must_exist}
    new = {(item.tenant, id_of(name)) for item in items for name in item.after} - old
    must_exist: set[object] = {(*ref, "must exist") for ref in old}
    may_come: set[object] = {(*ref, "may come") for ref in new}
    return refs | blocked | {(*ref, "may come") for ref in old} | {(*ref, "must exist") for ref in new}, (
        refs | named | must_exist | may_come
    )


def waves(marked: Iterable[tuple[set[object], set[object]]]) -> Iterator[list[int]]:
    """Which requests may go in one call, given the marks of each: none may depend on another of the call."""
    wave: list[int] = []
    seen: set[object] = set()
    for n, (before, after) in enumerate(marked):
        if not before.isdisjoint(seen):
            yield wave
            wave, seen = [], set()
        seen |= after
        wave.append(n)
    if wave:
        yield wave


def fit_in_one_call(sizes: Iterable[int]) -> bool:
    """Whether requests of these sizes need not be split into portions."""
    return sum(sizes) <= MOST_BYTES


def portions(wave: list[int], sizes: Callable[[int], int]) -> Iterator[list[int]]:
    """Split a wave into calls of about `MOST_BYTES` at most, given the bytes of each request. A request is
    never split: `BackendError` if it is larger than the server takes."""
    portion: list[int] = []
    total = 0
    for n in wave:
        size = sizes(n)
        if size > LARGEST:
            raise BackendError(
                f"PostgreSQL takes at most {LARGEST} bytes in one step, and these items have {size}: submit "
                "them in several steps, or pass references to large data"
            )
        if portion and total + size > MOST_BYTES:
            yield portion
            portion, total = [], 0
        portion.append(n)
        total += size
    if portion:
        yield portion


def bytes_of(items: Sequence[Item], *, alike: bool = False) -> int:
    """alike: their options are the same."""
    inputs = sum(map(len, map(_input, items)))
    return inputs + (len(items) * len(items[0].options) if alike else sum(map(len, map(_options, items))))
