"""Groups and workflows: their items as a graph, in layers from left to right.

An item stands to the right of everything that it waits for, and of the item that queued it. Many siblings of
one type and status are one node that says how many they are, and so are many links of a chain.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec

from treadle.base.wording import plain
from treadle.bulk_action import BULK_TYPE
from treadle.codec.json_codec import read_value
from treadle.dashboard.access import Action, not_there
from treadle.dashboard.payloads import read_payload
from treadle.dashboard.views import View
from treadle.dashboard.visit import Visit
from treadle.define.condition import GroupRef, shown_names, waits_for
from treadle.item import GroupState, ItemState, Status
from treadle.logs.masking import MASK
from treadle.operate.item_json import exact_json, member_json
from treadle.store.reads import group_members

MOST_ITEMS: Final = 5_000
"""Items of a group or workflow that are read, the oldest."""
MOST_BYTES: Final = 16_384
"""Largest input that is decoded for its first argument."""
MOST_ROWS: Final = 100
"""Nodes in the list below the graph."""
FIRST: Final = ("dead", "running")
"""Statuses that are listed first."""


class GraphPage(msgspec.Struct, frozen=True):
    id: str
    title: str
    """`group` or `workflow`."""
    tenant: str
    counts: dict[Status, int]
    more: bool
    """There are more items than were read."""
    started_at: float | None
    ended_at: float | None
    graph: Graph
    items: list[ItemState]
    labels: dict[str, str]
    """By the key of a node: the key of its item, or its first argument. Empty: it has neither, it stands for
    several, or this visitor sees no payloads."""
    rows: list[Node]
    """Some of the nodes as a list: first what failed, then what runs."""
    group: dict[str, Any] | None = None
    """The state of the group."""
    verbs: list[Action] = []
    """What can be done with it."""


async def read_group(visit: Visit) -> GraphPage:
    id, client = visit.part("id"), visit.item_client
    # As the store has it: the stored value names its type, which says what is secret.
    group = await client.group(id, decode=False)
    if group is None:
        raise not_there(f"there is no group {id!r}")
    items, more = await group_members(client.backend, (group.tenant, id), MOST_ITEMS)
    page = await asyncio.to_thread(_page, visit, id, "group", group.tenant, items, more)
    facts = await read_value(group.value, group_facts, visit, group)
    return msgspec.structs.replace(page, group=facts, verbs=group_verbs(group))


async def read_workflow(visit: Visit) -> GraphPage:
    name = visit.part("id")
    first = await visit.item_client.list(workflow=name, limit=1, oldest_first=True)
    if not first.items:
        raise not_there(f"there is no workflow {name!r}")
    tenant = first.items[0].tenant
    client = visit.client_of(tenant)
    found = await client.list(workflow=name, limit=MOST_ITEMS, oldest_first=True)
    more = found.cursor is not None
    return await asyncio.to_thread(_page, visit, name, "workflow", tenant, found.items, more)


def _page(
    visit: Visit, id: str, title: str, tenant: str, items: Sequence[ItemState], more: bool
) -> GraphPage:
    """What is shown of items of one tenant."""
    counts: dict[Status, int] = {}
    for item in items:
        counts[item.status] = counts.get(item.status, 0) + 1
    starts = [item.queued_at for item in items]
    ends = [item.ended_at for item in items if item.ended_at is not None]
    graph, by_id = graph_of(items), {item.id: item for item in items}
    nodes = [placed.node for placed in graph.nodes]
    single = {node.key: by_id.get(node.ids[0]) if node.count == 1 else None for node in nodes}
    return GraphPage(
        id=id,
        title=title,
        tenant=tenant,
        counts=counts,
        more=more,
        started_at=min(starts, default=None),
        ended_at=max(ends) if ends and len(ends) == len(items) else None,
        graph=graph,
        items=list(items),
        labels={key: "" if item is None else label_of(visit, item) for key, item in single.items()},
        rows=sorted(nodes, key=_rank)[:MOST_ROWS],
    )


def _rank(node: Node) -> int:
    return FIRST.index(node.status) if node.status in FIRST else len(FIRST)


def label_of(visit: Visit, item: ItemState) -> str:
    """What tells an item from others of its type."""
    if item.key or not visit.access.payloads or len(item.input) > MOST_BYTES:
        return item.key or ""
    value, _ = read_payload(visit, item, "input")
    values = list(cast("dict[str, object]", value).values()) if isinstance(value, dict) else []
    first = values[0] if values else None
    return plain(str(first)) if isinstance(first, str | int | float) and first != MASK else ""


def group_verbs(group: GroupState) -> list[Action]:
    """What can be done with a group as it is."""
    if group.type == BULK_TYPE:
        return []  # the page of the bulk action has what can be done
    verbs: list[Action] = ["requeue"] if group.failed else []
    return [*verbs, "cancel"] if group.open else verbs


def group_facts(visit: Visit, group: GroupState) -> dict[str, Any]:
    """What is shown of a group. Its value is a payload."""
    shown = visit.values.group(group)
    if visit.access.payloads:
        shown["value"] = exact_json(visit.site.secrets.masked(shown["value"]))
        return shown
    shown["value"] = None
    shown.pop("unreadable", None)
    named: list[dict[str, Any] | None] = [*shown["deaths"], shown["cancelled"]]
    for each in named:
        if each is not None:
            each["error"] = None
    return shown


def to_json(visit: Visit, page: GraphPage) -> dict[str, Any]:
    """The group or the workflow as `treadle group --json` has it: items, and what they come from and wait
    for."""
    hidden = {} if visit.access.payloads else {"error": None}
    return {
        **(page.group or {"id": page.id, "tenant": page.tenant}),
        "items": [{**member_json(item), **hidden} for item in page.items],
        "more": page.more,
    }


GROUP = View("/groups/{id}", "graph.html", read_group, "groups", to_json=to_json)
WORKFLOW = View("/workflows/{id}", "graph.html", read_workflow, "groups", to_json=to_json)


MOST_NODES: Final = 200
"""Items beyond which siblings are folded. If more nodes than this remain, links of chains are folded too."""
MOST_DRAWN: Final = 500
"""Nodes that are drawn, those that come first."""
MOST_EDGES: Final = 50_000
"""Edges that are looked at. Others are not drawn."""
NODE_WIDTH: Final = 190
NODE_HEIGHT: Final = 40
GAP_X: Final = 64
GAP_Y: Final = 14
MARGIN: Final = 8
SWEEPS: Final = 4

EdgeKind = Literal["after", "parent"]
NodeStatus = Status | Literal["missing"]


class Node(msgspec.Struct, frozen=True):
    """One item, or several alike."""

    key: str
    type: str
    status: NodeStatus
    group_id: str
    """The group of the item, or of all of them. Empty: they are in several."""
    ids: tuple[str, ...]
    """The item. Of several: up to 20."""
    count: int
    started_at: float | None = None
    ended_at: float | None = None
    closes: str | None = None
    """The nested group that it closes."""


class Edge(msgspec.Struct, frozen=True):
    source: str
    target: str
    kind: EdgeKind
    critical: bool = False


class PlacedNode(msgspec.Struct, frozen=True):
    node: Node
    x: float
    y: float
    critical: bool


class PlacedEdge(msgspec.Struct, frozen=True):
    edge: Edge
    path: str
    """The `d` of an SVG path."""


class Graph(msgspec.Struct, frozen=True):
    """What is drawn."""

    nodes: list[PlacedNode]
    edges: list[PlacedEdge]
    width: float
    height: float
    folded: int
    """How many items are in nodes that stand for several."""
    left_out: int = 0
    """How many items are not drawn, because there are too many nodes."""


def graph_of(items: Sequence[ItemState]) -> Graph:
    """Lay out items that have to do with each other."""
    edges = _edges(items)
    folds = _folds(items, edges) if len(items) > MOST_NODES else {item.id: item.id for item in items}
    nodes = _nodes(items, folds)
    missing = sorted({edge.source for edge in edges} - set(folds))
    for id in missing[:MOST_NODES]:
        nodes[id] = Node(id, "", "missing", "", (id,), 1)
    kept = _folded_edges(edges, folds, nodes)
    drawn_first = [key for layer in _layers(nodes, kept) for key in layer][:MOST_DRAWN]
    left_out = sum(node.count for node in nodes.values()) - sum(nodes[key].count for key in drawn_first)
    nodes = {key: nodes[key] for key in drawn_first}
    kept = [edge for edge in kept if edge.source in nodes and edge.target in nodes]
    critical = _critical_path(nodes, kept)
    kept = [msgspec.structs.replace(edge, critical=(edge.source, edge.target) in critical) for edge in kept]
    layers = _ordered(_layers(nodes, kept), kept)
    on_path = {key for pair in critical for key in pair}
    placed = _place(layers, nodes, on_path)
    positions = {each.node.key: each for each in placed}
    drawn = [PlacedEdge(edge, _path(positions[edge.source], positions[edge.target])) for edge in kept]
    tallest = max((len(layer) for layer in layers), default=0)
    return Graph(
        placed,
        drawn,
        2 * MARGIN + max(0, len(layers) * (NODE_WIDTH + GAP_X) - GAP_X),
        2 * MARGIN + max(0, tallest * (NODE_HEIGHT + GAP_Y) - GAP_Y),
        sum(node.count for node in nodes.values() if node.count > 1),
        left_out,
    )


# ----------------------------------------------------------------------------------------- nodes and edges


def _edges(items: Sequence[ItemState]) -> list[Edge]:
    """From what an item waits for, and from the item that queued it, unless it waits for that one too, or for
    another item that it queued."""
    parents = {item.id: item.parent for item in items}
    found: dict[tuple[str, str], Edge] = {}
    for item, sources in waits_for(items):
        if len(found) > MOST_EDGES:
            break
        for source in sources:
            found[source, item.id] = Edge(source, item.id, "after")
        parent = item.parent
        if parent in parents and not any(each == parent or parents.get(each) == parent for each in sources):
            found[parent, item.id] = Edge(parent, item.id, "parent")
    return list(found.values())


def _folds(items: Sequence[ItemState], edges: Sequence[Edge]) -> dict[str, str]:
    """By the id of an item: the key of its node."""
    by_id = {item.id: item for item in items}
    keys = _siblings(by_id, edges)
    return keys if len(set(keys.values())) <= MOST_NODES else _links(by_id, edges, keys)


def _siblings(by_id: Mapping[str, ItemState], edges: Sequence[Edge]) -> dict[str, str]:
    """Siblings have one key: of one type and status, queued by the same item, that wait for the same, and for
    which the same wait. What they wait for is compared by its node, so that long chains beside each other
    fold too, from the left to the right."""
    before: dict[str, set[str]] = defaultdict(set)
    after: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        before[edge.target].add(edge.source)
        after[edge.source].add(edge.target)
    keys: dict[str, str] = {}
    numbers: dict[tuple[str, ...], str] = {}  # short keys: those of later layers are made of them
    for layer in _layers(by_id, edges):
        for id in layer:
            item = by_id[id]
            sources = sorted({keys.get(source, source) for source in before[id]})
            ends = sorted({by_id[target].type for target in after[id] if target in by_id})
            alike = (*_kind(item), *sources, "", *ends)
            keys[id] = numbers.setdefault(alike, f"node {len(numbers)}")
    return keys


def _links(by_id: Mapping[str, ItemState], edges: Sequence[Edge], keys: Mapping[str, str]) -> dict[str, str]:
    """Links have one key: nodes of one kind, one after the other, with nothing else before or after them."""
    before: dict[str, set[str]] = defaultdict(set)
    after: dict[str, set[str]] = defaultdict(set)
    for edge in edges:
        source, target = keys.get(edge.source, edge.source), keys[edge.target]
        if source != target:
            before[target].add(source)
            after[source].add(target)
    kinds = {keys[id]: _kind(item) for id, item in by_id.items()}
    starts: dict[str, str] = {}
    for layer in _layers(by_id, edges):
        for key in dict.fromkeys(keys[id] for id in layer):
            (source,) = before[key] if len(before[key]) == 1 else ("",)
            is_link = kinds.get(source) == kinds[key] and len(after[source]) == 1
            starts.setdefault(key, starts.get(source, source) if is_link else key)
    return {id: starts[key] for id, key in keys.items()}


def _kind(item: ItemState) -> tuple[str, str, str]:
    """What nodes are compared by. What died first is not like what could not run because of it."""
    return (item.type, item.status, "unrun" if item.reason == "unsatisfiable" else "")


def _nodes(items: Sequence[ItemState], folds: Mapping[str, str]) -> dict[str, Node]:
    alike: dict[str, list[ItemState]] = defaultdict(list)
    for item in items:
        alike[folds[item.id]].append(item)
    return {key: _node(key, members) for key, members in alike.items()}


def _node(key: str, items: Sequence[ItemState]) -> Node:
    first = items[0]
    starts = [item.started_at for item in items if item.started_at is not None]
    ends = [item.ended_at for item in items if item.ended_at is not None]
    closes = first.id if len(items) == 1 and GroupRef(first.id) in shown_names(first.after) else None
    return Node(
        key,
        first.type,
        first.status,
        first.group_id if all(item.group_id == first.group_id for item in items) else "",
        tuple(item.id for item in items[:20]),
        len(items),
        min(starts, default=None),
        max(ends) if len(ends) == len(items) else None,
        closes,
    )


def _folded_edges(edges: Sequence[Edge], folds: Mapping[str, str], nodes: Mapping[str, Node]) -> list[Edge]:
    found: dict[tuple[str, str], Edge] = {}
    for edge in edges:
        source, target = folds.get(edge.source, edge.source), folds[edge.target]
        if source != target and source in nodes:
            known = found.get((source, target))
            if known is None or known.kind == "parent":
                found[source, target] = Edge(source, target, edge.kind)
    return list(found.values())


def _critical_path(nodes: Mapping[str, Node], edges: Sequence[Edge]) -> set[tuple[str, str]]:
    """The chain that took until the end: from the node that ended last, or is still open, back through what
    ended last before it. Empty unless at least three nodes are on it."""
    before: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        before[edge.target].append(edge.source)

    def end(key: str) -> tuple[float, float]:
        node = nodes[key]
        return (node.ended_at or float("inf"), node.started_at or 0.0)

    if not nodes:
        return set()
    key, path, seen = max(nodes, key=end), set[tuple[str, str]](), set[str]()
    while before[key] and key not in seen:
        seen.add(key)
        source = max(before[key], key=end)
        path.add((source, key))
        key = source
    return path if len(path) > 1 else set()


# --------------------------------------------------------------------------------------------------- layers


def _layers(nodes: Iterable[str], edges: Sequence[Edge]) -> list[list[str]]:
    """Each node one layer after the last of those before it."""
    names = list(nodes)
    after: dict[str, list[str]] = defaultdict(list)
    waiting: Counter[str] = Counter()
    known = set(names)
    for edge in edges:
        if edge.source in known and edge.target in known:
            after[edge.source].append(edge.target)
            waiting[edge.target] += 1
    layers: list[list[str]] = []
    current = [name for name in names if not waiting[name]]
    done: set[str] = set()
    while len(done) < len(names):
        if not current:  # a circle, which items cannot make; it must not hang all the same
            current = [next(name for name in names if name not in done)]
        layers.append(current)
        done.update(current)
        next_layer: list[str] = []
        for name in current:
            for target in after[name]:
                waiting[target] -= 1
                if waiting[target] == 0 and target not in done:
                    next_layer.append(target)
        current = next_layer
    return layers


def _ordered(layers: list[list[str]], edges: Sequence[Edge]) -> list[list[str]]:
    """Order each layer so that few edges cross: each node at the middle of its neighbours."""
    before: dict[str, list[str]] = defaultdict(list)
    after: dict[str, list[str]] = defaultdict(list)
    for edge in edges:
        before[edge.target].append(edge.source)
        after[edge.source].append(edge.target)
    for sweep in range(SWEEPS):
        forward = sweep % 2 == 0
        for place in range(len(layers)) if forward else reversed(range(len(layers))):
            layers[place] = _by_middle(layers, layers[place], before if forward else after)
    return layers


def _by_middle(
    layers: Sequence[Sequence[str]], layer: Sequence[str], neighbours: Mapping[str, Sequence[str]]
) -> list[str]:
    positions = {name: index / max(1, len(each) - 1) for each in layers for index, name in enumerate(each)}

    def middle(name: str) -> float:
        own = [positions[each] for each in neighbours.get(name, ())]
        return sum(own) / len(own) if own else positions[name]

    return sorted(layer, key=middle)


def _place(layers: Sequence[Sequence[str]], nodes: Mapping[str, Node], on_path: set[str]) -> list[PlacedNode]:
    tallest = max((len(layer) for layer in layers), default=0)
    placed: list[PlacedNode] = []
    for column, layer in enumerate(layers):
        offset = (tallest - len(layer)) * (NODE_HEIGHT + GAP_Y) / 2
        for row, key in enumerate(layer):
            x = MARGIN + column * (NODE_WIDTH + GAP_X)
            y = MARGIN + offset + row * (NODE_HEIGHT + GAP_Y)
            placed.append(PlacedNode(nodes[key], x, y, key in on_path))
    return placed


def _path(source: PlacedNode, target: PlacedNode) -> str:
    x1, y1 = source.x + NODE_WIDTH, source.y + NODE_HEIGHT / 2
    x2, y2 = target.x, target.y + NODE_HEIGHT / 2
    bend = max(24.0, (x2 - x1) / 2)
    return f"M{x1:g} {y1:g}C{x1 + bend:g} {y1:g} {x2 - bend:g} {y2:g} {x2:g} {y2:g}"
