"""GroupRef: a whole group as a prerequisite."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.unit.works import make_context, make_work
from treadle import GroupRef, InputError, group
from treadle.define.condition import SubmittedGroup, shown_names, stored_name
from treadle.item import GROUP_MARK
from treadle.options import check_options


def test_a_group_is_named_by_a_work_an_id_or_a_handle() -> None:
    handle = SimpleNamespace(id="item", group_id="root")
    assert (group("a"), group(make_work("w")), group(handle)) == ("a", "w", "root")
    assert isinstance(group(handle), SubmittedGroup)
    assert not isinstance(group("root"), SubmittedGroup)
    assert group(group(handle)) is not None
    assert repr(group("a")) == "group('a')"


@pytest.mark.parametrize("bad", [5, None, "not an id", SimpleNamespace(id="")])
def test_what_is_no_group_is_refused(bad: object) -> None:
    with pytest.raises(InputError, match="group="):
        group(bad)


def test_an_item_and_a_group_with_the_same_id_are_two_prerequisites() -> None:
    after = check_options({"after": ["a", group("a"), group("a"), "a"]}, "enqueue")["after"]
    assert [stored_name(each) for each in after] == ["a", f"{GROUP_MARK}a"]


def test_stored_names_are_shown_as_they_were_written() -> None:
    ctx = make_context(after=("x", f"{GROUP_MARK}y"))
    assert ctx.dependencies == ("x", "y")
    assert [type(each) for each in ctx.dependencies] == [str, GroupRef]
    plain = ("x",)
    assert shown_names(plain) is plain
