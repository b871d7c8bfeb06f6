"""Treadle in Flask. Needs the extra `treadle[flask]`.

    treadle = Treadle("postgresql://...", work=[send])
    web = Flask(__name__)
    jobs = FlaskTreadle(treadle, web)  # or jobs.init_app(web) in a factory

    @web.post("/signup")
    def signup():
        handle = jobs.sync.enqueue(send(request.form["email"]))
        return {"id": handle.id}, 202

======================  ====================================================================
`extension`             `FlaskTreadle`: what a Flask app gets, and `flask treadle ...`
`loaded`                the treadle app of the Flask app that the environment names, for workers
`board`                 the dashboard, with an access function that knows the request of Flask
======================  ====================================================================

See docs/flask.md.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("flask") is None:
    raise ImportError("treadle.contrib.flask needs flask: pip install 'treadle[flask]'", name="flask")

from .extension import FlaskTreadle

__all__ = ["FlaskTreadle"]
