"""A web application that is not async. `app.sync` has the same verbs, and each blocks until it has its
result.

The views below are plain WSGI. In Flask or Django they would look the same.

Run it: python examples/flask_style_sync.py
"""

import json
import time
from collections.abc import Callable
from typing import Any
from wsgiref.types import StartResponse, WSGIEnvironment

from treadle import NotFound, Treadle, WaitTimeout, work


@work(name="reports.make")
def make_report(month: str) -> dict[str, Any]:
    """A sync handler: it runs in a thread."""
    time.sleep(0.2)
    return {"month": month, "turnover": 1234}


treadle = Treadle("sqlite:///reports.db", work=[make_report])


def post_report(month: str) -> tuple[str, Any]:
    # A double click makes one report: the key finds the open item.
    handle = treadle.sync.enqueue(make_report(month), key=month)
    return "202 Accepted", {"id": handle.id, "existing": handle.existing}


def get_report(id: str) -> tuple[str, Any]:
    try:
        return "200 OK", treadle.sync.handle(id).result(timeout=0.05)
    except WaitTimeout:
        return "202 Accepted", {"status": treadle.sync.handle(id).state().status}
    except NotFound:
        return "404 Not Found", {"error": "no such report"}


def application(environ: WSGIEnvironment, start_response: StartResponse) -> list[bytes]:
    _, _, argument = environ["PATH_INFO"].rpartition("/")
    view: Callable[[str], tuple[str, Any]] = (
        post_report if environ["REQUEST_METHOD"] == "POST" else get_report
    )
    status, body = view(argument)
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


def request(method: str, path: str) -> Any:
    """The part of a web server that this example needs."""
    answers: list[str] = []

    def start_response(status: str, *_: Any) -> Any:
        answers.append(status)

    (body,) = application({"REQUEST_METHOD": method, "PATH_INFO": path}, start_response)
    print(f"{method:4} {path[:18]:18} {answers[0]:13} {body.decode()}")
    return json.loads(body)


if __name__ == "__main__":
    # Workers can run in other processes. Then this process never calls `start`.
    treadle.sync.start()
    try:
        id = request("POST", "/reports/2024-05")["id"]
        request("POST", "/reports/2024-05")
        while "status" in request("GET", f"/reports/{id}"):
            pass
        request("GET", "/reports/nonsense")
    finally:
        treadle.sync.stop()
