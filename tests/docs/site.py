"""Makes the source of the docs site: the pages of docs/, the reference, and llms.txt.

    python -m tests.docs.site

writes it to build/docs, and `make docs` makes the site of it. Pages of docs/ are taken as they are. Links to
files outside of docs/ lead to pages that show these files.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.docs.links import replace_links
from tests.docs.reference import reference_pages

PROJECT = Path(__file__).parents[2]
DOCS = PROJECT / "docs"
STAGE = PROJECT / "build" / "docs"
CONFIG = PROJECT / "zensical.toml"
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md")
LANGUAGES = {
    "": "text",
    ".conf": "text",
    ".html": "html",
    ".ini": "ini",
    ".json": "json",
    ".py": "python",
    ".service": "ini",
    ".sql": "sql",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}
"""The files of a directory that are listed, by their suffix, and the languages of their pages."""
SUMMARY = "A durable, type-safe work queue and workflow engine for Python."


class Page(NamedTuple):
    """An entry of the navigation."""

    section: str
    title: str
    path: str


def pages() -> list[Page]:
    """All entries of the navigation, in order."""
    config = tomllib.loads(CONFIG.read_text())
    return list(_pages(config["project"]["nav"], ""))


def _pages(entries: list[dict[str, Any]], section: str) -> Iterator[Page]:
    for entry in entries:
        for title, inner in entry.items():
            if isinstance(inner, str):
                yield Page(section, title, inner)
            else:
                yield from _pages(inner, section or title)


class Stage:
    """The directory that the site is made of."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._shown: dict[Path, str] = {}
        """The files outside of docs/ that have a page, each with the path of that."""

    def write(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        for file in sorted(DOCS.rglob("*")):
            if file.suffix == ".md":
                self._put(file.relative_to(DOCS).as_posix(), self._page(file))
            elif file.is_file():
                self._copy(file)
        for path, text in reference_pages().items():
            self._put(path, text)
        self._show_files()
        self._put("llms.txt", self._index())
        self._put("llms-full.txt", self._all_pages())

    def _page(self, file: Path, at: str | None = None) -> str:
        """A page as it is in the site. at: where it is there, if it is not a page of docs/."""
        here = Path(at or file.relative_to(DOCS).as_posix()).parent
        text = replace_links(file.read_text(), lambda target: self._target(file, here, target))
        return re.sub(r"^```(\w+) needs=\w+$", r"```\1", text, flags=re.MULTILINE)

    def _target(self, file: Path, here: Path, target: str) -> str:
        path, mark, anchor = target.partition("#")
        if not path:
            return target
        found = (file.parent / path).resolve()
        if found.is_dir() and (found / "README.md").exists():
            found = found / "README.md"
        where = found.relative_to(DOCS).as_posix() if found.is_relative_to(DOCS) else self._show(found)
        return os.path.relpath(where, here) + mark + anchor

    def _show(self, found: Path) -> str:
        """The path of the page that shows a file outside of docs/, or a directory."""
        if found not in self._shown:
            name = found.relative_to(PROJECT).as_posix()
            self._shown[found] = (
                f"project/{Path(name).stem.lower()}.md" if name in ROOT_PAGES else f"project/files/{name}.md"
            )
        return self._shown[found]

    def _show_files(self) -> None:
        for name in ROOT_PAGES:
            self._show(PROJECT / name)
        done: set[Path] = set()
        while left := set(self._shown) - done:
            for found in sorted(left):
                self._put(self._shown[found], self._shown_text(found))
            done |= left

    def _shown_text(self, found: Path) -> str:
        name = found.relative_to(PROJECT).as_posix()
        if found.is_dir():
            inner = [file for file in sorted(found.rglob("*")) if _is_listed(file.relative_to(found), file)]
            here = Path(self._shown[found]).parent
            rows = [
                f"- [{file.relative_to(found)}]({os.path.relpath(self._show(file), here)})" for file in inner
            ]
            return f"# {name}\n" + "\n".join(rows) + "\n"
        if found.suffix == ".md":
            return self._page(found, at=self._shown[found])
        language = LANGUAGES.get(found.suffix, "text")
        return f"# {found.name}\n`{name}`\n\n````{language}\n{found.read_text()}````\n"

    def _index(self) -> str:
        """llms.txt: what the site has, for programs that read."""
        lines = ["# treadle", "", f"> {SUMMARY}", "", "All pages in one file: [llms-full.txt](llms-full.txt)"]
        section = None
        for page in pages():
            if page.section != section:
                section = page.section
                lines += ["", f"## {section or 'Start'}", ""]
            about = _first_sentence((self._directory / page.path).read_text())
            lines.append(f"- [{page.title}]({_url(page.path)}){': ' if about else ''}{about}")
        return "\n".join(lines) + "\n"

    def _all_pages(self) -> str:
        """llms-full.txt: all pages that people wrote, in the order of the navigation."""
        written = [page for page in pages() if (DOCS / page.path).exists()]
        texts = [f"<!-- {page.path} -->\n{(DOCS / page.path).read_text().strip()}\n" for page in written]
        return f"# treadle\n\n> {SUMMARY}\n\n" + "\n".join(texts)

    def _put(self, path: str, text: str) -> None:
        file = self._directory / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def _copy(self, file: Path) -> None:
        to = self._directory / file.relative_to(DOCS)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, to)


def _is_listed(name: Path, file: Path) -> bool:
    """Whether the page of a directory lists a file. The site has no pages for hidden ones."""
    is_hidden = any(part.startswith(".") for part in name.parts)
    return file.is_file() and file.suffix in LANGUAGES and not is_hidden


def _url(path: str) -> str:
    """Where the site has a page."""
    plain = path.removesuffix(".md")
    return "./" if plain == "index" else f"{plain.removesuffix('/index').removesuffix('/README')}/"


def _first_sentence(text: str) -> str:
    """The first sentence below the title, without links and marks."""
    body = text.partition("\n")[2]
    for paragraph in re.split(r"\n\s*\n", body.strip()):
        if re.match(r"[A-Z\"]|`[^`]", paragraph):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
            return re.split(r"(?<=[.:])\s", plain, maxsplit=1)[0].rstrip(":")
    return ""


if __name__ == "__main__":
    Stage(STAGE).write()
