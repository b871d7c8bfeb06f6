"""dependency: a gate as a Work of its own, for works that are to wait without being submitted yet.

It waits for `on`; when they have met `when` it queues the works, in its own group and as their parent. It
runs no code and takes no slot: whichever worker claims it, whether or not it knows the types of the works,
settles it with them as its children.
"""

from __future__ import annotations

from typing import Any, Final, cast

from typing_extensions import TypeVar

from .condition import When
from .decorators import work
from .errors import InputError
from .ids import generate_id
from .options import After, Input, Options, check_options
from .result import flatten
from .timing import Duration
from .work import Items, Work

G = TypeVar("G")


def dependency(
    *, on: After, queue: Items[G], when: When = "all_success", timeout: Duration | None = None
) -> Work[None, G]:
    """A Work that waits for `on` (works, handles or ids) and then queues `queue`.

    If `on` can no longer meet `when`, or has not done so after `timeout` seconds, it is dead and nothing is
    queued. The works see `on` as their `ctx.dependencies`.
    """
    checked = check_options({"after": on, "when": when, "expires_in": timeout}, "dependency")
    works = flatten((queue,), "dependency(queue=)")
    if not all(isinstance(each, Work) for each in works):
        raise InputError("dependency(queue=) takes works, not Results", parameters=("queue",))
    input = {"on": checked["after"], "queue": works, "when": when, "timeout": checked["expires_in"]}
    return cast("Work[None, G]", Work(generate_id(), GATE.name, input, GATE))


def _options(input: Input) -> Options:
    return {"after": input["on"], "when": input["when"], "expires_in": input["timeout"]}


def _signature(on: Any, queue: Any, when: Any, timeout: Any) -> None: ...


GATE: Final = work.declare("treadle.dependency", _signature, options=_options)
