"""Secret values: what is shown as `***` in place of values that only handlers should see.

A value is secret if its type says so (`Annotated[str, Secret]`), or if it stands under a name that tells so,
such as `password`. In URLs, the password is. It is stored as it is, and handlers get it as it is. Only the
code of a work type has its annotations: without it, everything of the type is secret
(`treadle.operate.item_json`). A `Failure` holds the input of another work type: that type says what is secret
in it.
"""

from __future__ import annotations

import contextlib
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Union, cast, get_args, get_origin

import msgspec
import typing_extensions

from treadle.errors import InputError
from treadle.logs.masking import MASK

SECRET_NAMES: Final = (
    "access_key",
    "access_tokens",
    "accesskey",
    "api_key",
    "api_keys",
    "api_tokens",
    "apikey",
    "authorization",
    "basic_auth",
    "bearer",
    "cookie",
    "cookies",
    "credential",
    "credentials",
    "jwt",
    "otp",
    "passphrase",
    "passwd",
    "password",
    "passwords",
    "private_key",
    "privatekey",
    "pwd",
    "refresh_tokens",
    "secret",
    "secrets",
    "session_id",
    "sessionid",
    "token",
)
"""Names that tell that a value is secret. As whole words: `access_token`, `apiKey` and `X-Api-Key` are such
names, `max_tokens` is not."""
ALONE: Final = ("auth", "pass", "signature", "tokens")
"""Names that tell it only if nothing else is in the name: `auth_type` and `max_tokens` are no secrets."""
ENDINGS: Final = ("password", "passwords", "passwd", "passphrase", "secret", "token")
"""Ends of words that tell it: `mypassword`, `clientsecret`."""
LONGEST_CACHED: Final = 100
"""Characters of a name that is kept in memory."""


_HARMLESS: Final = (int, float, bool, str, None, types.NoneType)
"""Types of which only the name of a value tells that it is secret."""
_FAILURE: Final = frozenset(("id", "type", "input", "error", "reason"))
"""Fields of a `Failure`. They tell that a JSON value is one, also where no type is declared."""

_URL_PASSWORD: Final = re.compile(r"(://[^\s/:@?#]*:)[^\s/?#]*@")
_PAIR: Final = re.compile(
    r"""([A-Za-z][\w.-]{0,60})(["']?\s{0,5}[:=]\s{0,5})"""
    r"""("[^"\n]*"?|'[^'\n]*'?|(?:(?:bearer|basic|digest|token)\s+)?[^\s,;&"')\]}]+)""",
    re.IGNORECASE,
)
"""In a text: a name, and what stands behind it."""
SHORTEST: Final = 4
"""Characters of a secret that is looked for in texts. Shorter ones are in many words."""


class Secret:
    """Marks a type whose values are not shown: `password: Annotated[str, Secret]`, as a parameter or a result
    of a work function, or as a field of a class in one. It is stored as it is, and handlers get it as it is.
    """


