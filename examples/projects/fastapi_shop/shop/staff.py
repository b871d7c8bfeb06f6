"""Who may use the dashboard: HTTP Basic, with a password from the environment. Without one it is closed."""

import os
from base64 import b64encode
from secrets import compare_digest

from starlette.requests import Request
from starlette.responses import Response
from treadle.dashboard import Access


def staff(request: Request) -> Access | Response:
    password = os.environ.get("SHOP_PASSWORD")
    expected = b"Basic " + b64encode(f"staff:{password}".encode())
    given = request.headers.get("Authorization", "").encode()
    if password and compare_digest(given, expected):
        return Access(actor="staff", can="all")
    return Response("please log in", 401, {"WWW-Authenticate": 'Basic realm="Shop"'})
