"""An extension of Griffe, which reads the code for the reference: docstrings become Markdown."""

from __future__ import annotations

from typing import Any

import griffe

from tests.docs.docstrings import as_markdown


class MarkdownDocstrings(griffe.Extension):
    """Turns each docstring into Markdown before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