class SecretMask:
    """Puts `***` in place of the secrets in JSON values.

    names: more names that tell that a value is secret, besides `SECRET_NAMES`.
    types_of: the types of the parameters of a work type, by its name; empty if its code is unknown. None:
    the values were masked before, and inputs in failures stay as they are.
    """

    def __init__(
        self, names: Iterable[str] = (), types_of: Callable[[str], Sequence[Any]] | None = None
    ) -> None:
        wanted = {re.escape(_words(name)): None for name in (*SECRET_NAMES, *check_mask(names))}
        alone = (rf"\A{_words(name)}\Z" for name in ALONE)
        self._pattern = re.compile("|".join((*wanted, *alone, *(f"{end}_" for end in ENDINGS))))
        self._hints = _hints((*SECRET_NAMES, *ALONE, *names))
        self._types_of = types_of
        self._is_secret_name = functools.lru_cache(maxsize=4096)(self._tells)

    def masked(self, value: Any, *declared: Any) -> Any:
        """A JSON value, with `***` in place of what is secret. None stays None.

        declared: the types that it may be of. A mapping gives the types of parameters by name. Without a
        type, only names tell what is secret.
        """
        try:
            return self._masked(value, _plain_types(declared))
        except RecursionError:  # it is nested too deeply to look into it
            return MASK

    def _masked(self, value: Any, declared: Sequence[Any]) -> Any:
        if value is None:
            return None
        if Secret in declared:
            return MASK
        if isinstance(value, dict):
            if Secret in _key_types(declared):
                return MASK
            fields = cast("dict[str, Any]", value)
            masked = {name: self._of_field(name, each, declared) for name, each in fields.items()}
            if self._types_of is not None and fields.keys() >= _FAILURE:
                masked["input"] = self._of_failure(str(fields["type"]), fields["input"], self._types_of)
            return masked
        if isinstance(value, list | tuple):
            parts = cast("Sequence[Any]", value)
            return [self._masked(each, _element_types(declared, at)) for at, each in enumerate(parts)]
        if isinstance(value, str) and "://" in value:
            return _URL_PASSWORD.sub(rf"\1{MASK}@", value)
        return value

    def _of_field(self, name: str, value: Any, declared: Sequence[Any]) -> Any:
        # Whether there is a password is no secret.
        if value is None or isinstance(value, bool) or not self.is_secret_name(name):
            return self._masked(value, _field_types(declared, name))
        return MASK

    def _of_failure(self, type: str, input: Any, types_of: Callable[[str], Sequence[Any]]) -> Any:
        declared = types_of(type)
        return self._masked(input, declared) if declared else MASK

    def masked_text(self, text: str, secrets: Iterable[str] = ()) -> str:
        """A text, with `***` in place of these secrets, of passwords in URLs, and of what stands behind a
        name that tells so: `token=...`, `"password": "..."`."""
        for secret in secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        if "://" in text:
            text = _URL_PASSWORD.sub(rf"\1{MASK}@", text)
        if ("=" in text or ":" in text) and self._may_name_secret(text):
            text = _PAIR.sub(self._of_pair, text)
        return text

    def _may_name_secret(self, text: str) -> bool:
        """Whether one of the words is in a text. Most texts are done with this: a pattern takes 15 times as
        long."""
        folded = text.casefold()
        for hint in self._hints:  # noqa: SIM110  a generator takes twice as long
            if hint in folded:
                return True
        return False

    def _of_pair(self, pair: re.Match[str]) -> str:
        return f"{pair[1]}{pair[2]}{MASK}" if self.is_secret_name(pair[1]) else pair[0]

    def secrets_in(self, value: Any, *declared: Any) -> list[str]:
        """The texts in a JSON value that `masked` hides, the longest first."""
        found = {text for text in _hidden(value, self.masked(value, *declared)) if len(text) >= SHORTEST}
        return sorted(found, key=len, reverse=True)

    def may_hide(self, *declared: Mapping[str, Any]) -> bool:
        """Whether arguments of these types may hold something that `masked` hides, besides URLs."""
        return any(
            tp not in _HARMLESS or self.is_secret_name(name)
            for types in declared
            for name, each in types.items()
            for tp in _plain(each)
        )

    def is_secret_name(self, name: str) -> bool:
        """Whether a name tells that what stands under it is secret."""
        return self._is_secret_name(name) if len(name) <= LONGEST_CACHED else self._tells(name)

    def _tells(self, name: str) -> bool:
        return self._pattern.search(_words(name)) is not None


def _hints(names: Iterable[str]) -> tuple[str, ...]:
    """Words of which a text has one if it has one of these names. One that has another in it is left out."""
    parts = ([word.casefold() for word in _words(name).strip("_").split("_")] for name in names)
    # The last word, unless it is in many others: `id`.
    words = {each[-1] if len(each[-1]) > 2 else max(each, key=len) for each in parts}
    return tuple(sorted(word for word in words if not any(one in word for one in words - {word})))


