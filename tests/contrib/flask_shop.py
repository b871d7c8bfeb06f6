"""A Flask app with a factory, for tests that start processes: `flask --app tests.contrib.flask_shop`."""

from __future__ import annotations

import os
import sqlite3
import threading

from flask import Flask, current_app, g, request

from treadle import Treadle, work
from treadle.contrib.flask import FlaskTreadle


@work(name="greet")
def greet(name: str) -> str:
    """A plain function: it runs in a thread. Its connection belongs to that thread."""
    if "db" not in g:
        g.db = sqlite3.connect(":memory:")
    (total,) = g.db.execute("SELECT 1 + 1").fetchone()
    return f"{current_app.config['GREETING']} {name} {total}"


@work(name="greet_async")
async def greet_async(name: str) -> str:
    return f"{current_app.config['GREETING']} {name}"


@work.batch(name="greet_many", size=2, max_wait=0.01)
def greet_many(names: list[str]) -> list[str]:
    return [f"{current_app.config['GREETING']} {name}" for name in names]


treadle = Treadle(
    os.environ.get("SHOP_URL", "memory://"), work=[greet, greet_async, greet_many], poll_interval=0.1
)
jobs = FlaskTreadle(treadle)


def create_app(greeting: str = "hello") -> Flask:
    web = Flask(__name__)
    web.config["GREETING"] = greeting
    web.secret_key = "for tests"
    jobs.init_app(web)

    @web.teardown_appcontext
    def close(error: BaseException | None) -> None:
        db = g.pop("db", None)
        if db is not None:
            db.close()  # sqlite3 refuses that in another thread

    @web.post("/greet")
    def enqueue() -> tuple[dict[str, object], int]:
        handle = jobs.sync.enqueue(greet(request.args["name"]))
        loops = sum(thread.name == "treadle sync" for thread in threading.enumerate())
        return {"id": handle.id, "pid": os.getpid(), "loops": loops}, 202

    @web.get("/greet/<id>")
    def result(id: str) -> dict[str, object]:
        return {"result": jobs.sync.handle(id).result(timeout=30), "pid": os.getpid()}

    return web


web = create_app() if os.environ.get("SHOP_PRELOAD") else None
"""For gunicorn, which imports it before it forks."""
