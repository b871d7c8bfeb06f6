"""dependency: a Work that waits for other items and then queues works, which are not submitted before.

When `on` has met `when`, it queues the works in its own group and as their parent. It runs no code and takes
no room of a doer. Any worker can claim it, also one that does not have the types of the works. The worker
settles it with the works as its children.
"""

from __future__ import annotations

from typing import Any, Final, cast

from typing_extensions import TypeVar

from treadle.base.ids import generate_id
from treadle.base.timing import Duration
from treadle.bulk_action import BULK_TYPE
from treadle.errors import InputError
from treadle.handler.result import flatten
from treadle.item import GROUP_TYPE, JOIN_TYPE, TELL_TYPE
from treadle.options import After, Input, Options, check_options

from .condition import When
from .decorators import work
from .work import Items, Work

G = TypeVar("G")


def dependency(
    *, on: After, queue: Items[G], when: When = "all_success", timeout: Duration | None = None
) -> Work[None, G]:
    """Make a Work that waits for `on` (works, handles or ids) and then queues `queue`.

    If `on` can no longer meet `when`, or has not met it after `timeout` seconds, the item is dead and nothing
    is queued. The works have `on` as their `ctx.dependencies`.
    """
    checked = check_options({"after": on, "when": when, "expires_in": timeout}, "dependency")
    works = flatten((queue,), "dependency(queue=)")
    if not all(isinstance(each, Work) for each in works):
        raise InputError("dependency(queue=) takes works, not Results", parameters=("queue",))
    input = {"on": checked["after"], "queue": works, "when": when, "timeout": checked["expires_in"]}
    return cast("Work[None, G]", Work(generate_id(), DEPENDENCY.name, input, DEPENDENCY))


def _options(input: Input) -> Options:
    return {"after": input["on"], "when": input["when"], "expires_in": input["timeout"]}


def _signature(on: Any, queue: Any, when: Any, timeout: Any) -> None: ...


DEPENDENCY: Final = work.declare("treadle.dependency", _signature, options=_options)


BUILT_IN: Final = {
    DEPENDENCY.name: "use dependency(...)",
    GROUP_TYPE: "use ctx.group(...)",
    JOIN_TYPE: "use ctx.run(...)",
    BULK_TYPE: "use app.bulk.start(...)",
    TELL_TYPE: "use Treadle(on_problem=...)",
}
"""The types of the engine, without code of the user, and how their items are made."""
