"""`treadle web`: what it refuses before it serves."""

from __future__ import annotations

import getpass
import re
from pathlib import Path

import httpx
import pytest

from tests.cli.calling import call, start
from treadle.cli.shell import actor_here


def refused(*arguments: str, **env: str) -> str:
    seen = call("web", "--url", "memory://", *arguments, env=env)
    assert (seen.code, seen.out) == (2, ""), seen
    return seen.err


def test_the_access_function_is_loaded_as_apps_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_access.py").write_text("raise ValueError('no settings')\n")
    (tmp_path / "own_access.py").write_text("import nosuch_library\n")
    (tmp_path / "plain_access.py").write_text("access = 5\n")
    assert "'access' is not of the form module:function" in refused("--access", "access")
    assert "there is no module 'nosuch'" in refused("--access", "nosuch:access")
    assert "'plain_access' has no function called 'access'" in refused("--access", "plain_access:access")
    for name, error in (("broken_access", "no settings"), ("own_access", "nosuch_library")):
        said = refused("--access", f"{name}:access")
        assert f"the module '{name}' cannot be imported" in said
        assert error in said
        assert f'{name}.py", line 1' in said, "the traceback names the line"


BROKEN = """
import treadle
app = treadle.Treadle("memory://")
def access(request):
    raise LookupError("no such user")
"""


def test_what_goes_wrong_is_in_the_log(processes: None, tmp_path: Path) -> None:
    (tmp_path / "broken_site.py").write_text(BROKEN)
    process = start("web", "broken_site:app", "--access", "broken_site:access", "--port", "0", here=tmp_path)
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        address = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
        assert httpx.get(address).status_code == 500
        process.terminate()
        assert process.wait(20) == 0
        logged = process.stderr.read()
    assert "the dashboard could not answer GET /: LookupError: no such user" in logged
    assert 'broken_site.py", line 5, in access' in logged


def test_another_host_needs_an_access_function() -> None:
    assert "--access" in refused("--host", "0.0.0.0")
    assert "--read-only" in refused("--access", "a:b", "--read-only")


def test_the_actor_is_that_of_all_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "TREADLE_ACTOR='a\\tb'" in refused(TREADLE_ACTOR="a\tb")
    monkeypatch.setenv("TREADLE_ACTOR", "deploy-bot")
    assert actor_here() == "deploy-bot"
    monkeypatch.delenv("TREADLE_ACTOR")
    monkeypatch.setattr(getpass, "getuser", lambda: {}["no entry for this uid"])
    assert actor_here().startswith("uid-")


def test_the_dashboard_is_found_by_its_other_name() -> None:
    assert "`treadle web` serves it" in call("dashboard").err
