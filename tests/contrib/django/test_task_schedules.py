"""Tasks of Django that recur."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.contrib.django.conftest import backend_of, task_settings
from tests.contrib.django.shop import tasks
from tests.contrib.django.test_backend import PATIENCE
from tests.contrib.django.test_signals import hearing
from treadle.contrib.django import app as django_app
from treadle.contrib.django import task_schedule
from treadle.contrib.django.testing import in_memory, run_enqueued

SCHEDULES = "tests.contrib.django.shop.schedules:SCHEDULES"


def test_a_schedule_fires_a_task() -> None:
    with task_settings(url="memory://", poll_interval=0.05, schedules=SCHEDULES), hearing() as heard:
        backend_of().app.sync.start()
        assert heard.finished.wait(PATIENCE)

    assert str(heard.results[0].status) == "SUCCESSFUL"
    assert heard.results[0].return_value == 1
    assert heard.results[0].task == tasks.add_async


def test_tests_run_the_same_schedules_with_the_options_of_their_tasks() -> None:
    with task_settings(schedules=SCHEDULES), in_memory():
        app = backend_of().app
        handle = app.sync.call(app.schedules.trigger("nightly"))
        assert handle is not None
        (result,) = run_enqueued()

    assert (result.id, result.return_value, result.task.queue_name) == (handle.id, 3, "books")


def test_a_call_that_cannot_be_made_is_refused_where_it_is_scheduled() -> None:
    with pytest.raises(TypeError, match="missing a required argument: 'a'"):
        task_schedule("s", tasks.add, every=60)
    with pytest.raises(TypeError, match="a schedule has its own times"):
        task_schedule("s", tasks.add.using(run_after=datetime.now(UTC)), args=[1], every=60)


def test_an_app_of_the_project_has_schedules_too() -> None:
    with task_settings(url="memory://"):
        made = django_app("memory://", schedules=[task_schedule("s", tasks.add, args=[1], every=60)])
        assert [each.name for each in made.sync.call(made.schedules.list())] == []
        assert made.sync.call(made.schedules.trigger("s")) is not None
        made.sync.close()
