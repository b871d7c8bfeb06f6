"""A Flask app whose views store work. Handlers run in the context of the Flask app.

It calls itself here, with a worker in the same process. For a server and a worker of its own:
flask --app examples.flask_orders run, and flask --app examples.flask_orders treadle worker

Run it: python examples/flask_orders.py
"""

import time
from typing import Any

from flask import Flask, current_app, request

from treadle import NotFound, Treadle, WaitTimeout, work
from treadle.contrib.flask import FlaskTreadle


@work(name="orders.ship")
def ship(item: str) -> str:
    """A plain function: it runs in a thread."""
    time.sleep(0.1)
    return f"{item} shipped from {current_app.config['WAREHOUSE']}"


treadle = Treadle("sqlite:///orders.db", work=[ship])
jobs = FlaskTreadle(treadle)


def create_app() -> Flask:
    web = Flask(__name__)
    web.config["WAREHOUSE"] = "Lyon"
    jobs.init_app(web)
    web.add_url_rule("/orders", view_func=post_order, methods=["POST"])
    web.add_url_rule("/orders/<id>", view_func=get_order)
    return web


def post_order() -> tuple[dict[str, Any], int]:
    item: str = request.form["item"]
    # A double click is one order: the key finds the open item.
    handle = jobs.sync.enqueue(ship(item), key=item)
    return {"id": handle.id, "existing": handle.existing}, 202


def get_order(id: str) -> tuple[dict[str, Any], int]:
    try:
        return {"result": jobs.sync.handle(id).result(timeout=0.01)}, 200
    except WaitTimeout:
        return {"status": jobs.sync.handle(id).state().status}, 202
    except NotFound:
        return {"error": "no such order"}, 404


if __name__ == "__main__":
    visitor = create_app().test_client()
    with jobs.sync:  # starts a worker, and stops it at the end
        first = visitor.post("/orders", data={"item": "lamp"})
        again = visitor.post("/orders", data={"item": "lamp"})
        id = first.get_json()["id"]
        print(again.status_code, "existing:", again.get_json()["existing"])
        while (shown := visitor.get(f"/orders/{id}")).status_code == 202:
            pass
        print(shown.status_code, shown.json)
        print(visitor.get("/orders/nonsense").status_code)
