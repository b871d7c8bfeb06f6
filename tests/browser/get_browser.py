"""Find a Chromium for the browser tests, or get Debian's: `make browser`.

In this order: `TREADLE_BROWSER` (a path), a Chromium on the path, one that an earlier call unpacked into the
environment, and else Debian's `chromium-headless-shell`. Root installs that one by apt. Others have apt
download it, with the libraries that the machine lacks, and unpack them into the environment: apt checks what
it downloads against the signed lists, and the directories it writes to are in the environment too.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "chromium-headless-shell"
ON_THE_PATH = (PACKAGE, "chromium", "google-chrome")
OWN = Path(sys.prefix) / "browser"
"""Where packages are unpacked."""
WRAPPER = OWN / "chromium"
PATIENCE = ["-o", "Acquire::Retries=2", "-o", "Acquire::http::Timeout=30", "-o", "DPkg::Lock::Timeout=120"]


class NoBrowser(Exception):
    """There is no browser, and none can be had. The message says why, and what helps."""


def find() -> Path | None:
    """The browser that is here, if there is one."""
    named = os.environ.get("TREADLE_BROWSER")
    if named:
        if not os.access(named, os.X_OK):
            raise NoBrowser(f"TREADLE_BROWSER={named} is no program; give the path of a Chromium.")
        return Path(named)
    for name in ON_THE_PATH:
        path = shutil.which(name)
        if path:
            return Path(path)
    return WRAPPER if WRAPPER.exists() else None


def get() -> Path:
    """The browser that is here, or else Debian's."""
    found = find()
    if found:
        return found
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise NoBrowser(
            "No Chromium on the path, and no apt to get one by; TREADLE_BROWSER=<path> names one."
        )
    if os.geteuid() == 0:
        install()
    else:
        unpack()
    found = find()
    if not found:
        raise NoBrowser(
            f"apt installed {PACKAGE}, but it is not on the path; TREADLE_BROWSER=<path> names it."
        )
    return found


def install() -> None:
    """Install the package for the whole machine."""
    command = ["install", "--yes", "--no-install-recommends", PACKAGE]
    if has_lists(Path("/var/lib/apt/lists")) and apt(command, may_fail=True):
        return
    apt(["update"])
    apt(command)


def unpack() -> None:
    """Unpack the package, and what it needs and the machine lacks, into `OWN`."""
    shutil.rmtree(OWN, ignore_errors=True)
    state, cache, root = OWN / "state", OWN / "cache", OWN / "root"
    for directory in (state / "lists" / "partial", cache / "archives" / "partial", root):
        directory.mkdir(parents=True)
    own = ["-o", f"Dir::State={state}", "-o", f"Dir::Cache={cache}", "-o", "Debug::NoLocking=true"]
    apt([*own, "update"])
    # `--reinstall`: the package may be installed where its program is not on the path.
    apt([*own, "install", "--yes", "--reinstall", "--download-only", "--no-install-recommends", PACKAGE])
    for package in sorted((cache / "archives").glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, root], check=True)
    shutil.rmtree(cache)
    shutil.rmtree(state)
    write_wrapper(root)


def write_wrapper(root: Path) -> None:
    """Write the program that starts the unpacked browser with its own libraries and fonts."""
    fonts = root / "fonts.conf"
    fonts.write_text(
        f'<?xml version="1.0"?>\n<fontconfig><dir>{root}/usr/share/fonts</dir><dir>/usr/share/fonts</dir>'
        f"<cachedir>{root}/fonts</cachedir></fontconfig>\n"
    )
    libraries = sorted({str(path.parent) for path in root.rglob("*.so*") if path.parent.name != "chromium"})
    WRAPPER.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH='{':'.join(libraries)}' FONTCONFIG_FILE='{fonts}'\n"
        f"exec '{root}/usr/lib/chromium/{PACKAGE}' \"$@\"\n"
    )
    WRAPPER.chmod(0o755)


def has_lists(directory: Path) -> bool:
    """Whether apt knows which packages there are. Images of containers often come without."""
    return any("_Packages" in path.name for path in directory.glob("*"))


def apt(arguments: list[str], *, may_fail: bool = False) -> bool:
    """Run apt-get. Whether it succeeded."""
    ran = subprocess.run(
        ["apt-get", "--quiet", *PATIENCE, *arguments],
        check=False,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if ran.returncode and not may_fail:
        said = "\n".join(ran.stdout.splitlines()[-8:])
        raise NoBrowser(f"TREADLE_BROWSER=<path> names one. {' '.join(ran.args)} failed:\n{said}")
    return not ran.returncode


def main() -> str | None:
    try:
        browser = get()
    except NoBrowser as error:
        return f"No browser for the browser tests. {error}"
    version = subprocess.run([browser, "--version"], check=False, capture_output=True, text=True)
    if version.returncode:
        return f"{browser} does not start: {version.stderr.strip()[:2000]}"
    sys.stdout.write(f"Browser tests use {browser} ({version.stdout.strip()}).\n")
    return None


if __name__ == "__main__":
    sys.exit(main())
