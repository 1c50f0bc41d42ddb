"""What a job declares, in sentences; and whether its row says the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from slotwise import JobRegistry
from slotwise.spi import Definition, format_duration

_CATCH_UP: Final[Mapping[str, str]] = {
    "none": "Slots that come due while no worker holds the job do not run",
    "latest": "After an outage, one run with the newest missed slot replaces all of them",
    "first": "After an outage, one run with the oldest missed slot replaces all of them",
    "all": "After an outage, every missed slot runs, the oldest first",
}
_OVERLAP: Final[Mapping[str, str]] = {
    "skip": "A slot that comes due during a run does not run",
    "queue": "Of the slots that come due during a run, the newest {max} run afterwards",
    "queue_all": "All slots that come due during a run run afterwards, one after another",
    "allow": "Up to {max} slots run side by side in the whole cluster",
    "cancel_previous": "A new slot asks the run before it to stop, and starts when it has ended",
}
_ON_LOST: Final[Mapping[str, str]] = {
    "rerun": "A run whose worker is lost is started again on another one, up to {max} times",
    "give_up": "A run whose worker is lost is not started again: each slot starts at most once",
}
#: Declared durations, each with its sentence.
_SPANS: Final[Mapping[str, str]] = {
    "start_within": "A slot that cannot start within {} does not run",
    "timeout": "An attempt is stopped after {}",
    "warn_after": "A warning is logged when an attempt has run for {}",
    "min_interval": "Two starts are at least {} apart",
    "spread": "Each job starts at its own moment within {} after the slot",
    "result_retention": "Results are kept for {}",
}


def sentences_of(one: Definition) -> list[str]:
    """Return the policies of a job or task as sentences."""
    said = [_catch_up(one)] if one.is_job else []
    if one.is_job:
        said.append(_OVERLAP[one.overlap.mode].format(max=one.overlap.max))
    said.append(_ON_LOST[one.on_lost].format(max=one.max_lost))
    said.append(_retry(one))
    for name, text in _SPANS.items():
        span = getattr(one, name)
        if span is not None:
            said.append(text.format(format_duration(span)))
    said += _limits(one)
    return [f"{text}." for text in said]


def _catch_up(one: Definition) -> str:
    rule = one.catch_up
    said = _CATCH_UP[rule.mode]
    if rule.mode == "none":
        return f"{said}, unless they start within {format_duration(rule.grace)}"
    if rule.max is not None:
        said += f"; only the newest {rule.max:,}"
    if rule.window is not None:
        said += f"; none older than {format_duration(rule.window)}"
    if rule.pace is not None:
        said += f"; at least {format_duration(rule.pace)} apart"
    return said


def _retry(one: Definition) -> str:
    if one.retry is None or one.retry.max_attempts == 1:
        return "A failed attempt is not repeated"
    return f"A failed slot has up to {one.retry.max_attempts} attempts"


def _limits(one: Definition) -> list[str]:
    said = list[str]()
    if one.finish_by is not None:
        by = one.finish_by.by
        told = by if isinstance(by, str) else format_duration(by)
        when = f"by {told}" if ":" in told else f"{told} after its slot"
        said.append(f"A run should have ended {when}")
    if one.concurrency is not None:
        said.append(f"At most {one.concurrency:,} run at a time in the whole cluster")
    if one.rate_limit is not None:
        within = format_duration(one.rate_limit.window)
        said.append(f"At most {one.rate_limit.count:,} start within {within}")
    if one.runs_on:
        tags = ", ".join(sorted(one.runs_on))
        said.append(f"Only workers with the tags {tags} run it")
    if one.isolation is not None:
        said.append("Each run has a separate process")
    return said


#: What a deploy of the application would make of a job that it changes.
_CHANGES: Final[Mapping[str, Callable[[str | None], str]]] = {
    "added": lambda _: "The code has this job, and no worker has planned it yet.",
    "changed": lambda after: f"The code has another schedule: {after}.",
    "policies": lambda _: "The code declares other policies than the last deploy.",
    "outdated": lambda _: (
        "A newer deploy has planned this job; this code would be refused."
    ),
    "orphaned": lambda _: "The code of this application does not have this job.",
}


def differences(registry: JobRegistry) -> dict[str, str]:
    """Return what a worker of this application would change, by the name of the job. Raises
    DatabaseProblem, SchemaMissing or SchemaMismatch.
    """
    return {
        one.job: _CHANGES[one.change](one.after)
        for one in registry.preview()
        if one.change in _CHANGES and one.is_change
    }
