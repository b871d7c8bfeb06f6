"""`treadle watch`: tell somebody of problems, from processes without workers."""

from __future__ import annotations

import signal
import time

import pytest

from tests.cli.calling import call, start
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


def test_messages_that_are_not_taken_are_told_of(store: Store, processes: None) -> None:
    store.call("pause", "default")
    assert "messages" not in store.call("doctor").out
    with receiving() as receiver:
        receiver.status = 503
        address = f"http://127.0.0.1:{receiver.port}/***"
        refused = store.call("watch", "--post", receiver.url, "--once", "--every", "100ms")
        said = f"1 message about problems is not delivered: WebhookError: {address} answered 503"
        assert (refused.code, said in refused.err, "token-1234" in refused.err) == (4, True, False)
        told = " ".join(store.call("doctor").out.split())
        assert (said in told, "is the receiver there?" in told) == (True, True)
        watching = start("watch", "--url", store.url, "--post", receiver.url, "--every", "100ms")
        assert watching.stdout is not None
        assert watching.stderr is not None
        try:
            lines = iter(watching.stderr.readline, "")
            assert "unsigned: TREADLE_WEBHOOK_SECRET is not set" in next(lines)
            assert f"could not tell of a problem; will retry: {address} answered 503" in next(lines)
            receiver.status = 200
            assert "problems are told again" in next(lines)
        finally:
            watching.send_signal(signal.SIGINT)
            code, errors = watching.wait(30), watching.stderr.read()
            watching.stdout.close()
            watching.stderr.close()
        assert (code, errors) == (INTERRUPTED, "")
        assert receiver.told == [("appeared", "paused")]
    assert "messages" not in store.call("doctor").out


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
    for refused in (store.call("watch"), call("watch", "--app", "tests.cli.looked_at:app", "--once")):
        assert (refused.code, "say whom to tell: --post URL" in refused.err) == (2, True)
    refused = store.call("watch", "--post", "ftp://ann:secret@example.org/")
    assert (refused.code, "secret" in refused.err) == (2, False)
    said = "--ignore='pause' is no kind of problem: store_away, killing"
    for command in (("watch", "--post", "http://example.org/"), ("status",)):
        refused = store.call(*command, "--ignore", "pause")
        assert (refused.code, said in refused.err) == (2, True)
