"""Webhook: send what changes about problems to a URL, as JSON that chat tools can show.

    app = Treadle(url, work=[...], on_problem=Webhook("https://hooks.example.org/T0/B1", secret="..."))

With the standard library, in a thread: a few messages an hour do not justify an HTTP client as a dependency.
A URL is a secret, since chat tools put their token into its path: only its host is ever shown.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, Literal, TypeAlias, cast, get_args
from urllib.parse import SplitResult, unquote, urlsplit, urlunsplit

import msgspec

from treadle.base import VERSION
from treadle.base.callables import check_list
from treadle.base.timing import Duration, iso, seconds
from treadle.base.wording import did_you_mean, duration, listed
from treadle.errors import InputError, TreadleError, class_name
from treadle.item_facts import MAX_WAIT
from treadle.logs.masking import MASK

EVERY: Final = 15.0
"""Seconds between two looks for problems."""
TIMEOUT: Final = 10.0
"""Seconds that a receiver may take."""
SIGNATURE: Final = "Treadle-Signature"
MESSAGE_ID: Final = "Treadle-Message"
LONGEST_URL: Final = 2000
_URL = re.compile(r"[!-~]+")
_WORDS: Final = {"appeared": "New problem", "changed": "Problem changed", "ended": "Problem over"}


ProblemKind = Literal[
    "store_away",
    "killing",
    "no_worker",
    "silent",
    "blocked",
    "undecodable",
    "release",
    "dying",
    "flood",
    "late",
    "schedule",
    "schedule_failed",
    "not_submitted",
    "paused",
    "dead",
]
PROBLEM_KINDS: Final[tuple[ProblemKind, ...]] = get_args(ProblemKind)

_WAS: Final[Mapping[ProblemKind | str, str]] = {
    "store_away": "a store that did not answer",
    "killing": "items that ended workers",
    "no_worker": "items without a worker",
    "silent": "workers that were silent",
    "blocked": "workers that were blocked",
    "undecodable": "arguments that did not decode",
    "release": "deaths that began with the newest release",
    "dying": "many deaths of a type",
    "flood": "a flood",
    "late": "late items",
    "schedule": "schedules that were not fired",
    "schedule_failed": "schedules whose runs failed",
    "not_submitted": "items that waited for ids that were never submitted",
    "paused": "a pause",
    "dead": "dead items",
}
"""Each kind when it is over."""
_OF_WORKERS: Final = ("silent", "blocked")
"""Kinds whose refs say nothing to people."""


class ProblemChange(msgspec.Struct, frozen=True, kw_only=True):
    """A problem has appeared, changed, or ended."""

    id: str
    """Of the message. If it is sent again, it is the same."""
    change: Literal["appeared", "changed", "ended"]
    problem_id: str = ""
    """Of the problem: the same when it appears, changes and ends. If it appears again, it has another. Of
    several that become one, that of the first stays."""
    kind: str
    """As `Problem.kind`, and so on. For one that has ended: as it was last told."""
    text: str
    fix: str = ""
    refs: tuple[str, ...] = ()
    items: int = 0
    at: float
    """When it was noticed, by the store's clock."""
    since: float
    """When it was first noticed."""
    lasted: float | None = None
    """For one that has ended: for how many seconds it was there."""
    tenant: str | None = None
    """Whose problem it is. None: of the whole store."""

    @property
    def message(self) -> str:
        """All of it in a line or two, for people."""
        whose = "" if self.tenant is None else f" of tenant {self.tenant}"
        said = f"{_WORDS[self.change]}{whose} ({self.kind})"
        if self.change == "ended":
            after = "" if self.lasted is None else f" after {duration(self.lasted)}"
            return f"{said}{after}: {self._what_it_was}"
        return f"{said}: {self.text}\n→ {self.fix}" if self.fix else f"{said}: {self.text}"

    @property
    def _what_it_was(self) -> str:
        """Without its age, and what else its text says of the time at which it was told."""
        was = _WAS.get(self.kind, "")
        if not was:
            return self.text
        return f"{was}: {listed(self.refs, 3)}" if self.refs and self.kind not in _OF_WORKERS else was


OnProblem: TypeAlias = "Webhook | Callable[[ProblemChange], Awaitable[object] | object]"
"""Who is told of problems: a `Webhook`, or a function, which may be async. A function that raises, or takes
longer than 20 seconds, is called again later, but not while it still runs in its thread."""


def check_receiver(receiver: object) -> None:
    """`TypeError` unless it can be told of problems. It is not shown, since a URL is a secret."""
    wanted = "problems are told to Webhook(url), or to a function that takes a ProblemChange"
    if isinstance(receiver, Webhook):
        return
    if not callable(receiver):
        raise TypeError(f"{wanted}: not to a {class_name(receiver)}")
    try:
        signature_of = inspect.signature(receiver)
    except (TypeError, ValueError):  # one that does not say what it takes
        return
    try:
        signature_of.bind(None)
    except TypeError:
        named = getattr(receiver, "__qualname__", class_name(receiver))
        raise TypeError(f"{wanted}: {named} does not take one argument") from None


def check_kinds(given: Iterable[Any], field: str) -> frozenset[ProblemKind]:
    """The kinds of problems. `InputError` if one does not exist."""
    found = frozenset(given)
    for each in sorted(found.difference(PROBLEM_KINDS), key=repr):
        kinds = f"is no kind of problem: {', '.join(PROBLEM_KINDS)}"
        hint = did_you_mean(each, PROBLEM_KINDS) if isinstance(each, str) else ""
        raise InputError.of(field, each, f"{kinds}. {hint.capitalize()}".removesuffix(". "))
    return cast("frozenset[ProblemKind]", found)


