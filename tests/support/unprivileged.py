"""PostgreSQL refuses to run as root, so root runs it as another user."""

import os
import pwd
import stat
from pathlib import Path
from typing import Any


def account() -> pwd.struct_passwd | None:
    """The user to run servers as. None means the current user."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def identity() -> dict[str, Any]:
    """The arguments of `subprocess.run` that make a child of root run as `account`."""
    who = account()
    return {} if who is None else {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}


def give(path: Path) -> None:
    """Make `account` the owner of a directory."""
    who = account()
    if who is not None:
        os.chown(path, who.pw_uid, who.pw_gid)


def reachable(path: Path) -> bool:
    """Whether `account` may pass through `path` and everything above it."""
    return account() is None or all(step.stat().st_mode & stat.S_IXOTH for step in [path, *path.parents])
