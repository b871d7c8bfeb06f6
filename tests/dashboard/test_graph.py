"""Graphs: what is drawn of a group or a workflow."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from tests.dashboard.conftest import AS_JSON
from treadle import Abort, Context, Result, Treadle, work
from treadle.dashboard.views.graphs import NODE_WIDTH, Graph, graph_of
from treadle.define.condition import GroupRef
from treadle.item import GROUP_TYPE, ItemState, Status


def item(
    id: str, *after: str, type: str = "t", status: Status = "success", group_id: str = "g", **fields: object
) -> ItemState:
    return ItemState(id=id, type=type, status=status, after=after, group_id=group_id, **fields)  # type: ignore[arg-type]


def columns(graph: Graph) -> dict[str, float]:
    return {placed.node.ids[0]: placed.x for placed in graph.nodes}


def arrows(graph: Graph) -> set[tuple[str, str, str]]:
    first = {placed.node.key: placed.node.ids[0] for placed in graph.nodes}
    return {(first[each.edge.source], first[each.edge.target], each.edge.kind) for each in graph.edges}


def test_an_item_stands_right_of_what_it_waits_for_and_of_the_item_that_queued_it() -> None:
    graph = graph_of([item("c", "a", "b"), item("a"), item("b", "a"), item("d", parent="c"), item("alone")])
    x = columns(graph)
    assert x["a"] == x["alone"] < x["b"] < x["c"] < x["d"]
    assert x["b"] - x["a"] > NODE_WIDTH
    assert arrows(graph) == {
        ("a", "b", "after"),
        ("a", "c", "after"),
        ("b", "c", "after"),
        ("c", "d", "parent"),
    }


def test_nodes_do_not_overlap_and_fit_into_the_picture() -> None:
    graph = graph_of([item(f"a{n}") for n in range(5)] + [item(f"b{n}", f"a{n}") for n in range(5)])
    places = {(placed.x, placed.y) for placed in graph.nodes}
    assert len(places) == 10
    assert all(x + NODE_WIDTH <= graph.width and y < graph.height for x, y in places)
    rows = {placed.node.ids[0]: placed.y for placed in graph.nodes}
    assert [rows[f"a{n}"] for n in range(5)] == [rows[f"b{n}"] for n in range(5)]


def test_many_alike_are_one_node_that_says_how_many() -> None:
    fan = [item("root")]
    fan += [
        item(f"leaf{n}", parent="root", type="leaf", status="dead" if n < 3 else "success")
        for n in range(300)
    ]
    fan.append(item("sum", *(f"leaf{n}" for n in range(300)), type="sum", status="blocked"))
    graph = graph_of(fan)
    counts = {(placed.node.type, placed.node.status): placed.node.count for placed in graph.nodes}
    assert counts == {
        ("t", "success"): 1,
        ("leaf", "dead"): 3,
        ("leaf", "success"): 297,
        ("sum", "blocked"): 1,
    }
    assert graph.folded == 300
    assert {placed.node.group_id for placed in graph.nodes} == {"g"}
    assert len(graph.edges) == 4
    assert len(graph_of(fan[:100]).nodes) == 100  # few enough to show each


def test_a_long_chain_is_few_nodes_and_the_first_death_is_one_of_them() -> None:
    """A browser took two minutes to draw a chain of 500: 127,000 pixels, and a dashed line to each link."""
    chain = [item("root", type="chain")]
    for n in range(500):
        status: Status = "success" if n < 250 else "dead"
        reason = None if n < 250 else "exhausted" if n == 250 else "unsatisfiable"
        after = (f"link{n - 1}",) if n else ()
        chain.append(item(f"link{n}", *after, type="link", status=status, reason=reason, parent="root"))
    graph = graph_of(chain)
    shown = sorted((placed.x, placed.node.status, placed.node.count) for placed in graph.nodes)
    assert [each[1:] for each in shown] == [("success", 1), ("success", 250), ("dead", 1), ("dead", 249)]
    assert next(placed.node.ids for placed in graph.nodes if placed.node.status == "dead") == ("link250",)
    assert arrows(graph) == {
        ("root", "link0", "parent"),
        ("link0", "link250", "after"),
        ("link250", "link251", "after"),
    }
    assert (graph.left_out, len(graph_of(chain[:150]).nodes)) == (0, 150)  # few enough to show each


def test_a_line_from_the_item_that_queued_it_is_drawn_only_to_where_its_work_begins() -> None:
    graph = graph_of(
        [
            item("root"),
            item("a", parent="root"),
            item("b", "a", parent="root"),
            item("c", "a", "x", parent="b"),
        ]
    )
    assert arrows(graph) == {
        ("root", "a", "parent"),
        ("a", "b", "after"),
        ("a", "c", "after"),
        ("x", "c", "after"),
        ("b", "c", "parent"),
    }


def test_what_took_until_the_end_is_marked() -> None:
    items = [
        item("a", started_at=0.0, ended_at=1.0),
        item("quick", "a", started_at=1.0, ended_at=2.0),
        item("slow", "a", started_at=1.0, ended_at=9.0),
        item("end", "quick", "slow", started_at=9.0, ended_at=10.0),
    ]
    graph = graph_of(items)
    assert {each.edge.source for each in graph.edges if each.edge.critical} == {"a", "slow"}
    assert {placed.node.key for placed in graph.nodes if placed.critical} == {"a", "slow", "end"}


def test_what_is_elsewhere_and_groups_are_shown() -> None:
    closing = item("n", GroupRef("n"), type="closing")
    graph = graph_of([item("a", "elsewhere"), closing, item("m", GroupRef("other"))])
    statuses = {placed.node.ids[0]: placed.node.status for placed in graph.nodes}
    assert statuses["elsewhere"] == statuses["other"] == "missing"
    assert next(placed.node for placed in graph.nodes if placed.node.type == "closing").closes == "n"


def test_a_nested_group_stands_between_what_is_before_and_after_it() -> None:
    graph = graph_of(
        [
            item("root"),
            item("close", GroupRef("close"), parent="root"),
            item("before", parent="root"),
            item("first", "before", group_id="close", parent="root"),
            item("second", "first", group_id="close", parent="root"),
            item("beside", "before", group_id="close", parent="root"),
            item("child", group_id="close", parent="beside"),
            item("last", "close", parent="root"),
            item("empty", GroupRef("empty"), parent="root"),
        ]
    )
    assert arrows(graph) == {
        ("root", "before", "parent"),
        ("before", "first", "after"),
        ("before", "beside", "after"),
        ("first", "second", "after"),
        ("beside", "child", "parent"),
        ("second", "close", "after"),
        ("child", "close", "after"),
        ("close", "last", "after"),
        ("root", "empty", "parent"),
    }


def test_many_nested_groups_are_few_nodes() -> None:
    fan = [item("root", type="root")]
    for n in range(150):
        fan.append(item(f"close{n}", GroupRef(f"close{n}"), parent="root", type=GROUP_TYPE))
        fan.append(item(f"in{n}", group_id=f"close{n}", parent="root", type="inner"))
    graph = graph_of(fan)
    shown = {placed.node.type: (placed.node.count, placed.node.group_id) for placed in graph.nodes}
    assert shown == {"root": (1, "g"), "inner": (150, ""), GROUP_TYPE: (150, "g")}
    assert arrows(graph) == {("root", "in0", "parent"), ("in0", "close0", "after")}


@work(name="step")
async def step() -> None: ...


@work(name="nested")
async def nested(ctx: Context) -> Result[None, None]:
    return ctx.queue(step()).next(ctx.group(step(), ctx.group(step()))).next(step())


@work(name="fails")
async def fails() -> None:
    raise Abort("no")


@work(name="failing")
async def failing(ctx: Context) -> Result[None, None]:
    return ctx.queue(ctx.group(fails())).next(step())


async def test_the_page_of_a_group_has_the_groups_inside_it(store: Any, make_app: Any, visitor: Any) -> None:
    app: Treadle = make_app(store, step, nested)
    async with app:
        handle = await app.enqueue(nested(), id="outer", workflow="w")
        await asyncio.wait_for(handle.group(), 10)
    ann = visitor(app)
    for path in ("/groups/outer", "/workflows/w"):
        shown = (await ann.get(path, headers=AS_JSON)).json()
        assert len(shown["items"]) == 7, path
        page = (await ann.get(path)).text
        roots = re.findall(r"translate\(8(?:\.0)? [^>]+>\s*<title>(\S+)", page)
        assert roots == ["nested"], path
        assert page.count('class="edge parent') == 1, path
        inner = next(each["id"] for each in shown["items"] if each["type"] == GROUP_TYPE)
        assert f'href="/groups/{inner}?' in page


async def test_what_closes_a_nested_group_is_known_on_every_page(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, step, fails, failing)
    async with app:
        handle = await app.enqueue(failing(), id="outer")
        await asyncio.gather(handle.group(), return_exceptions=True)
    ann = visitor(app)
    (closing,) = (await app.list("dead", type=GROUP_TYPE)).items
    page = (await ann.get(f"/items/{closing.id}")).text
    assert "the group that it closes" in page
    assert f"/items/{closing.id}/edit" not in page
    assert f'href="/types/{GROUP_TYPE}"' in page
    assert "It is built in" in (await ann.get(f"/types/{GROUP_TYPE}")).text
    types = (await ann.get("/types", headers=AS_JSON)).json()["types"]
    assert {each["type"]: each["dead"]["count"] for each in types} == {
        "fails": 1,
        "failing": 0,
        "step": 1,
        GROUP_TYPE: 1,
    }
    assert (await ann.get("/types/treadle.bulk")).status_code == 404


def test_a_circle_does_not_hang() -> None:
    graph = graph_of([item("a", "b"), item("b", "a")])
    assert len(graph.nodes) == 2
    assert graph_of([]).nodes == []


def test_large_and_dense_groups_stay_small() -> None:
    """Each layer waits for all of the one before: neither keys nor edges may grow with the paths."""
    layers = [[f"{side}{n}" for side in ("left", "right")] for n in range(40)]
    chain = [
        item(id, *(layers[n - 1] if n else ()), type=id[:4]) for n, layer in enumerate(layers) for id in layer
    ]
    graph = graph_of([*chain, *(item(f"fill{n}", type="fill") for n in range(300))])
    assert len(graph.nodes) == 81
    assert max(len(placed.node.key) for placed in graph.nodes) < 20
    waiting = [item(f"w{n}", *(f"s{m}" for m in range(300)), type=f"t{n}") for n in range(300)]
    dense = graph_of([*(item(f"s{n}", type=f"s{n}") for n in range(300)), *waiting])
    assert len(dense.nodes) == 500
    assert dense.left_out == 100


@work(name="labelled")
async def labelled(to: str, password: str = "") -> None: ...


@work(name="secret.first")
async def secret_first(password: str) -> None: ...


async def test_nodes_are_labelled_by_key_or_first_argument(
    memory_store: Any, make_app: Any, visitor: Any
) -> None:
    app: Treadle = make_app(memory_store, labelled, secret_first)
    await app.enqueue(labelled("ann@example.org", "sesame"), workflow="w")
    await app.enqueue(labelled("bob@example.org"), workflow="w", key="by key")
    await app.enqueue(secret_first("sesame"), workflow="w")
    page = (await visitor(app).get("/workflows/w")).text
    assert "<title>labelled · ready · ann@example.org · " in page
    assert "<title>labelled · ready · by key · " in page
    assert "bob@example.org" not in page
    assert re.search(r"<title>secret.first · ready · [0-9a-f]{32}<", page)
    assert page.count("<tr data-row data-node=") == 3
    assert "sesame" not in page
    blind = (await visitor(app, payloads=False).get("/workflows/w")).text
    assert "ann@example.org" not in blind
    assert "by key" in blind