class WebhookError(TreadleError):
    """The receiver of a webhook did not take a message. It is sent again later."""


class Webhook:
    """Sends problems to a URL.

    secret: signs each message, so that the receiver knows who sent it: see `verify_webhook`.
    every: seconds between two looks at the store. It looks less often if a look takes long.
    max_wait: how long a ready item may wait, before that is a problem.
    ignore: kinds of problems that are not told, as `["paused"]`.
    """

    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        every: Duration = EVERY,
        max_wait: Duration = MAX_WAIT,
        ignore: Iterable[ProblemKind] = (),
    ) -> None:
        self._parts = _checked_url(url)
        self._url = url
        self._secret = None if secret is None else _checked_secret(secret)
        self.every = seconds(every, field="every")
        if not self.every:
            raise InputError.of("every", every, "must be more than 0 seconds")
        self.max_wait = seconds(max_wait, field="max_wait")
        self.ignore = check_kinds(check_list(ignore, "ignore", "'paused'"), "ignore")

    def __repr__(self) -> str:
        return f"Webhook({self.name!r})"

    @property
    def name(self) -> str:
        """Where it sends to, without what is secret."""
        port = "" if self._parts.port is None else f":{self._parts.port}"
        return f"{self._parts.scheme}://{self._parts.hostname}{port}/{MASK}"

    @property
    def key(self) -> str:
        """The same for all processes that send to this URL."""
        return self._url

    def like(self, other: Webhook) -> Webhook:
        """The same. If `other` sends to the same URL: with its settings where this one has none. Who tell the
        same receiver must sign alike, and ignore the same."""
        if other._url != self._url:
            return self
        return Webhook(
            self._url,
            secret=other._secret if self._secret is None else self._secret,
            every=other.every if self.every == EVERY else self.every,
            max_wait=other.max_wait if self.max_wait == MAX_WAIT else self.max_wait,
            ignore=self.ignore or other.ignore,
        )

    def send(self, change: ProblemChange) -> None:
        """Send a message, in the thread of the caller. `WebhookError` if the receiver did not take it."""
        from . import post  # it needs modules that few programs have

        body = msgspec.json.encode(body_of(change))
        try:
            status = post.post(_address(self._parts), body, self._headers(change.id, body), TIMEOUT)
        except post.NotSent as error:
            raise WebhookError(f"{self.name} cannot be reached: {error}") from None
        if not 200 <= status < 300:
            raise WebhookError(f"{self.name} answered {status}")

    def _headers(self, id: str, body: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"treadle/{VERSION}",
            MESSAGE_ID: id,
        }
        if self._parts.username is not None:
            user, password = unquote(self._parts.username), unquote(self._parts.password or "")
            token = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {token}"
        if self._secret is not None:
            headers[SIGNATURE] = signature(self._secret, body, int(time.time()))
        return headers


def body_of(change: ProblemChange) -> dict[str, Any]:
    """A message as JSON. `text` is what chat tools show, the other names are those of `ProblemChange`."""
    fields = {name: getattr(change, name) for name in change.__struct_fields__ if name != "text"}
    fields["at"], fields["since"] = iso(change.at), iso(change.since)
    return {"text": change.message, "problem": change.text, **fields}


def signature(secret: str, body: bytes, at: int) -> str:
    """The value of the header `Treadle-Signature`: when it was sent, and the HMAC-SHA256 of that instant, a
    dot and the body."""
    digest = hmac.new(secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={digest}"


def verify_webhook(secret: str, header: str | None, body: bytes, *, within: Duration = 300.0) -> bool:
    """Whether a message was signed with this secret, for its receiver.

    secret: that of the `Webhook`. `InputError` for one of less than 8 characters, as the one of a variable
        that is not set: everybody could sign with it.
    header: that of `Treadle-Signature`. None, if there is none, is refused.
    body: as it came.
    within: how many seconds old it may be. Older ones may be recordings that are sent again.
    """
    _checked_secret(secret)
    oldest = seconds(within, field="within")
    came: object = body
    if isinstance(came, str):
        raise TypeError("body must be the bytes that came, not str")
    found = re.fullmatch(r"t=([0-9]{1,15}),v1=([0-9a-f]{64})", header or "")
    if header is None or found is None or abs(time.time() - int(found[1])) > oldest:
        return False
    return hmac.compare_digest(signature(secret, body, int(found[1])), header)


def _checked_secret(secret: object) -> str:
    """A secret. The error does not show it."""
    if not isinstance(secret, str) or len(secret) < 8:
        raise InputError("secret must be a text of 8 characters or more", parameters=("secret",))
    return secret


def _checked_url(url: object) -> SplitResult:
    """The parts of a URL. The error does not show it."""
    wrong = "url must be one as https://hooks.example.org/path, without blanks"
    if not isinstance(url, str) or len(url) > LONGEST_URL or not _URL.fullmatch(url):
        raise InputError(wrong, parameters=("url",))
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # of the port, or of brackets
        pass
    raise InputError(wrong, parameters=("url",))


def _address(parts: SplitResult) -> str:
    """The URL without credentials, which are sent as a header, and without fragment."""
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))
