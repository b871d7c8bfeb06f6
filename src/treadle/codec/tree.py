"""Trees: a value of a declared type becomes a tree that any codec can write.

Where a type is declared, the tree holds JSON-native values: a dataclass becomes a dict, a datetime a text.
The type tells the reader what they were. Where no type is declared (`Any`), or a class that msgspec does not
know, the tree holds the value itself, and the codec writes it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import msgspec
from msgspec import inspect as info
from typing_extensions import TypeIs

from . import hooks
from .bad_value import BadValue
from .hooks import plain, stored_as

if TYPE_CHECKING:
    from .shape import Shape

ToTree: TypeAlias = Callable[[Any], Any]

_SCALARS: Final = (info.IntType, info.FloatType, info.BoolType, info.StrType, info.NoneType)

_Fields: TypeAlias = info.StructType | info.DataclassType | info.TypedDictType


class _TakesAnything(type):
    def __instancecheck__(cls, instance: object) -> bool:
        # msgspec checks that the value a hook returned is an instance of the declared type.
        return True


class Choice(metaclass=_TakesAnything):
    """Replaces a union whose members msgspec cannot tell apart (`A | B`, `str | UUID`, ...).

    Each such union gets its own subclass. A value is written as `[name of the member, value]`.
    """

    members: ClassVar[Mapping[str, Shape]]

    @classmethod
    def check(cls, value: Any) -> Any:
        return cls._pick(value)[1]

    @classmethod
    def to_tree(cls, value: Any) -> list[Any]:
        name, checked = cls._pick(value)
        return [name, cls.members[name].to_tree(checked)]

    @classmethod
    def from_tree(cls, tree: Any) -> Any:
        name, inner = tree
        if name not in cls.members:
            raise ValueError(f"Expected one of `{' | '.join(cls.members)}`, got {name!r}")
        return cls.members[name].from_tree(inner)

    @classmethod
    def _pick(cls, value: Any) -> tuple[str, Any]:
        """Return the member that accepts this value. That of its exact class is tried before base classes."""
        exact_first = sorted(
            cls.members.items(), key=lambda each: hooks.bare(each[1].type) is not type(value)
        )
        for name, member in exact_first:
            try:
                return name, member.check(value)
            except BadValue:
                continue
        raise TypeError(f"Expected one of `{' | '.join(cls.members)}`, got `{type(value).__name__}`")


def parts(root: info.Type) -> Iterator[info.Type]:
    """Yield `root` and every type inside it, each once: declared types may be recursive."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            waiting.extend(_children(node))
            yield node


def _children(node: info.Type) -> list[info.Type]:
    match node:
        case info.ListType() | info.SetType() | info.FrozenSetType() | info.VarTupleType():
            return [node.item_type]
        case info.TupleType():
            return list(node.item_types)
        case info.DictType():
            return [node.key_type, node.value_type]
        case info.UnionType():
            return list(node.types)
        case info.StructType() | info.DataclassType() | info.NamedTupleType() | info.TypedDictType():
            return [field.type for field in node.fields]
        case info.Metadata():
            return [node.type]
        case _:
            return []


def is_open(node: info.Type) -> bool:
    """Whether the codec writes this part: its type is `Any`, or a class that msgspec does not know."""
    return isinstance(node, info.AnyType) or (
        isinstance(node, info.CustomType) and not hooks.is_known(node.cls)
    )


def is_unknown(node: info.Type) -> bool:
    """Whether only a codec may know the class of this part."""
    return isinstance(node, info.CustomType) and is_open(node) and not (_choice(node) or is_collection(node))


def is_collection(node: info.Type) -> TypeIs[info.CustomType]:
    """Whether it is a collection that is stored as a dict or a list. The codec writes what is in it."""
    return isinstance(node, info.CustomType) and stored_as(node.cls) is not None


def tree_maker(root: info.Type, keep: tuple[type, ...] = ()) -> ToTree:
    """Return the function that makes trees of values of this type. Instances of `keep` stay as they are."""
    return _TreeMaker(keep).of(root)


def _as_is(value: Any) -> Any:
    return value


