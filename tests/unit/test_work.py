"""Work types: how they are defined, what their calls make, and what is refused at definition.

Annotations are text here, as in any module that imports annotations from `__future__`.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import pytest

from treadle.base.ids import set_id_generator
from treadle.client import Client
from treadle.define.decorators import Definer, work
from treadle.define.work import Work, failure_parameter
from treadle.define.work_type import WorkType, arguments_of, computed_options, handler_of
from treadle.errors import DecodeError, DefinitionError, EncodeError, InputError
from treadle.flow_control import Failure
from treadle.handler.context import Context
from treadle.handler.result import Result
from treadle.options import TypeOptions, check_options
from treadle.retry import Retry

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Point:
    x: int
    y: int = 0


@work
async def add(a: int, b: int) -> int:
    return a + b


@work(name="shapes.move", queue="shapes", priority=3)
def move(ctx: Context, point: Point, *, by: int = 1) -> Result[Point, Point | int]:
    return ctx.result(Point(point.x + by, point.y))


@work
def later(node: Later) -> Later:
    return node


@dataclass
class Later:
    """Defined after the work type that names it."""

    n: int


def contexts_for(contexts: list[Context], n: int) -> int:
    return n


class TestMinting:
    def test_a_call_mints_and_runs_nothing(self) -> None:
        made = add(1, b=2)
        assert (made.type, made.input) == ("tests.unit.test_work.add", {"a": 1, "b": 2})
        assert made.definition is add
        assert repr(made) == f"<Work tests.unit.test_work.add(a=1, b=2) {made.id}>"

    def test_every_call_has_its_own_id(self) -> None:
        one, other = add(1, 2), add(1, 2)
        assert one.id != other.id
        assert one != other
        assert len({one, other}) == 2

    def test_ids_come_from_the_generator(self) -> None:
        set_id_generator(lambda: "my-id")
        try:
            assert add(1, 2).id == "my-id"
        finally:
            set_id_generator(None)

    def test_a_work_is_frozen(self) -> None:
        with pytest.raises(AttributeError):
            add(1, 2).id = "other"  # type: ignore[misc]

    def test_the_context_is_not_an_argument(self) -> None:
        assert move(Point(1)).input == {"point": Point(1)}
        assert move(Point(1), by=2).input == {"point": Point(1), "by": 2}

    def test_annotations_may_be_defined_later(self) -> None:
        assert later(Later(1)).input == {"node": Later(1)}

    @pytest.mark.parametrize(
        ("call", "message", "parameters"),
        [
            (lambda: add(1), "tests.unit.test_work.add: missing parameter 'b'", ("b",)),
            (lambda: add(1, 2, 3), "takes 2 positional arguments, 3 were given", ()),
            (lambda: add(1, c=2), "unknown parameter 'c'", ("c",)),
            (lambda: add(1, a=2), "parameter 'a' is given twice", ("a",)),
            (lambda: add(1, "2"), "parameter 'b': Expected `int`, got `str`", ("b",)),
            (lambda: move(Point("1")), "parameter 'point': Expected `int`, got `str`", ("point",)),
            (lambda: move(Point(1), 2), "takes 1 positional arguments, 2 were given", ()),
            (lambda: add.from_input({"a": 1}), "missing parameter 'b'", ("b",)),
            (lambda: add.from_input({"a": 1, "bb": 2}), "unknown parameter 'bb': did you mean 'b'?", ("bb",)),
        ],
    )
    def test_bad_arguments_are_refused(
        self, call: Callable[[], object], message: str, parameters: tuple[str, ...]
    ) -> None:
        with pytest.raises(InputError) as caught:
            call()
        assert message in str(caught.value)
        assert caught.value.parameters == parameters

    def test_by_name(self) -> None:
        made = add.from_input({"a": 1, "b": 2})
        assert (made.type, made.input) == (add.name, {"a": 1, "b": 2})


class TestNames:
    def test_a_name_is_the_module_and_the_function(self) -> None:
        assert add.name == "tests.unit.test_work.add"
        assert (add.__name__, add.__module__) == ("add", "tests.unit.test_work")

    def test_a_name_can_be_given(self) -> None:
        assert move.name == "shapes.move"
        assert repr(move) == "<WorkType shapes.move>"

    def test_the_name_of_a_nested_function(self) -> None:
        @work
        def inner() -> None: ...

        class Holder:
            @staticmethod
            @work
            def held() -> None: ...

        assert inner.name == "tests.unit.test_work.inner"
        assert Holder.held.name == "tests.unit.test_work.Holder.held"

    @pytest.mark.usefixtures("processes")
    def test_the_name_of_a_function_in_a_script(self, tmp_path: Path) -> None:
        script = tmp_path / "nightly.py"
        script.write_text(
            "from treadle.define.decorators import work\n@work\ndef run() -> None: ...\nprint(run.name)\n"
        )
        printed = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        assert printed.stdout == "nightly.run\n"

    @pytest.mark.usefixtures("processes")
    def test_the_name_of_a_function_in_a_module_run_as_a_script(self, tmp_path: Path) -> None:
        package = tmp_path / "tasks"
        package.mkdir()
        source = (
            "from treadle.define.decorators import work\n@work\ndef run() -> None: ...\nprint(run.name)\n"
        )
        for name in ("__init__.py", "__main__.py", "nightly.py"):
            (package / name).write_text("" if name == "__init__.py" else source)
        names = [
            subprocess.run(
                [sys.executable, "-m", module], capture_output=True, text=True, check=True, cwd=tmp_path
            ).stdout
            for module in ("tasks", "tasks.nightly")
        ]
        assert names == ["tasks.run\n", "tasks.nightly.run\n"]

    @pytest.mark.usefixtures("processes")
    def test_the_name_of_a_function_from_standard_input(self) -> None:
        source = (
            "from treadle.define.decorators import work\n@work\ndef run() -> None: ...\nprint(run.name)\n"
        )
        printed = subprocess.run([sys.executable], input=source, capture_output=True, text=True, check=True)
        assert printed.stdout == "__main__.run\n"


class TestHandlers:
    def test_fn_is_the_function_itself(self) -> None:
        assert asyncio.run(add.fn(1, 2)) == 3

    def test_async_handlers_run_in_the_loop_and_sync_ones_in_threads(self) -> None:
        assert (add.run_in, move.run_in) == ("loop", "thread")

        @work(run_in="loop")
        def quick() -> None: ...

        assert (quick.run_in, work(run_in="process")(heavy).run_in) == ("loop", "process")

    def test_what_they_want(self) -> None:
        assert not handler_of(add).wants_context
        assert handler_of(move).wants_context

    def test_a_plain_wrapper_of_an_async_function_is_async(self) -> None:
        async def inner(n: int) -> int:
            return n

        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        wrapped = work(outer)
        assert handler_of(wrapped).is_async
        assert wrapped(1).input == {"n": 1}

    def test_context_may_be_imported_only_for_type_checkers(self) -> None:
        namespace: dict[str, Any] = {"__name__": "elsewhere", "work": work}
        source = "from __future__ import annotations\n@work\ndef flow(ctx: Context, n: int) -> None: ..."
        exec(source, namespace)
        assert handler_of(namespace["flow"]).wants_context
        assert namespace["flow"](3).input == {"n": 3}

    def test_an_optional_context_is_a_context(self) -> None:
        @work
        def flow(ctx: Context | None, n: int) -> None: ...

        assert handler_of(flow).wants_context
        assert flow.from_input({"n": 3}).input == {"n": 3}

    def test_only_the_first_parameter_can_be_the_context(self) -> None:
        @work
        def odd(n: int, value: object) -> None: ...

        assert not handler_of(odd).wants_context
        assert odd(1, "x").input == {"n": 1, "value": "x"}

    def test_annotations_may_be_local_types(self) -> None:
        @dataclass
        class Local:
            n: int

        @work
        def double(value: Local) -> Local:
            return Local(value.n * 2)

        made = double(Local(2))
        assert made.input == {"value": Local(2)}
        assert double.decode_input(double.encode_input(made.input)) == {"value": Local(2)}
        assert double.decode_result(double.encode_result(Local(4))) == Local(4)


def heavy() -> None: ...


def nested() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


class TestDefinition:
    @pytest.mark.parametrize(
        ("define", "message"),
        [
            (
                lambda: work(lambda n: n),
                "@work takes no lambda: define the function with `def`",
            ),
            (lambda: work(5), "@work takes a function, not 5"),
            (lambda: work("mail.send"), "its name goes by keyword: @work(name='mail.send')"),
            (lambda: work(Point), "@work takes a function, not <class"),
            (lambda: work(functools.partial(print)), "@work takes a function, not functools.partial"),
            (lambda: work(nmae="x"), "@work has no option 'nmae': did you mean 'name'?"),
            (lambda: work.declare("x", lambda: None), "@work takes no lambda"),
            (lambda: work(run_in="thread")(add.fn), "run_in='thread' is for plain functions, and"),
            (lambda: work(run_in="process")(add.fn), "run_in='process' is for plain functions, and"),
            (lambda: work(contexts_for), "takes a list of contexts, as batch functions do"),
            (lambda: work(run_in="process")(nested()), "is defined inside a function, or is a lambda"),
        ],
    )
    def test_bad_definitions_raise_type_error(self, define: Callable[[], object], message: str) -> None:
        with pytest.raises(TypeError) as caught:
            define()
        assert message in str(caught.value)

    def test_generators_are_refused(self) -> None:
        def generate() -> Any:
            yield 1

        async def generate_async() -> Any:
            yield 1

        for fn in (generate, generate_async):
            with pytest.raises(TypeError, match="a handler must return its result, not yield"):
                work(fn)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": ""}, "name='' must not be empty"),
            ({"timeout": -1}, "timeout=-1 must not be negative"),
            ({"priority": "high"}, "priority='high' must be a whole number"),
            ({"run_in": "fiber"}, "run_in='fiber' must be 'loop', 'thread' or 'process'"),
        ],
    )
    def test_bad_options_are_refused_before_the_function_is_given(
        self, options: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(InputError) as caught:
            work(**options)
        assert message in str(caught.value)

    def test_options_are_kept_as_given(self) -> None:
        undo = add(1, 2)

        @work(retry=Retry(attempts=5), timeout=30, lane=None, on_dead=undo)
        def configured() -> None: ...

        assert configured.options == {"retry": Retry(attempts=5), "timeout": 30.0, "on_dead": undo}

    def test_options_can_be_given_in_steps(self) -> None:
        on_bulk = work(queue="bulk", timeout=5)

        @on_bulk(timeout=7)
        def one() -> None: ...

        @on_bulk
        def two() -> None: ...

        assert (one.options, two.options) == (
            {"queue": "bulk", "timeout": 7.0},
            {"queue": "bulk", "timeout": 5.0},
        )

    def test_an_app_can_register_the_types_it_defines(self) -> None:
        registered: list[WorkType[..., Any, Any]] = []
        app_work = Definer(register=registered.append)

        @app_work
        def one() -> None: ...

        @app_work(name="two")
        def two() -> None: ...

        @app_work.batch(size=2)
        def three(values: list[int]) -> list[int]:
            return values

        four = app_work.declare("four", one.fn)
        assert registered == [one, two, three, four]

    def test_an_unresolvable_annotation_is_refused_at_the_first_call(self) -> None:
        @work
        def halve(n: Fraction) -> None: ...

        with pytest.raises(DefinitionError) as caught:
            halve(1)  # type: ignore[arg-type]
        message = str(caught.value)
        assert "the annotation 'Fraction' of 'n' in " in message
        assert "import or define the name at module level" in message


class TestComputedOptions:
    def test_options_can_be_computed_from_the_arguments(self) -> None:
        @work(options=lambda given: {"priority": given["n"], "delay": 5})
        def one(n: int) -> None: ...

        assert computed_options(one, {"n": 3}) == {"priority": 3, "delay": 5.0}
        assert computed_options(add, {"a": 1, "b": 2}) == {}

    def test_computed_options_may_be_none(self) -> None:
        @work(options=lambda _: None)
        def one(n: int) -> None: ...

        assert computed_options(one, {"n": 3}) == {}

    def test_computed_options_are_checked(self) -> None:
        @work(name="one", options=lambda _: {"delay": -1})
        def one() -> None: ...

        @work(name="two", options=lambda _: {"dealy": 1})  # type: ignore[typeddict-unknown-key]
        def two() -> None: ...

        with pytest.raises(InputError, match="delay=-1 must not be negative"):
            computed_options(one, {})
        with pytest.raises(TypeError, match=r"options\(input\) of 'two' has no option 'dealy': did you mean"):
            computed_options(two, {})

    def test_every_type_option_is_known_to_the_checks(self) -> None:
        from treadle.options import TYPE_OPTIONS

        assert TYPE_OPTIONS.keys() == TypeOptions.__annotations__.keys()


class TestWire:
    def test_input(self) -> None:
        made = move(Point(1, 2), by=3)
        data = move.encode_input(made.input)
        assert data == b'{"point":{"x":1,"y":2},"by":3}'
        assert move.decode_input(data) == made.input

    def test_arguments_for_the_call(self) -> None:
        assert arguments_of(move).call({"point": Point(1), "by": 3}) == ((Point(1),), {"by": 3})

    @pytest.mark.parametrize("data", [b"", b"[]", b'{"a":1}', b'{"a":1,"b":"2"}', b'{"a":1,"b":2,"c":3}'])
    def test_bad_input_raises_decode_error(self, data: bytes) -> None:
        with pytest.raises(DecodeError):
            add.decode_input(data)

    def test_results_are_encoded_as_declared(self) -> None:
        assert move.encode_result(Point(1, 2)) == b'{"x":1,"y":2}'
        assert move.decode_result(b'{"x":1,"y":2}') == Point(1, 2)
        with pytest.raises(EncodeError, match="Expected `int`, got `str`"):
            add.encode_result("3")

    def test_results_without_an_annotation_may_be_any_value(self) -> None:
        @work
        def unsaid(n):  # type: ignore[no-untyped-def]
            return n

        assert unsaid((1, 2)).input == {"n": (1, 2)}
        assert unsaid.decode_result(unsaid.encode_result({1, 2})) == {1, 2}

    def test_the_result_type_of_a_handler_that_returns_result(self) -> None:
        @work
        def bare(ctx: Context) -> Result: ...  # type: ignore[type-arg,empty-body]

        @work
        def either(ctx: Context, n: int) -> int | Result[str, bytes] | None: ...

        assert bare._result_shape.type is Any
        assert set(get_args(either._result_shape.type)) == {int, str, type(None)}

    def test_the_codec_of_the_type_is_used(self) -> None:
        class Reversed:
            def encode(self, value: Any) -> bytes:
                return repr(value).encode()[::-1]

            def decode(self, data: bytes) -> Any:
                return eval(data[::-1])

        @work(codec=Reversed())
        def secret(n: int) -> int:
            return n

        data = secret.encode_input({"n": 5})
        assert data == b"}5 :'n'{"
        assert secret.decode_input(data) == {"n": 5}
        assert secret.decode_result(secret.encode_result(7)) == 7


class TestDeclarations:
    def test_a_declared_type_can_be_made_but_not_run(self) -> None:
        declared = work.declare("math.add", add.fn, queue="math")
        assert (declared.name, declared(1, b=2).input) == ("math.add", {"a": 1, "b": 2})
        assert not declared.has_handler
        with pytest.raises(DefinitionError, match=r"'math\.add' is only declared here: import its handler"):
            _ = declared.fn

    def test_a_handler_can_be_attached_to_a_declaration(self) -> None:
        declared = work.declare("math.add", add.fn)

        @declared.handler
        def add_here(ctx: Context, a: int, b: int) -> Result[int]:
            return ctx.result(a + b)

        assert add_here is declared
        assert declared.has_handler
        assert handler_of(declared).wants_context
        assert declared.run_in == "thread"
        assert declared.__name__ == "add_here"

    def test_the_defaults_of_the_handler_win(self) -> None:
        def signature(n: int = 1) -> int: ...  # type: ignore[empty-body]

        declared = work.declare("n", signature)
        assert arguments_of(declared).call(declared().input) == ((1,), {})

        @declared.handler
        def handle(n: int = 5) -> int:
            return n

        assert arguments_of(declared).call(declared().input) == ((5,), {})

    def test_a_second_handler_is_refused(self) -> None:
        declared = work.declare("math.add", add.fn)
        declared.handler(add.fn)
        with pytest.raises(TypeError, match=r"'math\.add' has a handler already, add"):
            declared.handler(add.fn)

    def test_a_handler_may_accept_more_or_return_less(self) -> None:
        def signature(n: int, names: list[str], value: int | str, kind: Literal["a"]) -> float | None: ...

        def handle(
            n: float, names: Sequence[str], value: int | str | None, kind: Literal["a", "b"]
        ) -> int: ...  # type: ignore[empty-body]

        def unsaid(n, names, value, kind): ...  # type: ignore[no-untyped-def]

        for fn in (handle, unsaid):
            assert work.declare("n", signature).handler(fn).has_handler

    @pytest.mark.parametrize(
        ("source", "problem"),
        [
            ("(a: int) -> int", "it takes (a), declared is (a, b)"),
            ("(b: int, a: int) -> int", "it takes (b, a), declared is (a, b)"),
            (
                "(a: int, *, b: int) -> int",
                "its parameter 'b' is keyword-only, declared is positional or keyword",
            ),
            ("(a: int, b: str) -> int", "its parameter 'b' is str, declared is int"),
            ("(a: int, b: list[int]) -> int", "its parameter 'b' is list[int], declared is int"),
            ("(a: int, b: int) -> str", "it returns str, declared is int"),
            ("(a: int, b: int) -> int | None", "it returns int | None, declared is int"),
            ("(a: int, b: int) -> Result[str]", "it returns str, declared is int"),
        ],
    )
    def test_a_handler_that_does_not_fit_its_declaration_is_refused(self, source: str, problem: str) -> None:
        namespace: dict[str, Any] = {"Result": Result}
        exec(f"def handle{source}: ...", namespace)
        declared = work.declare("math.add", add.fn)
        with pytest.raises(TypeError) as caught:
            declared.handler(namespace["handle"])
        assert str(caught.value) == f"handle cannot be the handler of 'math.add': {problem}"
        assert not declared.has_handler

    def test_unresolvable_annotations_are_left_to_type_checkers(self) -> None:
        def handle(a: Fraction, b: int) -> int: ...  # type: ignore[empty-body]

        assert work.declare("math.add", add.fn).handler(handle).has_handler  # type: ignore[arg-type]

    def test_a_handler_must_keep_the_declared_defaults(self) -> None:
        def signature(n: int = 1) -> None: ...

        def handle(n: int) -> None: ...

        with pytest.raises(TypeError, match="its parameter 'n' needs a default, as declared"):
            work.declare("n", signature).handler(handle)


class TestBatches:
    def test_a_call_of_a_batch_type_takes_one_input(self) -> None:
        @work.batch(size=3, max_wait=0.5, queue="gpu")
        async def embed(texts: list[str]) -> list[Point]:
            return [Point(len(text)) for text in texts]

        made = embed("hello")
        assert made.input == {"texts": "hello"}
        assert embed.batch is not None
        assert (embed.batch.size, embed.batch.max_wait) == (3, 0.5)
        assert embed.options == {"queue": "gpu"}
        assert embed.decode_result(embed.encode_result(Point(5))) == Point(5)
        assert asyncio.run(embed.fn(["a", "bb"])) == [Point(1), Point(2)]
        with pytest.raises(InputError, match="parameter 'texts': Expected `str`, got `int`"):
            embed(5)  # type: ignore[arg-type]

    def test_exceptions_in_the_output_are_not_values(self) -> None:
        @work.batch()
        def some(texts: Sequence[str]) -> list[int | Exception]:
            return [len(text) for text in texts]

        @work.batch()
        def none(texts: Sequence[str]) -> list[ValueError | TypeError]: ...  # type: ignore[empty-body]

        assert some._result_shape.type is int
        assert some.run_in == "thread"
        assert none._result_shape.type is Any

    @pytest.mark.parametrize("contexts", ["list[Context]", "Sequence[Context]", "list[treadle.Context]"])
    def test_a_batch_function_may_take_the_contexts_of_its_inputs(self, contexts: str) -> None:
        namespace: dict[str, Any] = {"Context": Context, "Sequence": Sequence}
        exec(f"def handle(contexts: {contexts}, texts: list[str]) -> list[int]: ...", namespace)
        handle = work.batch()(namespace["handle"])
        assert handle("a").input == {"texts": "a"}

    def test_a_batch_function_may_have_no_annotations(self) -> None:
        @work.batch()
        def some(values):  # type: ignore[no-untyped-def]
            return values

        assert some((1, 2)).input == {"values": (1, 2)}

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            (
                "(ctx: Context, texts: list[str]) -> list[int]",
                "it cannot take one Context. Take one per input: `contexts: list",
            ),
            (
                "(a: list[str], b: list[str]) -> list[int]",
                "must take one list of inputs, and nothing else",
            ),
            ("() -> list[int]", "must take one list of inputs, and nothing else"),
            ("(*texts) -> list[int]", "must take one list of inputs, and nothing else"),
            ("(*, texts: list[str]) -> list[int]", "must take one list of inputs, and nothing else"),
            ("(text: str) -> list[int]", "a batch function takes a list, and handle takes str"),
            ("(texts: list[str]) -> int", "a batch function returns a list, and handle returns int"),
            ("(texts: set[str]) -> list[int]", "a batch function takes a list, and handle takes set[str]"),
        ],
    )
    def test_a_bad_batch_function_is_refused(self, source: str, message: str) -> None:
        namespace: dict[str, Any] = {"Context": Context}
        exec(f"def handle{source}: ...", namespace)
        with pytest.raises(TypeError) as caught:
            work.batch()(namespace["handle"])
        assert message in str(caught.value)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"size": 0}, "size=0 must be a whole number, 1 or more"),
            ({"size": 1.5}, "size=1.5 must be a whole number, 1 or more"),
            ({"size": True}, "size=True must be a whole number, 1 or more"),
            ({"max_wait": -1}, "max_wait=-1 must not be negative"),
        ],
    )
    def test_bad_settings_of_a_batch_are_refused(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(InputError) as caught:
            work.batch(**settings)
        assert message in str(caught.value)


@dataclass
class FailedOrder:
    id: str
    error: str


class TestCompensation:
    def test_the_failure_is_the_first_parameter(self) -> None:
        @work
        def refund(failure: Failure, note: str = "") -> None: ...

        assert failure_parameter(refund) == "failure"

    def test_on_dead_must_take_one_argument(self) -> None:
        with pytest.raises(TypeError, match="cannot be on_dead=: it must take one argument, a Failure"):
            work(on_dead=add)  # type: ignore[call-overload]

    def test_on_dead_must_take_a_failure(self) -> None:
        """A type that takes something else would be retried as undecodable, when it is too late."""

        @work(name="refund")
        def refund(order: str) -> None: ...

        with pytest.raises(TypeError) as caught:
            work(on_dead=refund)  # type: ignore[call-overload]
        assert str(caught.value) == (
            "'refund' cannot be on_dead=: it gets a Failure, and its parameter 'order' is `str`: annotate it "
            "`Failure`, or give a call, as in on_dead=refund(...)"
        )
        with pytest.raises(TypeError, match="'refund' cannot be on_dead="):
            check_options({"on_dead": refund}, "enqueue")
        assert work(on_dead=refund("o-1"))

    @pytest.mark.parametrize("annotation", [Failure, Failure | None, Any, dict[str, Any], FailedOrder])
    def test_on_dead_may_take_what_a_failure_can_be_read_as(self, annotation: Any) -> None:
        def refund(failure: Any) -> None: ...

        refund.__annotations__["failure"] = annotation
        assert work(on_dead=work(refund))

    @pytest.mark.parametrize("given", ["refund", 5])
    def test_on_dead_must_be_a_work_or_a_type(self, given: Any) -> None:
        with pytest.raises(TypeError, match=r"must be a Work, as in on_dead=refund\(order\), or a work type"):
            work(on_dead=given)

    def test_a_function_that_is_on_dead_must_take_a_failure(self) -> None:
        def refund(order: int) -> None: ...

        def pay() -> None: ...

        with pytest.raises(TypeError, match=r"'pay\.on_dead' cannot be on_dead=: .* its parameter 'order'"):
            work(name="pay", on_dead=refund)(pay)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="cannot be on_dead=: it must take one argument, a Failure"):
            work(name="pay", on_dead=add.fn)(pay)  # type: ignore[call-overload]
        assert work(name="pay", on_dead=lambda failure: failure.id)(pay)

    def test_a_function_is_on_dead_of_a_type_only(self) -> None:
        """An item could not be stored with it: the function has no name that another process knows."""
        with pytest.raises(TypeError, match=r"a function can be given to @work\(\.\.\.\) only"):
            check_options({"on_dead": lambda failure: None}, "enqueue")

    def test_on_dead_whose_annotation_comes_later_is_checked_when_it_is_registered(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @work(name="charge", on_dead=work(refund_later))  # type: ignore[call-overload,untyped-decorator]
        def charge() -> None: ...

        monkeypatch.setitem(globals(), "LaterClass", int)
        with pytest.raises(TypeError, match="cannot be on_dead="):
            Client(work=[charge])


def refund_later(order: LaterClass) -> None: ...  # type: ignore[name-defined]  # noqa: F821


class TestPickling:
    def test_types_and_works_cross_processes_by_reference(self) -> None:
        assert pickle.loads(pickle.dumps(move)) is move
        made = add(1, 2)
        copy: Work[int, int] = pickle.loads(pickle.dumps(made))
        assert (copy.id, copy.input, copy.definition) == (made.id, made.input, add)

    def test_a_type_that_is_not_at_module_level_cannot_be_unpickled(self) -> None:
        @work
        def inner() -> None: ...

        with pytest.raises(DefinitionError, match="define it at the top level of its module"):
            pickle.loads(pickle.dumps(inner))


def test_a_result_that_cannot_be_stored_is_refused_when_the_work_is_made() -> None:
    """Not after the handler ran."""

    @work(name="counted")
    async def counted() -> defaultdict[str, int]:
        return defaultdict(int)

    @work(name="listed")
    async def listed() -> Result[list[defaultdict[str, int]], None]:
        raise NotImplementedError

    for each in (counted, listed):
        with pytest.raises(DefinitionError, match=r"the result: .*its factory is code"):
            each()


def test_a_handler_may_never_return() -> None:
    @work(name="raises")
    async def raises() -> NoReturn:
        raise NotImplementedError

    assert raises().input == {}
