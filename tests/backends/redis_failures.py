"""Scripts that fail at a chosen call of the server: a test build of the sources.

The key `fail` has the number of calls until one fails. That one raises, or answers an error if the script has
asked for that (`redis.pcall`). The call after it succeeds again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha1
from typing import Any

from tests.backends.redis_audit import COUNTERS, audit, read_keys
from tests.backends.redis_store import RedisSubject
from tests.support.valkey import Client
from treadle.backends.redis.link import LinkScript, PackedScript, RedisLink
from treadle.backends.redis.scripts import RedisScript, ScriptSource
from treadle.errors import BackendError, TreadleError

_UNFOLDED = RedisScript("unfolded")
INJECTED = "a failure that a test asked for"
FAILING = f"""
local redis = (function(real, key)
  local function fails()
    if real.call('EXISTS', key) == 0 or real.call('DECR', key) > 0 then return false end
    real.call('DEL', key)
    return true
  end
  return setmetatable({{
    call = function(...)
      if fails() then error({{err = 'ERR {INJECTED}'}}) end
      return real.call(...)
    end,
    pcall = function(...)
      if fails() then return {{err = 'ERR {INJECTED}'}} end
      return real.pcall(...)
    end,
  }}, {{__index = real}})
end)(redis, KEYS[%d])
"""


class FailingScript:
    """A script whose calls can fail."""

    def __init__(self, script: LinkScript) -> None:
        self.name = script.name
        self.writes = script.writes
        self.source_for_tests = self.source = _failing(script.source_for_tests)


def _failing(source: Any) -> ScriptSource:
    keys = (*source.keys, "fail")
    first, _, rest = source.text.partition("\n")
    text = f"{first.replace(' flags=no-writes', '')}\n{FAILING % len(keys)}{rest}"
    return ScriptSource(text, sha1(text.encode(), usedforsecurity=False).hexdigest(), keys)


class FailingLink(RedisLink):
    """A link that sends failing scripts."""

    def _pack(self, script: LinkScript) -> PackedScript:
        return super()._pack(FailingScript(script))


class FailingBackend:
    """Carries out each verb many times: once for each of its calls to the server, which then fails, and at
    last undisturbed. Before each time the store is as it was.

    If the verb raises, nothing may be half done, and the verb must succeed when it is repeated. `failures`
    counts the calls that failed.
    """

    def __init__(self, subject: RedisSubject, client: Client, *, step: int = 1) -> None:
        self._subject = subject
        self._client = client
        self._prefix = subject.prefix
        self._step = step
        self.failures = 0
        self.verb = ""
        subject.backend._link.__class__ = FailingLink

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def verb(*args: Any, **options: Any) -> Any:
            return await self._carry_out(name, args, options)

        return verb

    async def _carry_out(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        before = self._dump()
        at = 1 + self.failures % self._step
        while True:
            self.verb = f"{name}, call {at}"
            self._restore(before)
            self._client.call("SET", self._key("fail"), at)
            raised = await self._try(name, args, options)
            if self._client.call("DEL", self._key("fail")):
                break  # there are no more calls
            self.failures += 1
            await self._subject.backend._link.run(_UNFOLDED)
            self._check(f"{name} failed at call {at}")
            if raised:
                if name in ONE_SCRIPT:
                    self._check_same(before, f"{name} failed at call {at}")
                assert not await self._try(name, args, options), f"{name} failed again after call {at}"
                self._check(f"{name} was repeated after call {at}")
            at += self._step
        self._restore(before)
        return await getattr(self._subject.backend, name)(*args, **options)

    async def _try(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        """Whether the injected failure was raised. Refusals are no failures."""
        try:
            await getattr(self._subject.backend, name)(*args, **options)
        except BackendError as error:
            if INJECTED in str(error):
                return True
            raise
        except TreadleError:
            pass
        return False

    def _check(self, when: str) -> None:
        problems = audit(self._client, self._prefix, may_have={"fail"})
        assert problems == [], when

    def _check_same(self, before: dict[bytes, Any], when: str) -> None:
        left_out = {self._key(name).encode() for name in (*COUNTERS, "fail")}
        now = self._dump()
        changed = {
            key.decode()
            for key in (before.keys() | now.keys()) - left_out
            if _content(before.get(key)) != _content(now.get(key))
        }
        assert not changed, f"{when}, and these have changed: {changed}"

    def _key(self, name: str) -> str:
        return f"{{{self._prefix}}}:{name}"

    def _dump(self) -> dict[bytes, Any]:
        """The command and the values that write each key."""
        found: dict[bytes, Any] = {}
        for key, (kind, value) in read_keys(self._client, self._client.call("KEYS", "*")).items():
            if kind == "hash":
                found[key] = ("HSET", value)
            elif kind == "zset":
                pairs = zip(value[1::2], value[::2], strict=True)
                found[key] = ("ZADD", [part for pair in pairs for part in pair])
            else:
                found[key] = ("SET", [value])
        return found

    def _restore(self, dump: dict[bytes, Any]) -> None:
        commands = [(command, key, *values) for key, (command, values) in dump.items()]
        self._client.call_all([("FLUSHDB",), *commands])


def _content(value: Any) -> Any:
    if value is None or value[0] == "SET":
        return value
    return value[0], dict(zip(value[1][::2], value[1][1::2], strict=True)) if value[0] == "HSET" else {
        *zip(value[1][::2], value[1][1::2], strict=True)
    }


ONE_SCRIPT = {
    *("remove_worker", "drain_worker", "cancel", "complete", "requeue", "update", "trigger", "delete"),
    *("pause", "claim_key", "take_permits", "return_permits", "keep_permits"),
    *("put_schedule", "drop_schedule", "fire"),
}
"""The verbs that write with one script, whatever they are asked for."""


@contextmanager
def failing(subject: RedisSubject, *, step: int = 1) -> Iterator[FailingBackend]:
    """A backend for an open subject, every verb of which fails. `step`: one of this number of calls fails."""
    with subject.client() as client:
        yield FailingBackend(subject, client, step=step)
