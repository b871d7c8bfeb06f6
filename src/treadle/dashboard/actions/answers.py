"""Answers: where a visitor goes after an action, and the pages that ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode

import msgspec
from starlette.responses import JSONResponse, RedirectResponse, Response

from treadle.base.wording import one_line
from treadle.dashboard.access import Action
from treadle.dashboard.forms import Form
from treadle.dashboard.notices import done, keep_done
from treadle.dashboard.site import status_of
from treadle.dashboard.views import Section
from treadle.dashboard.visit import Visit, wants_json
from treadle.errors import InputError, TreadleError
from treadle.logs.masking import MASK


def finished(
    visit: Visit,
    form: Form,
    action: Action | Literal["bulk"],
    count: int = 1,
    *,
    to: str,
    item: tuple[str, str] | None = None,
    **facts: Any,
) -> Response:
    """It is done. Browsers go to the page that the form names, or to `to`. Programs get the counts and
    `facts`. item: the id and the tenant of an item that was queued, if the page that follows is another."""
    if wants_json(visit.request):
        return JSONResponse({"done": action, "count": count, "refused": 0, **facts})
    said = done(action, count)
    response = RedirectResponse(_with_done(back_of(visit, form, to), said), 303)
    keep_done(visit, response, said, item)
    return response


def back_of(visit: Visit, form: Form, to: str) -> str:
    """The page that a form names to go to afterwards, or `to`."""
    return (visit.inside(form.get("back")) if form.get("back") else None) or to


def _with_done(address: str, said: str) -> str:
    path, _, query = address.partition("?")
    pairs = [(name, value) for name, value in parse_qsl(query, keep_blank_values=True) if name != "done"]
    return f"{path}?{urlencode([*pairs, ('done', said)])}"


def asking(
    visit: Visit,
    template: str,
    section: Section,
    page: msgspec.Struct,
    *,
    error: TreadleError | None = None,
    **values: Any,
) -> Response:
    """A page that asks. With an error: why the form that was sent is refused; the fields keep what was typed,
    and programs get the error."""
    if error is not None and (wants_json(visit.request) or status_of(error) in (403, 404, 500, 503)):
        raise error
    if wants_json(visit.request):
        return Response(msgspec.json.encode(page, enc_hook=str), media_type="application/json")
    return visit.site.render(
        visit,
        template,
        status=200 if error is None else status_of(error),
        section=section,
        page=page,
        problem=None if error is None else one_line(str(error), 2000),
        live=False,
        **values,
    )


def hiding(error: InputError, secrets: Iterable[object]) -> InputError:
    """The same error, with `***` for these values: a check of the user's own may quote what it refuses."""
    message = str(error)
    for text in sorted({str(each) for each in secrets} - {""}, key=len, reverse=True):
        message = message.replace(repr(text)[1:-1], MASK).replace(text, MASK)
    return InputError(message, parameters=error.parameters, work_type=error.work_type)


def reason_of(form: Form, *, needed_for: str = "") -> str:
    """The reason that a visitor gives. `InputError` if there is none, and `needed_for` says what needs it."""
    reason = form.get("reason")
    if needed_for and not reason:
        raise InputError(f"{needed_for} needs a reason: the audit shows it", parameters=("reason",))
    return reason
