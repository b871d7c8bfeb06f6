"""The work types that an app knows, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType, ModuleType
from typing import Any, cast

import msgspec

from treadle.bulk_action import BULK_TYPE
from treadle.codec import Codec, JsonCodec, check_size
from treadle.define.dependency import BUILT_IN, DEPENDENCY
from treadle.define.secret_values import SecretMask
from treadle.define.signature import GROUP_VALUE, Handler
from treadle.define.work import Work, WorkTypeBase, check_takes_failure, is_work
from treadle.define.work_type import (
    WorkType,
    check_storable,
    declared_types,
    defined_in,
    handler_of,
    own_compensation,
)
from treadle.errors import DefinitionError, DuplicateWorkError, InputError, UnknownWorkError

AnyType = WorkType[..., Any, Any]


class Registry:
    """on_unregistered: called once for each type that is enqueued and not registered."""

    def __init__(
        self, codec: Codec, on_unregistered: Callable[[AnyType], None], mask: Iterable[str] = ()
    ) -> None:
        self.codec = codec
        self.mask = SecretMask(mask, self.declared_types)
        self._on_unregistered = on_unregistered
        self._types: dict[str, AnyType] = {}
        self._by_name: dict[str, AnyType] = {}
        """The same types, also by their aliases."""
        self._unregistered: dict[str, AnyType] = {}
        """Types that were enqueued and are not registered. Their results can be read as declared."""
        self._replaced: dict[AnyType, Handler] = {}
        """The functions that run types instead of their handlers."""

    @property
    def types(self) -> Mapping[str, AnyType]:
        return MappingProxyType(self._types)

    def add(self, *given: AnyType | ModuleType | Iterable[AnyType]) -> None:
        """Register types, the types found in modules, or collections of types."""
        for type in _types_in(given):
            _check_not_built_in(type)
            self._check_storable(type)
            if (compensation := type.options.get("on_dead")) is not None and not is_work(compensation):
                check_takes_failure(compensation)
            for name in (type.name, *type.aliases):
                self._check_free(name, type)
            self._types[type.name] = type
            self._by_name.update(dict.fromkeys((type.name, *type.aliases), type))
            if isinstance(compensation, WorkType) and compensation.name == own_compensation(type.name):
                self.add(cast("AnyType", compensation))

    def _check_free(self, name: str, type: AnyType) -> None:
        known = self._by_name.get(name, type)
        if known is not type:
            aliased = [each.name for each in (type, known) if name in each.aliases]
            raise DuplicateWorkError(name, aliased[0] if aliased else None)

    def _check_storable(self, type: AnyType) -> None:
        """Raise DefinitionError if its annotations name a class that the default codec cannot store."""
        if isinstance(type.options.get("codec", self.codec), JsonCodec):
            check_storable(type)

    def replace(self, type: AnyType, handler: Handler | None) -> None:
        """Run this function instead of the handler of a type. None: the handler again."""
        self._replaced.pop(type, None)
        if handler is not None:
            self._replaced[type] = handler

    def handler(self, type: AnyType) -> Handler | None:
        """The function that runs a type here. None: the type is only declared."""
        return self._replaced.get(type) or (handler_of(type) if type.has_handler else None)

    def is_replaced(self, type: AnyType) -> bool:
        """Whether another function than its handler runs this type."""
        return type in self._replaced

    @property
    def replaced(self) -> list[AnyType]:
        """The types that another function than their handler runs."""
        return list(self._replaced)

    def get(self, name: str) -> AnyType | None:
        """The type of this name, or with this alias."""
        return self._by_name.get(name)

    def name_of(self, name: str) -> str:
        """The name of the type that runs items that are stored under `name`. Unknown: the same."""
        type = self._by_name.get(name)
        return name if type is None else type.name

    def all_names(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names under which items of these types may be stored: also the other names of each type."""
        found: dict[str, None] = {}
        for name in names:
            type = self._by_name.get(name)
            found.update(dict.fromkeys((name,) if type is None else (type.name, *type.aliases)))
        return tuple(found)

    def find(self, name: str) -> AnyType:
        type = self._by_name.get(name)
        if type is None and name in BUILT_IN:
            raise InputError(f"{name!r} is built in, and is not submitted by name: {BUILT_IN[name]}")
        if type is None:
            raise UnknownWorkError(name, self._types)
        return type

    def type_of(self, work: Work[Any, Any]) -> AnyType:
        """The type of a Work that is being enqueued. It need not be registered. `DuplicateWorkError` if two
        types with handlers share its name."""
        known = self._types.get(work.type)
        if known is not None and known is work.definition:
            return known
        own = cast("AnyType", work.definition)
        if known is None:
            return self._remember(own)
        if known.has_handler and own.has_handler:
            raise DuplicateWorkError(work.type)
        # One of the two is a declaration of the other: they are the same type.
        return known

    def _remember(self, type: AnyType) -> AnyType:
        if self._unregistered.get(type.name) is not type:
            _check_not_built_in(type)
            self._unregistered[type.name] = type
            if type.name not in self._by_name:  # an alias: the other type runs it
                self._on_unregistered(type)
        return type

    def local_place(self, name: str) -> str | None:
        """The function inside which the handler of a type is defined. None: it has no handler here, or one
        that another process can import."""
        type = self._by_name.get(name) or self._unregistered.get(name)
        return None if type is None else defined_in(type)

    def codec_of(self, type: str) -> Codec:
        """How the values of a type are stored: by its own codec, or by the app's."""
        known = self._by_name.get(type) or self._unregistered.get(type)
        return self.codec if known is None else known.options.get("codec", self.codec)

    def read_result(self, type: str, data: bytes | None, of: WorkTypeBase | None = None) -> Any:
        """Decode a stored result as the type declares it, or with the app's codec if the type is unknown.
        of: the type, if the caller has it."""
        if data is None:
            return None
        known = self._by_name.get(type) or cast("AnyType | None", of) or self._unregistered.get(type)
        if type == BULK_TYPE:
            return msgspec.json.decode(data)
        return self.codec.decode(data) if known is None else known.decode_result(data, self.codec)

    def declared_types(self, type: str) -> list[Mapping[str, Any]]:
        """The types of the parameters of a work type, by name, as `return` that of its result, and as
        `GROUP_VALUE` that of what it gives to its group. Empty if its code is not here: then nothing says
        what is secret."""
        known = self._by_name.get(type) or self._unregistered.get(type)
        if known is None:
            return [dict.fromkeys(("return", GROUP_VALUE), Any)] if type in BUILT_IN else []
        return declared_types(known)

    def write_result(self, type: str, value: Any, limit: int) -> bytes:
        """Encode a result as `read_result` decodes it. `EncodeError`, `PayloadTooLarge`."""
        known = self._by_name.get(type)
        data = self.codec.encode(value) if known is None else known.encode_result(value, self.codec)
        return check_size(data, limit, "the result of", type)


def _check_not_built_in(type: AnyType) -> None:
    for name in (type.name, *type.aliases):
        if name in BUILT_IN and type is not DEPENDENCY:
            raise DefinitionError(f"{name!r} is the name of a built-in type: choose another one")


def _types_in(given: Iterable[Any]) -> Iterator[AnyType]:
    for each in given:
        if isinstance(each, WorkType):
            yield each
        elif isinstance(each, ModuleType):
            yield from (value for value in vars(each).values() if isinstance(value, WorkType))
        elif isinstance(each, list | tuple | set | frozenset):
            yield from _types_in(cast("Iterable[Any]", each))
        else:
            raise _no_type(each)


def _no_type(value: object) -> TypeError:
    start = "register takes work types and modules, not"
    if is_work(value):
        called = value.type.rpartition(".")[2]
        return TypeError(f"{start} a call: leave its arguments out, as in work=[{called}]")
    if inspect.isroutine(value):
        return TypeError(f"{start} the function {value.__name__}: decorate it with @work")
    return TypeError(f"{start} {value!r:.80}: use @work first")
