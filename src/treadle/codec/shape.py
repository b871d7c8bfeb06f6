"""One declared type: validates its values, writes them, and reads them back as that type.

A Shape is built once per type and kept. If msgspec knows every part of the type, it writes and reads values
in one step. Other values are made trees (see `tree`) and left to the codec.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import inspect as info

from treadle.errors import DecodeError, DefinitionError, EncodeError, shown

from . import hooks
from .bad_value import BadValue, unreadable
from .collisions import SMALL_DATA, HashedTypes, read_numbers
from .hooks import as_numbers, is_defaultdict, numbered, plain, rebuild, stored_as
from .json_codec import MARK_BYTES, Codec, JsonCodec, default_codec
from .tree import Choice, is_collection, is_open, is_unknown, parts, tree_maker

# Passed to msgspec as builtin types, so that it takes only instances and does not parse text into a datetime.
_INSTANCES: Final = (datetime, date, time, timedelta, Decimal, UUID, bytes, bytearray)
_TEXT_LIKE: Final = (
    info.DateTimeType,
    info.DateType,
    info.TimeType,
    info.TimeDeltaType,
    info.DecimalType,
    info.UUIDType,
    info.BytesType,
    info.ByteArrayType,
)
_TIMES: Final = (info.DateTimeType, info.TimeType)
_CLASSES: Final = (info.StructType, info.DataclassType, info.NamedTupleType)
_NUMBERS: Final = (info.FloatType, info.CustomType)

write_json = msgspec.json.Encoder(enc_hook=hooks.write).encode


class Shape:
    """How values of one declared type are stored. Made by `Shape.for_type`."""

    def __init__(self, tp: Any, *, from_dict: bool = False) -> None:
        """`from_dict`: values of the class itself always arrive as dicts, so their content is validated."""
        self.type = tp
        self._wire = supported(tp)
        root = info.type_info(self._wire)
        inside = list(parts(root))
        self._is_open = any(is_open(part) for part in inside)
        self._has_classes = any(isinstance(part, _CLASSES) for part in inside[from_dict:])
        self._has_numbers = any(isinstance(part, _NUMBERS) for part in inside)
        self._has_times = any(isinstance(part, _TIMES) for part in inside)
        has_texts = any(isinstance(part, _TEXT_LIKE) or is_collection(part) for part in inside)
        self._builtin = _INSTANCES if has_texts else None
        self._is_simple = not any(isinstance(part, (*_TEXT_LIKE, info.CustomType)) for part in inside)
        self.is_plain = self._is_simple and not (
            self._is_open or self._has_classes or self._has_numbers or self._has_times
        )
        """It holds only text, integers and the like, also in lists, so one call of msgspec writes it."""
        self._hashed = HashedTypes(self._wire) or None
        self._enums = numbered(() if from_dict else inside)
        self._has_unknown = any(is_unknown(part) for part in inside)
        self._to_tree = tree_maker(root)
        self._to_tree_but_times = tree_maker(root, keep=(datetime, time))
        self._read = msgspec.json.Decoder(self._wire, dec_hook=_lift_hook).decode

    @classmethod
    def for_type(cls, tp: Any) -> Shape:
        """Return the shape of a type. DefinitionError if its values cannot be stored."""
        try:
            return _shape(tp)
        except TypeError:  # not hashable: an Annotated with a list inside, for instance
            return cls(tp)

    def encode(self, value: Any, codec: Codec = default_codec) -> bytes:
        """Validate and write. EncodeError, with the path, if it is not of this type or cannot be written."""
        if self.is_plain and type(codec) is JsonCodec:
            try:
                data = write_json(msgspec.convert(value, self._wire))
                if data.find(MARK_BYTES) < 0:
                    return data
            except Exception:  # noqa: BLE001  the code below finds what is wrong, and where
                pass
        try:
            return self.write(self.check(value), codec)
        except BadValue as refused:
            raise EncodeError(refused.problem, path=refused.path) from refused

    def decode(
        self, data: bytes, codec: Codec = default_codec, change: Callable[[Any], Any] | None = None
    ) -> Any:
        """Read a value of this type. DecodeError has the path of the part at fault.

        change: is given what the codec has read, and returns what is validated.
        """
        try:
            if change is None and type(codec) is JsonCodec and data.find(MARK_BYTES) < 0:
                if self._hashed is not None and len(data) >= SMALL_DATA:
                    self._hashed.check(read_numbers(data))
                return self._read(data)
            tree = codec.decode(data) if change is None else change(codec.decode(data))
            if self._hashed is not None:
                self._hashed.check(tree)
            return self.from_tree(tree)
        except DecodeError:
            raise
        except Exception as error:
            raise unreadable(error) from error

    def check(self, value: Any) -> Any:
        """Return `value` as this type, or raise BadValue. `"1"` is not an int, 1 is a float.

        The fields of dataclass instances and the like are validated too: they may hold any value at runtime.
        """
        try:
            checked = self._convert(as_numbers(value, self._enums) if self._enums else value)
            if self._has_classes:
                self._convert(self._inside(checked))
        except Exception as error:
            raise BadValue.because(error) from error
        return checked

    def fits(self, value: Any) -> bool:
        """Whether a value is of this type, if it can be written or not."""
        try:
            self.check(value)
        except BadValue:
            return False
        return True

    def write(self, checked: Any, codec: Codec) -> bytes:
        """As `encode`, for a value that is validated already."""
        if not self._is_open and type(codec) is JsonCodec:
            try:
                data = write_json(checked)
                if self._is_exact(data, checked):
                    return data
            except Exception:  # noqa: BLE001  the code below finds what is wrong, and where
                pass
        data = codec.encode(self.to_tree(checked))
        if self._has_unknown and type(codec) is JsonCodec:
            self._check_reads_back(data)
        return data

    def _check_reads_back(self, data: bytes) -> None:
        """Raise BadValue if the data cannot be read as this type: a subclass of dict is written as a dict."""
        try:
            self.decode(data)
        except DecodeError as error:
            raise BadValue(f"it would not read back ({error}): declare a type that is stored") from error

    def to_tree(self, checked: Any) -> Any:
        """Return the tree that a codec writes. Raises BadValue."""
        try:
            tree = self._to_tree(checked)
            return tree if self._keeps_times(tree, checked) else self._to_tree_but_times(checked)
        except Exception as error:
            raise BadValue.because(error) from error

    def from_tree(self, tree: Any) -> Any:
        """Return the value that `to_tree` made this tree of. Raises what a constructor of the type raises."""
        return msgspec.convert(tree, self._wire, dec_hook=_lift_hook)

    def _convert(self, value: Any) -> Any:
        if self._is_simple:  # passing options, even unset ones, doubles the time for a small value
            return msgspec.convert(value, self._wire)
        return msgspec.convert(value, self._wire, builtin_types=self._builtin, dec_hook=_check_hook)

    def _inside(self, value: Any) -> Any:
        """Return the content of instances as plain values, since msgspec does not validate instances."""
        try:
            return msgspec.to_builtins(value, builtin_types=self._builtin, enc_hook=hooks.write)
        except Exception:  # noqa: BLE001  a class that only the codec may know: the codec decides
            return value

    def _keeps_times(self, tree: Any, checked: Any) -> bool:
        """Whether no datetime lost the seconds of its UTC offset. If one did, the codec receives it as is."""
        return not self._has_times or self.from_tree(tree) == checked

    def _is_exact(self, data: bytes, value: Any) -> bool:
        """Whether msgspec wrote the value exactly: it writes NaN as null, and rounds UTC offsets."""
        if data.find(MARK_BYTES) >= 0 or (self._has_numbers and data.find(b"null") >= 0):
            return False
        return not self._has_times or self._read(data) == value


@lru_cache(maxsize=1024)
def _shape(tp: Any) -> Shape:
    return Shape(tp)


def supported(tp: Any) -> Any:
    """Return `tp` with each union whose members msgspec cannot tell apart replaced by a Choice."""
    reason = _unsupported(tp)
    if reason is None:
        for part in parts(info.type_info(tp)):
            _refuse(part)
        return tp
    replaced = _replaced(tp)
    if replaced is tp or _unsupported(replaced) is not None:
        raise DefinitionError(f"{shown(tp)} cannot be stored: {reason}")
    return replaced


def plain_class_in(tp: Any) -> type[Any] | None:
    """Return a class in a type whose instances the default codec cannot store: one that is no dataclass, no
    msgspec.Struct, no pydantic model. DefinitionError if the type cannot be stored at all."""
    for part in parts(info.type_info(supported(tp))):
        if is_unknown(part) and isinstance(part, info.CustomType):
            cls: type[Any] = hooks.bare(part.cls)
            if cls not in (object, complex) and not issubclass(cls, BaseException) and cls.__class__ is type:
                return cls
    return None


def _refuse(part: info.Type) -> None:
    """Raise DefinitionError for a class that msgspec takes, and whose values would not read back."""
    if isinstance(part, info.CustomType) and is_defaultdict(part.cls):
        raise DefinitionError(
            f"{shown(part.cls)} cannot be stored: its factory is code. Declare a dict, and make a "
            "defaultdict of it"
        )


def _unsupported(tp: Any) -> str | None:
    try:
        msgspec.json.Decoder(tp)
    except (TypeError, NameError) as error:
        return str(error)
    return None


def _replaced(tp: Any) -> Any:
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Union or origin is types.UnionType:
        members = {_name(member, args): Shape.for_type(member) for member in args}
        return type("Choice", (Choice,), {"members": members})
    if origin is typing.Annotated:
        return supported(args[0])
    if origin is None or origin is typing.Literal:
        return tp
    return origin[tuple(arg if arg is Ellipsis else supported(arg) for arg in args)]


def _name(tp: Any, siblings: tuple[Any, ...]) -> str:
    """Return the stored name of a union member. It has the module only where two members share a name."""
    if not isinstance(tp, type) or typing.get_args(tp):
        return str(tp)
    namesakes = [each for each in siblings if getattr(each, "__qualname__", None) == tp.__qualname__]
    return tp.__qualname__ if len(namesakes) == 1 else f"{tp.__module__}.{tp.__qualname__}"


def _check_hook(cls: Any, value: Any) -> Any:
    bare = hooks.bare(cls)
    if issubclass(bare, Choice):
        return bare.check(value)
    stored = stored_as(cls)
    if stored is None:
        return hooks.read(cls, value)
    return _rebuilt(cls, value, stored, builtin_types=_INSTANCES, dec_hook=_check_hook)


def _lift_hook(cls: Any, value: Any) -> Any:
    bare = hooks.bare(cls)
    if issubclass(bare, Choice):
        return bare.from_tree(value)
    stored = stored_as(cls)
    if stored is None:
        return hooks.read(cls, value)
    return _rebuilt(cls, value, stored, dec_hook=_lift_hook)


def _rebuilt(cls: Any, value: Any, stored: Any, **options: Any) -> Any:
    try:
        return rebuild(cls, msgspec.convert(plain(cls, value), stored, **options))
    except msgspec.ValidationError as error:
        # msgspec adds the path of the collection. The path inside it goes into the message.
        refused = BadValue.because(error)
        raise ValueError(f"{refused.problem} (inside, at {refused.path})") from error
