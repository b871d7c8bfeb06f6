"""`treadle watch`: tell somebody of problems, from processes without workers."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cli.calling import start
from tests.cli.conftest import Store
from tests.cli.looked_at import send
from tests.engine.receiver import SECRET, receiving
from treadle import Treadle
from treadle.cli.exit_codes import INTERRUPTED
from treadle.problems import verify_webhook


async def _one(app: Treadle) -> None:
    await app.enqueue(send(3))


async def _cancel_all(app: Treadle) -> None:
    await app.cancel([each.id for each in (await app.list("ready")).items])


def test_two_processes_send_each_change_once(store: Store, processes: None) -> None:
    with receiving() as receiver:
        given = ("watch", "--url", store.url, "--post", receiver.url, "--every", "100ms")
        watching = [start(*given) for _ in range(2)]
        try:
            store.fill(_one)
            (first,) = receiver.wait_for(1)
            assert (first["change"], first["kind"]) == ("appeared", "no_worker")
            assert "no worker is alive" in first["text"]
            store.call("pause", "default")
            receiver.wait_for(2)
            time.sleep(0.5)  # one that dies before it has settled a message leaves it to be sent again
            watching[0].kill()  # the other one goes on
            store.fill(_cancel_all)
            receiver.wait_for(3, 60)
            time.sleep(0.5)
        finally:
            watching[1].send_signal(signal.SIGINT)
            codes = [each.wait(30) for each in watching]
            for each in watching:
                assert each.stdout is not None
                assert each.stderr is not None
                each.stdout.close()
                each.stderr.close()
        assert codes[1] == INTERRUPTED
        assert receiver.told == [("appeared", "no_worker"), ("appeared", "paused"), ("ended", "no_worker")]
        assert len({each["id"] for each in receiver.messages}) == 3


def test_a_look_of_cron_and_the_receiver_of_an_app(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TREADLE_WEBHOOK_SECRET", SECRET)
    store.call("pause", "default")
    with receiving() as receiver:
        for _ in range(2):
            answer = store.call("watch", "--post", receiver.url, "--once")
            assert (answer.code, answer.out, answer.err) == (0, "", "")
        ((headers, body),) = receiver.taken
        assert verify_webhook(SECRET, headers["treadle-signature"], body)
        ignoring = store.call("watch", "--post", f"{receiver.url}/2", "--once", "--ignore", "paused")
        assert (ignoring.code, len(receiver.taken)) == (0, 1)
        monkeypatch.setenv("TREADLE_WEBHOOK_URL", f"{receiver.url}/3")
        assert store.call("watch", "--once").code == 0
        assert len(receiver.taken) == 2
        monkeypatch.delenv("TREADLE_WEBHOOK_URL")
    refused = store.call("watch")
    assert (refused.code, "say whom to tell" in refused.err) == (2, True)
    refused = store.call("watch", "--post", "ftp://ann:secret@example.org/")
    assert (refused.code, "secret" in refused.err) == (2, False)
    for command in (("watch", "--post", "http://example.org/"), ("status",)):
        refused = store.call(*command, "--ignore", "pause")
        assert (refused.code, "--ignore='pause' is no kind of problem: killing" in refused.err) == (2, True)
