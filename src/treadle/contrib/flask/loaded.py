"""Loaded: the treadle app of a Flask app: of the current one, or of the one that the environment names. That
one is found as the command `flask` finds it: by `FLASK_APP`, or in `wsgi.py` or `app.py`.

The command line imports it as `treadle.contrib.flask.loaded:app`, so that a worker has the Flask app too,
also if a factory makes it.
"""

from __future__ import annotations

import os

from flask import current_app, has_app_context
from flask.cli import ScriptInfo

from .extension import extension_of

flask = current_app if has_app_context() else ScriptInfo(os.environ.get("FLASK_APP")).load_app()
app = extension_of(flask).treadle