def _hidden(value: Any, shown: Any) -> Iterator[str]:
    """The texts of a JSON value that are not in what is shown of it."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        for name, each in fields.items():
            yield from _hidden(each, shown[name] if isinstance(shown, dict) else MASK)
    elif isinstance(value, list | tuple):
        parts = cast("Sequence[Any]", value)
        for at, each in enumerate(parts):
            yield from _hidden(each, shown[at] if isinstance(shown, list) else MASK)
    elif value != shown and value is not None and not isinstance(value, bool):
        yield str(value)


def check_mask(names: Iterable[str]) -> tuple[str, ...]:
    """Names for `mask=`. InputError if it is no list of names."""
    given: Any = names
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InputError.of("mask", given, 'must be a list of names, as in ["iban", "phone_number"]')
    checked: tuple[Any, ...] = tuple(given)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    for name in checked:
        if not isinstance(name, str) or _words(name) == "__":
            raise InputError.of("mask", name, "is no name: give letters or digits")
    return checked


_BETWEEN_WORDS: Final = re.compile(
    r"[\W_]+|(?<=[^\W_A-Z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][^\W_A-Z0-9])|(?<=[^\W\d_])(?=\d)"
)


def _words(name: str) -> str:
    """`accessToken`, `access-token` and `ACCESS_TOKEN` as `_access_token_`."""
    return f"_{_BETWEEN_WORDS.sub('_', name).strip('_').lower()}_"


# -- types ---------------------------------------------------------------------------------------------


def holds_secret(*declared: Any) -> bool:
    """Whether something in these types is marked as secret."""
    seen: list[Any] = []
    waiting = [*_plain_types(declared)]
    while waiting:
        tp = waiting.pop()
        if tp is Secret:
            return True
        if tp not in seen:
            seen.append(tp)
            inside = (*_fields(tp).values(), *(each for each in get_args(tp) if each is not Ellipsis))
            waiting += _plain_types(inside)
    return False


_WRAPPERS: Final = (
    ClassVar,
    Final,
    typing.Required,
    typing.NotRequired,
    typing_extensions.ReadOnly,
)


_ALIASES: Final = (typing_extensions.TypeAliasType, getattr(typing, "TypeAliasType", Secret))
"""`type Name = ...`. Python 3.11 does not have it."""


def _plain_types(declared: Iterable[Any]) -> tuple[Any, ...]:
    """The types that these stand for: members of unions, and what is annotated, named or wrapped. `Secret`
    itself is among them if one of them is marked."""
    return tuple(plain for tp in declared for plain in _plain(tp))


def _plain(tp: Any) -> Iterator[Any]:
    origin, args = get_origin(tp), get_args(tp)
    if origin is Annotated:
        if any(each is Secret or isinstance(each, Secret) for each in args[1:]):
            yield Secret
        yield from _plain(args[0])
    elif origin in (Union, types.UnionType):
        yield from _plain_types(args)
    elif origin in _WRAPPERS:
        yield from _plain(args[0])
    elif hasattr(tp, "__supertype__"):  # a NewType
        yield from _plain(tp.__supertype__)
    elif isinstance(tp, typing.TypeVar):
        yield from _plain_types(tp.__constraints__ or (tp.__bound__ or Any,))
    elif isinstance(origin or tp, _ALIASES):
        named: Any = (origin or tp).__value__
        yield from _plain(named[args] if args else named)
    else:
        yield tp


def _field_types(declared: Iterable[Any], name: str) -> tuple[Any, ...]:
    """The types of what stands under a name in an object."""
    found: list[Any] = []
    for tp in declared:
        fields = _fields(tp)
        if name in fields:
            found.append(fields[name])
        elif _is_a(tp, Mapping):
            found += get_args(tp)[1:]
    return _plain_types(found)


def _key_types(declared: Iterable[Any]) -> tuple[Any, ...]:
    return _plain_types(each for tp in declared if _is_a(tp, Mapping) for each in get_args(tp)[:1])


def _element_types(declared: Iterable[Any], at: int) -> tuple[Any, ...]:
    """The types of an element of an array."""
    found: list[Any] = []
    for tp in declared:
        fields, args = [*_fields(tp).values()], get_args(tp)
        if fields:  # of a named tuple, or of a class that is stored as an array
            found += fields[at : at + 1]
        elif _is_a(tp, tuple) and Ellipsis not in args:
            found += args[at : at + 1]
        elif not _is_a(tp, Mapping):
            found += (each for each in args if each is not Ellipsis)
    return _plain_types(found)


def _is_a(tp: Any, base: type[Any]) -> bool:
    origin = get_origin(tp) or tp
    return isinstance(origin, type) and issubclass(origin, base)


def _fields(tp: Any) -> Mapping[str, Any]:
    """The types of the fields of a class, by their names in JSON. Empty for other types."""
    if isinstance(tp, Mapping):
        return cast("Mapping[str, Any]", tp)
    try:
        return _class_fields(tp)
    except TypeError:  # it cannot be hashed
        return _class_fields.__wrapped__(tp)


@functools.lru_cache(maxsize=1024)
def _class_fields(tp: Any) -> Mapping[str, Any]:
    cls: Any = get_origin(tp) or tp
    if not _is_a(cls, object) or cls.__module__ == "builtins":
        return {}
    with contextlib.suppress(Exception):  # a class of any kind, with any annotations
        if issubclass(cls, msgspec.Struct):
            return {each.encode_name: each.type for each in msgspec.structs.fields(tp)}
        if isinstance(models := getattr(cls, "model_fields", None), dict):
            return dict(_model_fields(cast("dict[str, Any]", models)))
        hints = typing.get_type_hints(cls, include_extras=True)
        given = dict(zip(getattr(cls, "__parameters__", ()), get_args(tp), strict=False))
        return {name: _filled(each, given) for name, each in hints.items()} if given else hints
    return {}


def _model_fields(models: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Those of a pydantic model."""
    for name, field in models.items():
        marked = any(each is Secret or isinstance(each, Secret) for each in field.metadata)
        tp: Any = Annotated[field.annotation, Secret] if marked else field.annotation
        yield name, tp
        if alias := field.serialization_alias or field.alias:
            yield alias, tp


def _filled(tp: Any, given: Mapping[Any, Any]) -> Any:
    """A type with the arguments of a generic class in place of its type variables."""
    if tp in given:
        return given[tp]
    wanted = getattr(tp, "__parameters__", ())
    return tp[tuple(given.get(each, Any) for each in wanted)] if wanted else tp


__all__ = ["SECRET_NAMES", "Secret", "SecretMask", "check_mask", "holds_secret"]
