"""The application's tasks of Django, or of the package django-tasks before Django 6."""

from __future__ import annotations

from typing import Any

import django

from slotwise import Snooze

if django.VERSION >= (6,):
    from django.tasks import task
else:
    from django_tasks import task


class Boom(Exception):
    pass


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(priority=10, queue_name="mail")
async def shout(word: str) -> str:
    return word.upper()


@task(takes_context=True)
def describe(context: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    found = context.task_result
    return {
        "attempt": context.attempt,
        "id": found.id,
        "status": str(found.status),
        "workers": found.worker_ids,
    }


@task
def fail(word: str) -> None:
    raise Boom(word)


@task(backend="patient")
def fail_twice() -> None:
    raise ValueError("again")


@task
def big() -> str:
    return "x" * 70_000


@task
def later() -> None:
    raise Snooze("1h")


def undecorated() -> None: ...
