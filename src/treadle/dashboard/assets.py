"""Assets: the style sheet and the scripts, served from the package under names that change with them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

FOLDER: Final = Path(__file__).parent / "static"
MEDIA_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}


class Assets:
    """The files of the folder `static`. They hold nothing that is secret, so they need no access."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str]] = {}
        self.names: dict[str, str] = {}
        """By the name of a file: the name under which it is served."""
        for path in sorted(FOLDER.iterdir()):
            media_type = MEDIA_TYPES.get(path.suffix)
            if media_type is not None:
                content = path.read_bytes()
                digest = hashlib.sha256(content).hexdigest()[:12]
                name = f"{path.stem}-{digest}{path.suffix}"
                self._files[name] = (content, media_type)
                self.names[path.name] = name

    async def serve(self, request: Request) -> Response:
        found = self._files.get(request.path_params["name"])
        if found is None:
            return Response("there is no such file\n", 404, media_type="text/plain")
        content, media_type = found
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(content, headers=headers, media_type=media_type)
