"""Options: every bad value is refused by name, and the stronger level wins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from treadle.define.condition import at_least
from treadle.errors import InputError
from treadle.options import (
    DEFAULTS,
    ENQUEUE_OPTIONS,
    NEXT_OPTIONS,
    Resolved,
    check_options,
    check_type_options,
    resolve,
)
from treadle.retry import Retry

NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001  options must refuse it
NAN, INF = float("nan"), float("inf")


def check(**options: Any) -> dict[str, Any]:
    return check_options(options, "enqueue", ENQUEUE_OPTIONS)


class TestChecks:
    def test_values_become_plain_numbers_and_strings(self) -> None:
        noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
        assert check(
            delay=timedelta(minutes=1),
            run_at=noon,
            deadline=1.5,
            expires_in=7,
            timeout=timedelta(seconds=2),
            priority=-3,
            lane="a",
            queue="b",
            key="k",
            key_scope=timedelta(hours=1),
            workflow="w",
            workflow_type="t",
            skip_queue=True,
            retry=Retry(attempts=2),
        ) == {
            "delay": 60.0,
            "run_at": noon.timestamp(),
            "deadline": 1.5,
            "expires_in": 7.0,
            "timeout": 2.0,
            "priority": -3,
            "lane": "a",
            "queue": "b",
            "key": "k",
            "key_scope": 3600.0,
            "workflow": "w",
            "workflow_type": "t",
            "skip_queue": True,
            "retry": Retry(attempts=2),
        }

    def test_key_scopes_are_open_any_or_seconds(self) -> None:
        assert [check(key_scope=scope)["key_scope"] for scope in ("open", "any", 5)] == ["open", "any", 5.0]

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("delay", NAN, "delay=nan must be finite"),
            ("delay", INF, "delay=inf must be finite"),
            ("delay", -1, "delay=-1 must not be negative"),
            ("delay", "5", "delay='5' must be seconds or a timedelta"),
            ("delay", True, "delay=True must be seconds or a timedelta"),
            ("run_at", NAIVE, "run_at=datetime.datetime(2030, 1, 1, 0, 0) has no time zone"),
            ("run_at", NAN, "run_at=nan must be finite"),
            ("deadline", NAIVE, "deadline=datetime.datetime(2030, 1, 1, 0, 0) has no time zone"),
            ("expires_in", -0.1, "expires_in=-0.1 must not be negative"),
            ("timeout", 0, "timeout=0 must be more than zero"),
            ("timeout", NAN, "timeout=nan must be finite"),
            ("priority", 1.5, "priority=1.5 must be a whole number"),
            ("priority", True, "priority=True must be a whole number"),
            ("priority", 2**31, "priority=2147483648 does not fit in 32 bits"),
            ("priority", -(2**31) - 1, "priority=-2147483649 does not fit in 32 bits"),
            ("queue", "", "queue='' must not be empty"),
            ("lane", "a\nb", r"lane='a\nb' must not hold control characters"),
            ("queue", 7, "queue=7 must be a str"),
            ("queue", "q" * 256, "is longer than 255 bytes"),
            ("key", "\x00", "must not hold control characters"),
            ("workflow", "\ud800", "lone surrogates"),
            ("key_scope", "closed", "key_scope='closed' must be 'open', 'any' or a duration"),
            ("key_scope", -1, "key_scope=-1 must not be negative"),
            ("skip_queue", 1, "skip_queue=1 must be True or False"),
            ("retry", 5, "retry=5 must be a Retry, as in retry=Retry(attempts=5)"),
            ("retry", Retry(backoff=float), "is code, which is not stored with an item"),
            ("after", 5, "after=5 must be works, handles or ids, as in after=[a, b]"),
            ("after", [5], "after=5 must be a work, a handle, an id or group"),
            ("after", ["no spaces"], "after='no spaces' must be 1 to 128 characters"),
            ("when", "any", "when='any': must be 'all_success', 'all_done' or at_least(n)"),
        ],
    )
    def test_bad_values_are_refused_by_name(self, name: str, value: Any, message: str) -> None:
        with pytest.raises(InputError) as caught:
            check(**{name: value})
        assert message in str(caught.value)
        assert caught.value.parameters == (name,)

    def test_at_least_more_than_the_dependencies_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"at_least\(3\) of 2 can never be met: ask for fewer"):
            check(after=["a", "b"], when=at_least(3))

    def test_repeated_dependencies_count_once(self) -> None:
        assert check(after=["a", "b", "a"])["after"] == ("a", "b")
        with pytest.raises(ValueError, match=r"at_least\(2\) of 1"):
            check(after=["a", "a"], when=at_least(2))

    def test_one_id_needs_no_list(self) -> None:
        assert check(after="abc")["after"] == ("abc",)

    def test_the_error_for_an_unknown_option_suggests_a_similar_one(self) -> None:
        with pytest.raises(TypeError, match=r"enqueue has no option 'dealy': did you mean 'delay'\?"):
            check(dealy=5)
        with pytest.raises(
            TypeError, match="enqueue has no option 'xyz': it takes after, deadline, debounce_max, delay"
        ):
            check(xyz=5)

    def test_each_method_has_its_own_options(self) -> None:
        with pytest.raises(TypeError, match=r"ctx\.queue has no option 'tx'"):
            check_options({"tx": object()}, "ctx.queue")
        with pytest.raises(
            TypeError, match=r"\.next has no option 'after': it always waits for the works before it"
        ):
            check_options({"after": ["a"]}, ".next", NEXT_OPTIONS)

    def test_options_of_types_are_checked(self) -> None:
        assert check_type_options({"timeout": 5, "lane": None}) == {"timeout": 5.0}
        assert check_type_options({"lane": ""}) == {"lane": ""}
        with pytest.raises(TypeError, match="@work has no option 'delay'"):
            check_type_options({"delay": 5})
        for name, value, message in [
            ("run_in", "fiber", "run_in='fiber' must be 'loop', 'thread' or 'process'"),
            ("options", {}, "options={} must be a function"),
            ("codec", "json", r"codec='json' must have the methods encode\(value\) and decode"),
            ("keep", -1, "keep=-1 must not be negative"),
            ("name", "", "name='' must not be empty"),
            ("strict_return", "yes", "strict_return='yes' must be True or False"),
        ]:
            with pytest.raises(InputError, match=message):
                check_type_options({name: value})


class TestResolve:
    def test_without_levels_the_defaults_hold(self) -> None:
        assert resolve() is DEFAULTS
        assert resolve({}, None, {}) is DEFAULTS
        assert Resolved() == DEFAULTS

    def test_the_stronger_level_wins(self) -> None:
        levels = [{"priority": n, "queue": f"q{n}"} for n in range(1, 5)]
        for strongest in range(1, 5):
            resolved = resolve(*levels[:strongest])
            assert (resolved.priority, resolved.queue) == (strongest, f"q{strongest}")

    def test_levels_are_merged(self) -> None:
        resolved = resolve({"priority": 1}, {"lane": "a"}, {"queue": "b"}, {"key": "k"})
        assert (resolved.priority, resolved.lane, resolved.queue, resolved.key) == (1, "a", "b", "k")

    def test_retry_merges_field_by_field(self) -> None:
        app, type_, enqueue = Retry(base=5, jitter=0), Retry(attempts=7, max=9), Retry(attempts=2)
        resolved = resolve({"retry": app}, {"retry": type_}, {"retry": enqueue})
        assert resolved.retry == Retry(attempts=2, base=5, max=9, jitter=0)

    def test_run_at_wins_over_delay_within_a_level(self) -> None:
        resolved = resolve({"delay": 5.0, "run_at": 100.0})
        assert (resolved.run_at, resolved.delay) == (100.0, 0.0)

    def test_delay_wins_over_a_weaker_run_at(self) -> None:
        resolved = resolve({"run_at": 100.0}, {"delay": 5.0})
        assert (resolved.run_at, resolved.delay) == (None, 5.0)

    def test_run_at_wins_over_a_weaker_delay(self) -> None:
        resolved = resolve({"delay": 5.0}, {"run_at": 100.0})
        assert (resolved.run_at, resolved.delay) == (100.0, 0.0)

    def test_deadline_wins_over_expires_in_within_a_level(self) -> None:
        resolved = resolve({"expires_in": 5.0, "deadline": 100.0})
        assert (resolved.deadline, resolved.expires_in) == (100.0, None)

    def test_expires_in_wins_over_a_weaker_deadline(self) -> None:
        resolved = resolve({"deadline": 100.0}, {"expires_in": 5.0})
        assert (resolved.deadline, resolved.expires_in) == (None, 5.0)

    def test_zero_is_a_value_of_delay_and_expires_in(self) -> None:
        resolved = resolve({"delay": 5.0, "expires_in": 5.0}, {"delay": 0.0, "expires_in": 0.0})
        assert (resolved.delay, resolved.expires_in) == (0.0, 0.0)

    def test_delay_and_expires_in_are_independent(self) -> None:
        resolved = resolve({"expires_in": 60.0}, {"delay": 5.0})
        assert (resolved.expires_in, resolved.delay) == (60.0, 5.0)

    def test_none_removes_timeout_and_expires_in(self) -> None:
        type_ = {"timeout": 5.0, "expires_in": 60.0}
        resolved = resolve(type_, {"timeout": None, "expires_in": None})
        assert (resolved.timeout, resolved.expires_in) == (None, None)

    def test_none_keeps_the_weaker_value_of_other_options(self) -> None:
        base = resolve({"priority": 3, "queue": "q", "lane": "l", "skip_queue": True})
        nothing = {"priority": None, "queue": None, "lane": None, "skip_queue": None, "retry": None}
        assert resolve(nothing, base=base) == base

    def test_zero_and_false_are_values(self) -> None:
        base = resolve({"priority": 3, "skip_queue": True, "delay": 5.0})
        resolved = resolve({"priority": 0, "skip_queue": False, "delay": 0.0}, base=base)
        assert (resolved.priority, resolved.skip_queue, resolved.delay) == (0, False, 0.0)

    def test_tx_is_not_an_option_of_the_item(self) -> None:
        assert resolve({"tx": object()}) is DEFAULTS
