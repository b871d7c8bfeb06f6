"""A model of the move of a tenant between two stores, there and back, while everything else goes on.

Clients submit, workers claim and settle, operators requeue and delete, workers die, movers crash, several
movers work on one move, and answers are lost. Each method of `Store` is one step of one store. A mover is a
program whose memory is lost when it crashes: anything may happen between two of its steps.

    old store: owned --start--> owned, move m --freeze--> frozen, f --commit(m, f)--> away    the decision
                                              <-- thaw, when its time is over --
    new store: away --prepare(m)--> importing m --begin_copy(m, f)--> importing m, f --activate(m, f)--> owned

**One number decides.** Each store has one for the tenant. `start` and `freeze` raise it, and it goes along.
So no two moves and no two freezes have the same, wherever the tenant has been. Each step of a mover names the
number that it got, and a store refuses all that is older than its own. So no store keeps a list of moves that
are over, and a new move takes the place of what an old one has left.

What is not needed: home may have an old place, since each store says where the tenant went. And workers that
die while a tenant is frozen may be noticed or not: the new store finds out by itself.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from treadle.records import TenantMark, TenantState
from treadle.store.rules.tenant_moves import (
    Refusal,
    activated,
    committed,
    copying,
    discarded,
    frozen,
    given_up,
    keeps_ahead,
    may_come_ahead,
    may_forget,
    may_take,
    prepared,
    refusal,
    started,
    thawed,
)


class Planted(NamedTuple):
    """A mistake that the checks must find."""

    what: str
    seed: int
    """Of a walk that finds it: `python -m tests.model.move` looks for them anew."""


MISTAKES: Final = {
    "a commit with any freeze": Planted("a commit does not look at the number of the freeze", 909),
    "a copy from any freeze": Planted("records are taken that were read under another freeze", 93),
    "active too early": Planted("the new store owns the tenant before the decision", 0),
    "a thaw after the decision": Planted("a tenant that has moved can be thawed", 0),
    "no settled tokens": Planted("the tokens that settled an item do not go along", 46),
    "running as ready": Planted("a running item is copied as a ready one", 0),
    "a change that is not noted": Planted("what changes is not read again if it was copied ahead", 25),
    "an early copy stays": Planted("what has changed since it was copied ahead is not dropped", 25),
    "ahead of another move": Planted("what was read ahead is not forgotten when its move ends", 0),
    "early counters": Planted("the counters of groups are those from before the freeze", 10),
    "discard first": Planted("giving up empties the new store before it ends the move at the old one", 156),
    "settled while frozen": Planted("a frozen tenant takes settlements", 21),
    "claimed while frozen": Planted("items of a frozen tenant are handed out", 2),
    "tokens alike": Planted("two stores give the same tokens", 91),
    "forget anything": Planted("what is forgotten may be the tenant that came back", 46),
    "home too early": Planted("home names the new store before the decision", 1),
    "started again": Planted("a move that was given up can be started again", 431),
    "prepared again": Planted("a store takes a move that is older than what it knows", 77),
    "a discard without a trace": Planted("a store that discards forgets that the tenant had gone", 1),
    "reads while away": Planted("a store answers reads about a tenant that it is forgetting", 2),
    "numbers that stay": Planted("the number does not go along", 0),
}

Token: TypeAlias = tuple[str, int]
Status: TypeAlias = Literal["ready", "running", "ended"]
NOW: Final = 0.0
"""Freezes thaw when a walk says so."""
GROUPS: Final = 3
MEMBERS: Final = 2
WORKERS: Final = 2


replace_mark: Final = msgspec.structs.replace


class Mistake(AssertionError):
    """The protocol, or a planted mistake, has broken a promise."""


@dataclass(frozen=True)
class Row:
    status: Status = "ready"
    token: Token | None = None
    worker: int | None = None
    settled: tuple[Token, ...] = ()
    claim: int = 0
    """Which claim it was: for the checks only."""


class Item(NamedTuple):
    group: int
    member: int


@dataclass
class Content:
    """What a store holds of the tenant."""

    rows: dict[Item, Row] = field(default_factory=dict[Item, Row])
    open: dict[int, int] = field(default_factory=dict[int, int])
    """By group: how many of its items are open."""

    def copy(self) -> Content:
        return Content(dict(self.rows), dict(self.open))

    def put(self, group: int, source: Content, planted: str) -> None:
        self.open[group] = source.open[group]
        for member in range(MEMBERS):
            self.rows[Item(group, member)] = exported(source.rows[Item(group, member)], planted)

    def remove(self, group: int) -> None:
        self.open.pop(group, None)
        for member in range(MEMBERS):
            self.rows.pop(Item(group, member), None)


@dataclass
class Store:
    name: str
    planted: str
    mark: TenantMark | None = None
    """None: the store has never heard of the tenant, so no one may ask it for the tenant."""
    content: Content = field(default_factory=Content)
    staged: Content = field(default_factory=Content)
    came_ahead: set[int] = field(default_factory=set[int])
    """Groups that were staged before the freeze."""
    was_read: Content = field(default_factory=Content)
    """What was read of it before the freeze: in stores a digest."""
    changed: set[int] = field(default_factory=set[int])
    """Groups that have changed since they were read."""
    tokens: int = 0

    @property
    def state(self) -> TenantState | None:
        return None if self.mark is None else self.mark.state

    @property
    def number(self) -> int:
        return 0 if self.mark is None else self.mark.number

    @property
    def move(self) -> int:
        return 0 if self.mark is None else self.mark.move

    @property
    def to(self) -> str:
        return "" if self.mark is None else self.mark.to

    def _put(self, mark: TenantMark | None) -> bool:
        """Take a mark, unless the step is refused."""
        if mark is None:
            return False
        if not keeps_ahead(self.mark, mark) and self.planted != "ahead of another move":
            self.was_read, self.changed, self.came_ahead = Content(), set(), set()
        self.mark = mark
        return True

    def _change(self, group: int) -> None:
        """What has ended changes."""
        if group in self.was_read.open and self.planted != "a change that is not noted":
            self.changed.add(group)

    # -- what clients, workers and operators call ------------------------------------------------------

    def refusal(self) -> Refusal | None:
        if self.mark is None:
            raise Mistake(f"{self.name} was asked for a tenant that it never had")
        return refusal(self.mark, NOW)

    def _unless(self, mistake: str) -> Refusal | None:
        refused = self.refusal()
        return None if self.state == "frozen" and self.planted == mistake else refused

    def submit(self, group: int) -> Refusal | None:
        """One step. A repetition is recognised by its id."""
        if refused := self.refusal():
            return refused
        if group not in self.content.open:
            self.content.open[group] = MEMBERS
            self.content.rows.update({Item(group, member): Row() for member in range(MEMBERS)})
        return None

    def read(self, group: int) -> Refusal | bool:
        """Whether it is there. A frozen tenant can be read."""
        if self.state in ("away", "importing") and not (
            self.state == "away" and self.planted == "reads while away"
        ):
            return "away" if self.state == "away" else "locked"
        return group in self.content.open

    def claim(self, worker: int, number: int) -> tuple[Item, Token] | None:
        """The oldest ready item. Workers ask all stores, also those that never had the tenant."""
        if self.mark is None or self._unless("claimed while frozen"):
            return None
        item = next((item for item, row in self.content.rows.items() if row.status == "ready"), None)
        if item is None:
            return None
        self.tokens += 1
        token = "one" if self.planted == "tokens alike" else self.name, self.tokens
        row = self.content.rows[item]
        self.content.rows[item] = replace(row, status="running", token=token, worker=worker, claim=number)
        return item, token

    def settle(self, item: Item, token: Token) -> Refusal | Literal["applied", "again", "stale"]:
        if refused := self._unless("settled while frozen"):
            return refused
        row = self.content.rows.get(item)
        if row is None:
            return "stale"
        if row.status != "running" or row.token != token:
            return "again" if token in row.settled else "stale"
        self.content.rows[item] = Row("ended", settled=(*row.settled, token), claim=row.claim)
        self.content.open[item.group] -= 1
        return "applied"

    def free(self, worker: int) -> list[Item]:
        """The worker is dead: what it was running is ready again."""
        if self.mark is None or self.refusal():
            return []
        found = [item for item, row in self.content.rows.items() if row.worker == worker]
        for item in found:
            row = self.content.rows[item]
            self.content.rows[item] = replace(row, status="ready", token=None, worker=None)
        return found

    def requeue(self, item: Item) -> bool:
        row = self.content.rows.get(item)
        if self.mark is None or self.refusal() or row is None or row.status != "ended":
            return False
        self._change(item.group)
        self.content.rows[item] = replace(row, status="ready")
        self.content.open[item.group] += 1
        return True

    def delete(self, group: int) -> bool:
        if self.mark is None or self.refusal() or self.content.open.get(group) != 0:
            return False
        self._change(group)
        self.content.remove(group)
        return True

    # -- what movers call at the old store -------------------------------------------------------------

    def start(self, seen: int, to: str) -> int | None:
        """The number of the move that has begun."""
        assert self.mark is not None
        mark = replace_mark(self.mark, number=seen) if self.planted == "started again" else self.mark
        return self.move if self._put(started(mark, seen, to)) else None

    def read_ahead(self, move: int, group: int) -> Content | None:
        """A group that has ended. From now on its changes are noted."""
        if self.move != move or self.content.open.get(group) != 0 or group in self.changed:
            return None
        self.was_read.put(group, self.content, self.planted)
        return self.content.copy()

    def freeze(self, move: int) -> int | None:
        """The number of the freeze."""
        assert self.mark is not None
        return self.mark.freeze if self._put(frozen(self.mark, move, NOW, NOW + 1)) else None

    def thaw(self) -> None:
        """Its time is over."""
        if self.mark is None:
            return
        if self.state == "away" and self.mark.freeze and self.planted == "a thaw after the decision":
            self.mark = replace_mark(self.mark, state="owned")
        self.mark = thawed(self.mark, NOW + 2)

    def commit(self, move: int, freeze: int) -> bool:
        assert self.mark is not None
        if self.planted == "a commit with any freeze":
            freeze = self.mark.freeze
        return self._put(committed(self.mark, move, freeze, NOW))

    def give_up(self, move: int) -> bool:
        assert self.mark is not None
        number = self.number
        done = self._put(given_up(self.mark, move))
        if self.planted == "started again":
            self.mark = replace_mark(self.mark, number=number)
        return done

    def forget(self, number: int) -> bool:
        """A portion of what has moved. False: nothing is left, or it is another matter by now."""
        fits = self.mark is not None and may_forget(self.mark, number)
        if not (fits or self.planted == "forget anything") or not self.content.open:
            return False
        self.content.remove(next(iter(self.content.open)))
        return True

    # -- what movers call at the new store -------------------------------------------------------------

    def prepare(self, move: int) -> bool:
        before = self.mark
        known = before
        if before is not None and self.planted == "prepared again":
            known = replace_mark(before, number=0)
        done = self._put(prepared(known, move, is_empty=not self.content.open))
        if done and self.mark != before:
            self.staged = Content()
        return done

    def begin_copy(self, move: int, freeze: int) -> bool:
        """From now on records of this freeze. What came ahead stays."""
        before = self.mark
        if before is None or not self._put(copying(before, move, freeze)):
            return False
        if freeze != before.freeze:
            for group in self.staged.open.keys() - self.came_ahead:
                self.staged.remove(group)
        return True

    def take_ahead(self, move: int, group: int, source: Content) -> bool:
        if self.move != move or not may_come_ahead(self.mark):
            return False
        self.staged.put(group, source, self.planted)
        self.came_ahead.add(group)
        return True

    def drop_ahead(self, move: int, freeze: int, groups: set[int]) -> bool:
        if self.mark is None or not may_take(self.mark, move, freeze):
            return False
        for group in groups & self.came_ahead:
            self.staged.remove(group)
            self.came_ahead.remove(group)
        return True

    def take(self, move: int, freeze: int, group: int, source: Content) -> bool:
        if self.mark is not None and self.planted == "a copy from any freeze":
            freeze = self.mark.freeze
        if self.mark is None or not may_take(self.mark, move, freeze):
            return False
        self.staged.put(group, source, self.planted)
        return True

    def activate(self, move: int, freeze: int) -> None:
        if self.mark is not None and self._put(activated(self.mark, move, freeze)):
            self.content = self.staged.copy()
            if self.planted == "numbers that stay":
                self.mark = replace_mark(self.mark, number=move)

    def discard(self, move: int) -> None:
        if self.mark is not None and self.state == "importing" and self.move == move:
            self.staged = Content()
            if self.planted == "a discard without a trace":
                self.mark = replace_mark(self.mark, state="owned", move=0)
        self._put(discarded(self.mark, move))


@dataclass
class Home:
    """Where the tenant is, for processes that start."""

    place: str = "A"


Program: TypeAlias = Generator[None]


def exported(row: Row, planted: str) -> Row:
    if planted == "no settled tokens":
        row = replace(row, settled=())
    if planted == "running as ready" and row.status == "running":
        row = replace(row, status="ready", token=None, worker=None)
    return row


def mover(home: Home, old: Store, new: Store, planted: str) -> Program:
    """Begins a move, or goes on with one. `yield`: here it may be held up, or crash."""
    if old.state in ("owned", "frozen"):
        move, seen = old.move, old.number
        yield
        if not move:
            started = old.start(seen, new.name)
            if started is None:
                return
            move = started
            yield
        if planted == "home too early":
            home.place = new.name
        freeze = yield from _copied(old, new, move, planted)
        if freeze is None:
            return
        yield
        if not old.commit(move, freeze):
            return
        yield
    elif old.state != "away" or old.to != new.name:
        return
    move, number = old.move, old.number
    yield
    new.activate(move, number)
    yield
    if new.state == "owned" or new.number > number:
        home.place = new.name
        yield
        while old.forget(number):
            yield


def _copied(old: Store, new: Store, move: int, planted: str) -> Generator[None, None, int | None]:
    """Copy all, and compare. The freeze under which the rest was read."""
    if not new.prepare(move):
        return None
    yield
    early = old.content.copy()
    yield from _copied_ahead(old, new, move)
    freeze = old.freeze(move)
    if freeze is None:
        return None
    yield
    frozen = old.content.copy()
    if planted == "early counters":
        frozen.open = {group: early.open.get(group, open) for group, open in frozen.open.items()}
    wanted, changed = old.was_read.copy(), old.changed.copy()
    for group in changed:
        wanted.remove(group)
    rest = [group for group in frozen.open if group not in wanted.open]
    for group in rest:
        wanted.put(group, frozen, planted)
    yield
    if not new.begin_copy(move, freeze):
        return None
    yield
    if planted != "an early copy stays" and not new.drop_ahead(move, freeze, changed):
        return None
    for group in rest:
        yield
        if not (planted == "an early copy stays" and group in new.staged.open):
            new.take(move, freeze, group, frozen)
    yield
    if planted == "active too early":
        new.activate(move, freeze)
        yield
    if planted not in ("an early copy stays", "a copy from any freeze", "early counters") and (
        new.staged != wanted or not new.mark or new.mark.freeze != freeze
    ):
        # Another mover may have read what it could not copy ahead any more. A new move begins anew.
        yield from aborter(old, new, planted)
        return None
    return freeze


def _copied_ahead(old: Store, new: Store, move: int) -> Program:
    """What has ended, which is most of what a tenant has, group by group. A move that is gone on with after a
    freeze copies nothing ahead any more."""
    if not may_come_ahead(new.mark):
        return
    for group in range(GROUPS):
        found = old.read_ahead(move, group)
        yield
        if found is not None and not new.take_ahead(move, group, found):
            return
        yield


def aborter(old: Store, new: Store, planted: str) -> Program:
    """Gives up the move that it finds. The old store ends it first."""
    move = old.move
    if not move or old.state not in ("owned", "frozen"):
        return
    yield
    if planted == "discard first":
        new.discard(move)
        yield
        old.give_up(move)
    elif old.give_up(move):
        yield
        new.discard(move)


@dataclass
class Held:
    """A lease, as its worker knows it."""

    item: Item
    token: Token
    store: str
    claim: int


class World:
    def __init__(self, seed: int, planted: str = "") -> None:
        self.random = random.Random(seed)
        self.planted = planted
        self.stores = {name: Store(name, planted) for name in "AB"}
        self.stores["A"].mark = TenantMark()
        self.home = Home()
        self.programs: list[Program] = []
        self.known = ["A"] * (WORKERS + 1)
        """Where each worker, and the client, believes that the tenant is. They learn by being refused."""
        self.acknowledged: set[int] = set()
        self.deleted: set[int] = set()
        self.held: list[list[Held]] = [[] for _ in range(WORKERS)]
        self.claims = 0
        self.may_begin: Counter[Item] = Counter()
        """How often an item may begin: once, once more for each death of its worker and each requeue."""
        self.begun: Counter[Item] = Counter()
        self.may_end: Counter[Item] = Counter()
        self.ended: Counter[Item] = Counter()
        self.opened: Counter[int] = Counter()
        self.closed: Counter[int] = Counter()
        self.excused: set[Item] = set()
        """Items whose settlements may be refused: their worker was found dead, or they were deleted."""

    # -- one step --------------------------------------------------------------------------------------

    def step(self) -> None:
        steps: list[tuple[Callable[[], None], int]] = [
            *((self.submit, 10), (self.claim, 18), (self.settle, 20), (self.read, 4), (self.go_on, 34)),
            *((self.begin_move, 4), (self.give_up, 2), (self.thaw, 3), (self.crash, 2)),
            *((self.die, 2), (self.requeue, 2), (self.delete, 1), (self.restart, 1)),
        ]
        (chosen,) = self.random.choices([one for one, _ in steps], [weight for _, weight in steps])
        chosen()
        self.check()

    def submit(self) -> None:
        group = self.random.randrange(GROUPS)
        if group in self.acknowledged | self.deleted:
            return
        store = self.stores[self.known[WORKERS]]
        new = group not in store.content.open
        refused = store.submit(group)
        if refused:
            self.learn(WORKERS, refused, store)
            return
        if new:
            self.opened[group] += 1
            self.may_begin.update(Item(group, member) for member in range(MEMBERS))
            self.may_end.update(Item(group, member) for member in range(MEMBERS))
        if self.random.random() < 0.8:  # otherwise the answer is lost, and the client repeats it
            self.acknowledged.add(group)

    def read(self) -> None:
        store = self.stores[self.known[WORKERS]]
        for group in self.acknowledged - self.deleted:
            found = store.read(group)
            if isinstance(found, str):
                self.learn(WORKERS, found, store)
                return
            if not found:
                raise Mistake(f"a reader did not find the group {group} in {store.name}")

    def claim(self) -> None:
        worker = self.random.randrange(WORKERS)
        store = self.random.choice(list(self.stores.values()))  # a worker asks all stores
        self.claims += 1
        found = store.claim(worker, self.claims)
        if found is not None:
            self.begun[found[0]] += 1
            self.held[worker].append(Held(*found, store.name, self.claims))

    def settle(self) -> None:
        worker = self.random.randrange(WORKERS)
        if not self.held[worker]:
            return
        held = self.random.choice(self.held[worker])
        store = self.stores[held.store]
        answer = store.settle(held.item, held.token)
        match answer:
            case "locked" | "away":
                self.learn(worker, answer, store)
                if answer == "away":
                    held.store = self.known[worker]
                return
            case "applied":
                self.applied(held, store)
                if self.random.random() < 0.3:
                    return  # the answer is lost, and the worker repeats it
            case "stale" if held.item not in self.excused:
                raise Mistake(f"the settlement of {held.item} was refused without a reason")
            case _:
                pass
        self.held[worker].remove(held)

    def applied(self, held: Held, store: Store) -> None:
        if store.content.rows[held.item].claim != held.claim:
            raise Mistake(f"{held.item} was ended by the token of another claim")
        self.ended[held.item] += 1
        if not store.content.open[held.item.group]:
            self.closed[held.item.group] += 1

    def learn(self, who: int, refused: Refusal, store: Store) -> None:
        """Go where a store says that the tenant went, and finish the move if its mover has not."""
        if refused == "away":
            self.known[who] = store.to or self.home.place
            if store.to and store.move:
                self.stores[store.to].activate(store.move, store.number)

    # -- movers ----------------------------------------------------------------------------------------

    def begin_move(self) -> None:
        if len(self.programs) < 3:
            old, new = self.random.sample(list(self.stores.values()), 2)
            self.programs.append(mover(self.home, old, new, self.planted))

    def give_up(self) -> None:
        if len(self.programs) < 3:
            old, new = self.random.sample(list(self.stores.values()), 2)
            self.programs.append(aborter(old, new, self.planted))

    def go_on(self) -> None:
        """Let one go some steps further. The others may be held up for long."""
        if self.programs:
            program = self.random.choice(self.programs)
            for _ in range(self.random.choice((1, 1, 2, 12))):
                if next(program, "over") == "over":
                    self.programs.remove(program)
                    return
                self.check()

    def crash(self) -> None:
        if self.programs:
            self.programs.remove(self.random.choice(self.programs))

    def thaw(self) -> None:
        for store in self.stores.values():
            store.thaw()

    # -- what else happens -----------------------------------------------------------------------------

    def die(self) -> None:
        worker = self.random.randrange(WORKERS)
        for store in self.stores.values():
            for item in store.free(worker):
                self.may_begin[item] += 1
                self.excused.add(item)

    def requeue(self) -> None:
        item = Item(self.random.randrange(GROUPS), self.random.randrange(MEMBERS))
        for store in self.stores.values():
            was_done = store.content.open.get(item.group) == 0
            if store.requeue(item):
                self.may_begin[item] += 1
                self.may_end[item] += 1
                self.opened[item.group] += was_done

    def delete(self) -> None:
        group = self.random.randrange(GROUPS)
        if True in [store.delete(group) for store in self.stores.values()]:
            self.deleted.add(group)
            self.excused |= {Item(group, member) for member in range(MEMBERS)}

    def restart(self) -> None:
        """A client's process starts, and asks home."""
        self.known[WORKERS] = self.home.place

    # -- what must hold --------------------------------------------------------------------------------

    def check(self) -> None:
        owners = [store for store in self.stores.values() if store.state in ("owned", "frozen")]
        if len(owners) > 1:
            raise Mistake("both stores own the tenant")
        for item, times in self.begun.items():
            if times > self.may_begin[item]:
                raise Mistake(f"{item} ran twice")
        for item, times in self.ended.items():
            if times > self.may_end[item]:
                raise Mistake(f"{item} ended twice")
        for group, times in self.closed.items():
            if times > self.opened[group]:
                raise Mistake(f"the group {group} closed twice")
        for store in owners:
            for group, open in store.content.open.items():
                rows = [store.content.rows.get(Item(group, member)) for member in range(MEMBERS)]
                if open != sum([row is not None and row.status != "ended" for row in rows]):
                    raise Mistake(f"the counter of group {group} is not its recount")

    def finish(self) -> None:
        """Nothing goes wrong any more: movers come to their ends, the tenant can be moved once more, and its
        work is done."""
        for _ in range(500):
            if not self.programs:
                break
            self.go_on()
        self.thaw()
        self.complete()
        old = self.owner()
        self.find_from_home(old)
        new = next(store for store in self.stores.values() if store is not old)
        while new.forget(new.number):
            pass
        for _ in range(2):  # the first may be told that something has happened meanwhile
            for _ in mover(self.home, old, new, self.planted):
                self.check()
        if self.owner() is not new:
            raise Mistake("the tenant cannot be moved any more")
        self.work_off(new)

    def complete(self) -> None:
        """Whoever asks for the tenant finishes a move that was decided."""
        for store in self.stores.values():
            if store.state == "away" and store.to and store.move:
                self.stores[store.to].activate(store.move, store.number)

    def find_from_home(self, owner: Store) -> None:
        place = self.stores[self.home.place]
        for _ in self.stores:
            if place is owner:
                return
            place = self.stores.get(place.to, place)
        raise Mistake("who asks home does not find the tenant")

    def owner(self) -> Store:
        owners = [store for store in self.stores.values() if store.state == "owned"]
        if len(owners) != 1:
            raise Mistake(f"{len(owners)} stores own the tenant at the end")
        return owners[0]

    def work_off(self, store: Store) -> None:
        for worker in range(WORKERS):
            for item in store.free(worker):
                self.may_begin[item] += 1
        while (found := store.claim(0, 0)) is not None:
            self.begun[found[0]] += 1
            store.settle(*found)
            self.applied(Held(*found, store.name, 0), store)
            self.check()
        for group in self.acknowledged - self.deleted:
            if group not in store.content.open:
                raise Mistake(f"the group {group} is lost")
            if self.closed[group] != self.opened[group]:
                raise Mistake(f"the group {group} opened {self.opened[group]} times, and closed otherwise")


def walk(seed: int, planted: str = "", steps: int = 150) -> World:
    """Random steps, all of them from the seed. `Mistake` if a promise was broken."""
    world = World(seed, planted)
    for _ in range(steps):
        world.step()
    world.finish()
    return world


def found_after(planted: str, walks: int) -> int | None:
    """How many walks find a planted mistake. None: that many do not."""
    for seed in range(walks):
        try:
            walk(seed, planted)
        except Mistake:
            return seed + 1
    return None


def main() -> None:
    """Look for the seeds anew."""
    for planted, (what, _) in MISTAKES.items():
        found = found_after(planted, 20_000)
        sys.stdout.write(f"{planted}: {'NOT FOUND' if found is None else found - 1}: {what}\n")


if __name__ == "__main__":
    main()
