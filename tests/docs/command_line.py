"""Makes docs/command-reference.md from the commands themselves.

python -m tests.docs.command_line
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from typer.core import TyperGroup, TyperOption
from typer.main import get_command

from treadle.cli.change_items import Selection
from treadle.cli.commands import commands
from treadle.cli.filters import ItemFilters
from treadle.cli.shell import SHARED

PAGE = Path(__file__).parents[2] / "docs" / "command-reference.md"
ORDER = (
    ("Looking", "status list show why group workflow dead tail workers limits schedules bulk audit"),
    ("Changing", "run cancel complete trigger hold unhold requeue delete update repair pause resume"),
    ("Running and keeping house", "worker check doctor migrate schema prune export import promote"),
)
"""Commands that are not named here come last."""

AnyCommand: TypeAlias = Any
FILTERS = {field.name for field in dataclasses.fields(ItemFilters)}
SELECTION = {field.name for field in dataclasses.fields(Selection)}
COMMON = ("cursor", "reveal", "because")
"""Options that many commands have. The head of the page explains them."""

HEAD = """\
# Commands and their options
How they work together: [the command line](command-line.md). `treadle COMMAND --help` says the same.

All commands take `--app MODULE:APP` or `--url URL`, `--tenant NAME` and `--json`, unless it says otherwise.
What some take: `--because TEXT` says why, for `treadle audit`. `--reveal` shows passwords, tokens and other
secrets, not `***`. `--cursor CURSOR` goes on where an earlier call ended.

## Filters
`list` and the commands that change items take these. All of those given must hold.

"""

SELECTING = """
## Changing many items
`cancel`, `complete`, `trigger`, `hold`, `unhold`, `requeue`, `delete`, `dead requeue` and `dead delete`
take ids or filters: see [Ids or filters](command-line.md#ids-or-filters).

"""


class Known(NamedTuple):
    """What stands on the page already."""

    filters: set[tuple[str, str]]
    lists: dict[str, str]
    """By a list of options, or a help: the first command that has it."""


def page() -> str:
    """The page, as the commands are now."""
    root = get_command(commands)
    assert isinstance(root, TyperGroup)
    parts = [HEAD, _list(_sample(root, "list", FILTERS))]
    parts += [SELECTING, _list(_sample(root, "cancel", SELECTION))]
    left: dict[str, Any] = dict(root.commands)
    known = Known({_row(each) for each in _sample(root, "list", FILTERS)}, {})
    for title, names in ORDER:
        parts.append(f"\n## {title}\n")
        parts += [
            _section(f"treadle {name}", left.pop(name), known) for name in names.split() if name in left
        ]
    if left:
        parts.append("\n## Others\n")
        parts += [_section(f"treadle {name}", command, known) for name, command in sorted(left.items())]
    return "".join(parts)


def _sample(root: TyperGroup, command: str, names: set[str]) -> list[Any]:
    return [each for each in root.commands[command].params if each.name in names]


def _section(name: str, command: AnyCommand, known: Known) -> str:
    inner: dict[str, Any] = dict(command.commands) if isinstance(command, TyperGroup) else {}
    is_shared = any(each.name == "tenant" for each in command.params)
    params = [each for each in command.params if not (is_shared and each.name in SHARED)]
    shares = [_takes(params)]
    if not is_shared:
        shares.append("It has only its own options.")
    own = [
        each
        for each in params
        if not (_all(params, FILTERS) and each.name in FILTERS)
        and not (_all(params, SELECTION) and each.name in SELECTION)
    ]
    help = _help(command)
    if (first := known.lists.setdefault(help, name)) != name:
        return f"\n### {name}\n`{name}` is [{first}](#{first.replace(' ', '-')}).\n"
    text = f"\n### {name}\n{_usage(name, command)}{help}\n"
    if takes := " ".join(filter(None, shares)):
        text += f"\n{takes}\n"
    if own:
        text += f"\n{_options(name, own, known)}"
    return text + "".join(_section(f"{name} {each}", command, known) for each, command in inner.items())


def _options(name: str, params: list[Any], known: Known) -> str:
    """What stands elsewhere on the page is only named."""
    common = [each.opts[0] for each in params if each.name in COMMON and isinstance(each, TyperOption)]
    rest = [each for each in params if not isinstance(each, TyperOption) or each.name not in COMMON]
    filters = [each.opts[0] for each in rest if _row(each) in known.filters]
    listed = _list([each for each in rest if _row(each) not in known.filters])
    listed += f"- {_code(filters)}: [filters](#filters)\n" if filters else ""
    first = known.lists.setdefault(listed, name)
    if first != name and listed.count("\n") > 1:
        listed = f"- the options of [{first}](#{first.replace(' ', '-')})\n"
    return listed + (f"- {_code(common)}\n" if common else "")


def _code(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _all(params: list[Any], names: set[str]) -> bool:
    return names <= {each.name for each in params}


def _takes(params: list[Any]) -> str:
    takes = [
        *(["ids or [filters](#filters)"] if _all(params, FILTERS | SELECTION) else []),
        *(["[filters](#filters)"] if _all(params, FILTERS) and not _all(params, SELECTION) else []),
        *(["the options for [many items](#changing-many-items)"] if _all(params, SELECTION) else []),
    ]
    return f"Takes {' and '.join(takes)}." if takes else ""


def _usage(name: str, command: AnyCommand) -> str:
    """How the command is called, if it takes arguments."""
    arguments = [_argument(each) for each in command.params if not isinstance(each, TyperOption)]
    inner = ["[COMMAND]"] if isinstance(command, TyperGroup) and command.commands else []
    return f"`{' '.join([name, *arguments, '[OPTIONS]', *inner])}`\n\n" if arguments or inner else ""


def _argument(argument: Any) -> str:
    if " " in (argument.metavar or ""):
        return str(argument.metavar)
    name = (argument.metavar or argument.name.upper()).strip("[].")
    name = name if argument.required else f"[{name}]"
    return f"{name}..." if argument.nargs == -1 else name


def _help(command: AnyCommand) -> str:
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text).strip()


def _list(params: list[Any]) -> str:
    return "".join(f"- {name}: {text}\n" for name, text in map(_row, params))


def _row(param: Any) -> tuple[str, str]:
    text = getattr(param, "help", None) or ""
    if not isinstance(param, TyperOption):
        return f"`{_argument(param)}`", _line(text)
    names = ", ".join(f"`{name}`" for name in param.opts)
    if not param.is_flag:
        number = isinstance(param.default, int | float) or param.min is not None
        names = (
            names.removesuffix("`")
            + f" {param.metavar or ('N' if number else param.opts[0].strip('-').upper())}`"
        )
    default = _default(param)
    return names, _line(text + (f" (default: {default})" if default else ""))


def _default(option: Any) -> str:
    value: Any = option.default
    if (
        option.is_flag
        or value in (None, "", 0, ())
        or callable(value)
        or not isinstance(value, str | int | float)
    ):
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def names() -> Iterator[str]:
    """The names of all commands."""
    root = get_command(commands)
    assert isinstance(root, TyperGroup)
    for name, command in root.commands.items():
        yield name
        if isinstance(command, TyperGroup):
            yield from (f"{name} {inner}" for inner in command.commands)


if __name__ == "__main__":
    PAGE.write_text(page())