class _TreeMaker:
    """Makes the function of each type inside a type once, so that recursive types terminate."""

    def __init__(self, keep: tuple[type, ...]) -> None:
        self._made: dict[int, ToTree] = {}
        self._keep = keep

    def of(self, node: info.Type) -> ToTree:
        if id(node) not in self._made:
            self._made[id(node)] = lambda value: self._made[id(node)](value)  # noqa: PLW0108  replaced by the next line
            self._made[id(node)] = self._make(node)
        return self._made[id(node)]

    def _make(self, node: info.Type) -> ToTree:
        if isinstance(node, _SCALARS):
            return _as_is
        if is_open(node):
            choice = _choice(node)
            if choice is not None:
                return choice.to_tree
            return functools.partial(plain, node.cls) if is_collection(node) else _as_is
        if not any(is_open(part) for part in parts(node)):
            return self._plain
        return self._make_open(node)

    def _plain(self, value: Any) -> Any:
        return msgspec.to_builtins(value, builtin_types=self._keep, enc_hook=hooks.write)

    def _make_open(self, node: info.Type) -> ToTree:
        match node:
            case info.ListType() | info.SetType() | info.FrozenSetType() | info.VarTupleType():
                each = self.of(node.item_type)
                return lambda value: [_tree_at(i, item, each) for i, item in enumerate(value)]
            case info.TupleType():
                return self._tuple([self.of(item) for item in node.item_types])
            case info.NamedTupleType():
                return self._tuple([self.of(field.type) for field in node.fields])
            case info.DictType():
                key, item = self.of(node.key_type), self.of(node.value_type)
                return lambda value: {key(k): _tree_at(k, v, item) for k, v in value.items()}
            case info.UnionType():
                return self._union(node)
            case info.StructType() | info.DataclassType() | info.TypedDictType():
                return self._fields(node)
            case info.Metadata():
                return self.of(node.type)
            case _:
                return _as_is

    def _tuple(self, each: list[ToTree]) -> ToTree:
        return lambda value: [_tree_at(i, item, each[i]) for i, item in enumerate(value)]

    def _union(self, node: info.UnionType) -> ToTree:
        members = [(_classes_of(member), self.of(member)) for member in node.types]
        members.sort(key=lambda member: object in member[0])

        def to_tree(value: Any) -> Any:
            for classes, member_to_tree in members:
                if isinstance(value, classes):
                    return member_to_tree(value)
            return self._plain(value)

        return to_tree

    def _fields(self, node: _Fields) -> ToTree:
        fields = [(field.name, field.encode_name, self.of(field.type)) for field in node.fields]
        struct = node if isinstance(node, info.StructType) else None
        # The tag field of a tagged Struct tells it from its siblings.
        label = {struct.tag_field: struct.tag} if struct and struct.tag_field is not None else {}
        as_array = struct is not None and struct.array_like

        def to_tree(value: Any) -> Any:
            made: dict[str, Any] = dict(label)
            for name, encode_name, field_to_tree in fields:
                item = _field(value, name)
                if item is not msgspec.UNSET:
                    made[encode_name] = _tree_at(name, item, field_to_tree)
            return list(made.values()) if as_array else made

        return to_tree


def _tree_at(step: object, value: Any, to_tree: ToTree) -> Any:
    try:
        return to_tree(value)
    except Exception as error:
        raise BadValue.because(error).at(step) from error


def _field(value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(name, msgspec.UNSET)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return getattr(value, name, msgspec.UNSET)


def _choice(node: info.Type) -> type[Choice] | None:
    cls = hooks.bare(node.cls) if isinstance(node, info.CustomType) else object
    return cls if issubclass(cls, Choice) else None


def _classes_of(node: info.Type) -> tuple[type, ...]:
    """Return the classes whose instances this member of a union accepts."""
    match node:
        case info.NoneType():
            return (type(None),)
        case info.AnyType():
            return (object,)
        case info.CustomType():
            return (object,) if _choice(node) else (hooks.bare(node.cls),)
        case info.StructType() | info.DataclassType() | info.NamedTupleType():
            return (node.cls,)
        case info.DictType() | info.TypedDictType():
            return (dict,)
        case info.ListType() | info.SetType() | info.FrozenSetType():
            return (list, set, frozenset)
        case info.TupleType() | info.VarTupleType():
            return (tuple,)
        case _:
            return ()
