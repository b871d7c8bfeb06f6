"""Post: send bytes to a URL. With the standard library, by a proxy if the environment names one."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Final

from treadle.base.wording import one_line


class NotSent(Exception):
    """There was no answer. The text does not name the URL."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A receiver must not send messages on to other places."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_opener: Final = urllib.request.build_opener(_NoRedirect)


def post(url: str, body: bytes, headers: Mapping[str, str], timeout: float) -> int:
    """Send it, and return the status of the answer. Redirects are not followed. `NotSent`."""
    request = urllib.request.Request(url, body, dict(headers), method="POST")
    try:
        with _opener.open(request, timeout=timeout) as answer:
            return int(answer.status)  # what follows is not read: it may never end
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        known = isinstance(reason, OSError)  # the text of another may name the URL
        raise NotSent(one_line(str(reason), 200) if known else type(reason).__name__) from None
