"""Attributes that look like policies and are none, reported with the name that was meant."""

from __future__ import annotations

import difflib
import inspect
from abc import ABC
from collections.abc import Iterable
from typing import Generic, Protocol

from slotwise.errors import InvalidJob
from slotwise.jobs.functions import (
    ContextJob,
    ContextTask,
    FunctionJob,
    FunctionTask,
    OfFunction,
    Plain,
    PlainJob,
    PlainTask,
    WithContext,
)
from slotwise.jobs.job import (
    Declaration,
    DistributedJob,
    JobPolicies,
    OneTimeTask,
    TaskPolicies,
)
from slotwise.jobs.policies import CatchUp, Overlap, Retry

_JOB_WORDS = frozenset({"schedule", *JobPolicies.__annotations__})
_TASK_WORDS = frozenset(TaskPolicies.__annotations__)
#: Without what describes the data of a task.
_OF_EITHER = (_JOB_WORDS | _TASK_WORDS) - {"payload", "upgrades", "codec"}
_NOT_THE_USERS = (
    object,
    ABC,
    Generic,
    Protocol,
    Declaration,
    DistributedJob,
    OneTimeTask,
    OfFunction,
    Plain,
    WithContext,
    FunctionJob,
    FunctionTask,
    PlainJob,
    PlainTask,
    ContextJob,
    ContextTask,
)
#: Names that other libraries have for policies of ours.
_ALIASES = {
    "on_dead": "on_lost",
    "misfire": "catch_up",
    "coalesce": "catch_up",
    "misfire_grace_time": "catch_up",
    "max_retries": "retry",
    "max_instances": "overlap",
    "max_losses": "max_lost",
    "max_rate": "rate_limit",
    "max_concurrency": "concurrency",
    "prio": "priority",
    "isolated": "isolation",
}
#: The same, but users have these names for objects of their own, too: rejected if the value is a
#: setting's.
_IF_A_SETTING = {
    "queue": "runs_on",
    "queues": "runs_on",
    "tag": "runs_on",
    "tags": "runs_on",
    "rate": "rate_limit",
    "retries": "retry",
    "max_attempts": "retry",
}
#: Values that are policies under any name.
_BY_TYPE = {CatchUp: "catch_up", Overlap: "overlap", Retry: "retry"}
_COLLECTIONS = (tuple, list, set, frozenset)


def refuse_near_misses(source: object, where: str) -> None:
    """Raise InvalidJob for an attribute such as `catchup`, which would change nothing, with the
    name that was meant.
    """
    own = _own_names(source)
    is_task = isinstance(source, OneTimeTask)
    _refuse_other_kind(own, where, is_task=is_task)
    words = _TASK_WORDS if is_task else _JOB_WORDS
    known = {"name", "execute", *words}
    is_keyword = isinstance(source, OfFunction)
    for name in sorted(own - known):
        value = inspect.getattr_static(source, name)
        if name in _IF_A_SETTING and not is_keyword and not _is_a_setting(value):
            continue
        meant = _meant(name, value, words, own)
        if meant == "rate_limit" and not is_task:
            meant = "min_interval"
        if meant:
            otherwise = "" if is_keyword else " otherwise rename your own attribute"
            raise InvalidJob(f"{where}.{name}: did you mean {meant}?{otherwise}")
        if is_keyword:
            known.discard("execute")
            raise InvalidJob(
                f"{where}: unknown keyword {name}; known are {', '.join(sorted(known))}"
            )


def _own_names(source: object) -> set[str]:
    """Return the names of the user's attributes."""
    owners = [
        source,
        *(one for one in type(source).__mro__ if one not in _NOT_THE_USERS),
    ]
    return {
        name for owner in owners for name in vars(owner) if not name.startswith("_")
    }


def _refuse_other_kind(own: set[str], where: str, *, is_task: bool) -> None:
    """Raise InvalidJob for a policy of tasks on a job, or of jobs on a task."""
    others = own & (_JOB_WORDS - _TASK_WORDS if is_task else _TASK_WORDS - _JOB_WORDS)
    if not others:
        return
    if is_task:
        cure = "a one-time task has no slots; make it a DistributedJob, or remove it"
    else:
        cure = (
            "this is for one-time tasks; remove it: the ledger has every slot of a job, "
            "and overlap or min_interval limit its starts"
        )
    raise InvalidJob(f"{where}.{min(others)}: {cure}")


def _meant(name: str, value: object, words: frozenset[str], own: set[str]) -> str:
    """Return the policy that an attribute was meant to be; empty if it is the user's own."""
    by_type = _BY_TYPE.get(type(value), "")
    if by_type in words - own:
        return by_type
    by_name = _ALIASES.get(name) or _IF_A_SETTING.get(name)
    return by_name or _nearest(name, (words | _OF_EITHER) - {"schedule"})


def _is_a_setting(value: object) -> bool:
    """Whether a value is of a kind that settings have: a string, a number, strings, a Retry."""
    if isinstance(value, _COLLECTIONS):
        return bool(value) and all(isinstance(one, str) for one in value)
    return isinstance(value, str | int | float | Retry) and not isinstance(value, bool)


def _nearest(name: str, words: Iterable[str]) -> str:
    squeezed = {word.replace("_", ""): word for word in words}
    close = difflib.get_close_matches(
        name.replace("_", "").lower(), squeezed, n=1, cutoff=0.82
    )
    return squeezed[close[0]] if close else ""
