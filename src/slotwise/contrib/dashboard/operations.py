"""Operations that forms request: first rehearsed and shown, then carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypedDict

from slotwise import DatabaseProblem, SlotwiseError
from slotwise.contrib.dashboard.access import Refused, Role
from slotwise.contrib.wording import counted
from slotwise.inspect import RECURRING, Inspection, JobInfo, TaskFilter
from slotwise.operations import Operations, Resumed
from slotwise.spi import ListedState

#: The fields of a form that a preview passes on.
FIELDS: Final = (
    "operation",
    "name",
    "id",
    "slot",
    "first",
    "last",
    "failed",
    "replay",
    "state",
    "begins",
    "error",
    "since",
    "until",
    "order_key",
    "total",
)
#: Tasks that one form changes at most; the page then continues with the next ones.
BATCH: Final = 5_000
#: Jobs that one form pauses at most.
JOBS_AT_ONCE: Final = 100
#: Slots of a preview that are named; the others are counted.
_NAMED: Final = 10


class How(TypedDict):
    """The keywords of every operation."""

    note: str | None
    dry_run: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """An operation that a form requests, of a visitor; ``how`` says whether it is rehearsed."""

    operations: Operations
    inspect: Inspection
    form: Mapping[str, str]
    how: How

    @property
    def name(self) -> str:
        """The job. Raises Refused (400) without one."""
        name = self.form.get("name")
        if not name:
            raise Refused("the form lacks the name of a job", 400)
        return name

    @property
    def id(self) -> str:
        """The recurring instance, or that of the job's own row."""
        return self.form.get("id") or RECURRING

    def instant(self, field: str) -> datetime:
        """Return an instant of the form. Raises Refused (400) without a valid one."""
        text = self.form.get(field, "")
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise Refused(
                f"{field}={text!r:.60} is no instant of ISO 8601", 400
            ) from None
        if found.tzinfo is None:
            raise Refused(f"{field}={text!r:.60} lacks its UTC offset, e.g. Z", 400)
        return found

    @property
    def end(self) -> datetime | None:
        """When a pause is to end by itself."""
        return self.instant("until") if self.form.get("until") else None

    @property
    def tasks(self) -> TaskFilter:
        """The one-time tasks that the form is about."""
        given = self.form.get
        return TaskFilter(
            id=given("id"),
            begins=given("begins"),
            error=given("error"),
            since=self.instant("since") if given("since") else None,
            until=self.instant("until") if given("until") else None,
            order_key=given("order_key"),
        )

    @property
    def limit(self) -> int | None:
        """How many tasks this form changes at most; a rehearsal counts all."""
        return None if self.how["dry_run"] else BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What an operation does, or would do: in sentences, with the slots that it is about.

    ``rows``: how many tasks it changes. If there ``is_more``, the form is to be sent again.
    """

    sentences: Sequence[str]
    slots: Sequence[datetime] = ()
    rows: int = 0
    is_more: bool = False

    @property
    def named(self) -> Sequence[datetime]:
        """The slots that a preview names."""
        return self.slots[:_NAMED]


def pause(requested: Requested) -> Effect:
    """Pause a job, or one of its instances."""
    until = requested.end
    changes = requested.operations.pause(
        requested.name, id=requested.form.get("id"), until=until, **requested.how
    )
    if not changes:
        return Effect(sentences=["It is paused already."])
    return Effect(
        sentences=[f"No slot, retry or trigger of it starts until {_end(until)}."]
    )


def pause_jobs(requested: Requested) -> Effect:
    """Pause the jobs whose names begin with a text, some at a time."""
    begins = requested.form.get("begins", "")
    if not begins:
        raise Refused("the form lacks the beginning of the names", 400)
    waiting = [
        one for one in _beginning(requested, begins) if one.state != ListedState.PAUSED
    ]
    some = waiting[: JOBS_AT_ONCE if requested.limit else None]
    if requested.limit:
        for one in some:
            requested.operations.pause(one.job, until=requested.end, **requested.how)
    return Effect(
        sentences=[
            f"{counted(len(some), 'job', 'is', 'are')} paused until {_end(requested.end)}.",
            f"Their names begin with “{begins}”. Each is a separate operation.",
        ],
        rows=len(some),
        is_more=len(waiting) > len(some),
    )


def _beginning(requested: Requested, begins: str) -> list[JobInfo]:
    exact = requested.inspect.job(begins)
    found = [] if exact is None else [exact]
    after = begins
    while page := requested.inspect.jobs(after=after, limit=JOBS_AT_ONCE):
        mine = [one for one in page if one.job.startswith(begins)]
        found += mine
        if len(mine) < len(page):
            break
        after = page[-1].job
    return found


def _end(until: datetime | None) -> str:
    return "it is resumed" if until is None else f"{until:%Y-%m-%d %H:%M %Z}"


def resume(requested: Requested) -> Effect:
    """Resume a job; its slots of the pause are skipped, or left to catch-up."""
    replay = requested.form.get("replay") == "yes"
    id = requested.form.get("id")
    found = requested.operations.resume(
        requested.name, id=id, replay=replay, **requested.how
    )
    if not found:
        return Effect(sentences=["It is not paused."])
    return Effect(sentences=[_resumed(one) for one in found[:_NAMED]])


def pause_all(requested: Requested) -> Effect:
    """Pause everything."""
    until = requested.end
    changes = requested.operations.pause_all(until=until, **requested.how)
    if not changes:
        return Effect(sentences=["Everything is paused already."])
    return Effect(sentences=[f"No job and no task starts until {_end(until)}."])


def resume_all(requested: Requested) -> Effect:
    """End a pause of everything."""
    replay = requested.form.get("replay") == "yes"
    found = requested.operations.resume_all(replay=replay, **requested.how)
    if found is None:
        return Effect(sentences=["There is no pause of everything."])
    skipped = sum(one.skipped for one in found)
    return Effect(
        sentences=[
            f"Jobs and tasks start again; {counted(skipped, 'slot', 'is', 'are')} skipped."
        ]
    )


def trigger(requested: Requested) -> Effect:
    """Run a job now, beside its schedule."""
    requested.operations.trigger(requested.name, id=requested.id, **requested.how)
    return Effect(sentences=["It runs once now, beside its schedule."])


def skip_next(requested: Requested) -> Effect:
    """Skip the next slot of a job, if it is the one that the form was shown with."""
    slot = requested.operations.skip_next(
        requested.name, requested.instant("slot"), id=requested.id, **requested.how
    )
    return Effect(sentences=["This slot does not run:"], slots=[slot])


def cancel(requested: Requested) -> Effect:
    """Ask what runs of a slot to stop, or end it."""
    slots = requested.operations.cancel(
        requested.name, requested.instant("slot"), id=requested.id, **requested.how
    )
    if not slots:
        return Effect(sentences=["Nothing of it runs or waits for a retry."])
    return Effect(
        sentences=["The handlers of these slots are asked to stop:"], slots=slots
    )


def retry(requested: Requested) -> Effect:
    """Start one more attempt of a slot."""
    slot = requested.instant("slot")
    requested.operations.retry(requested.name, slot, id=requested.id, **requested.how)
    return Effect(sentences=["One more attempt of this slot starts:"], slots=[slot])


def backfill(requested: Requested) -> Effect:
    """Run the slots of a range that never ran."""
    found = requested.operations.backfill(
        requested.name,
        requested.instant("first"),
        requested.instant("last"),
        id=requested.id,
        failed=requested.form.get("failed") == "yes",
        **requested.how,
    )
    said = [f"{counted(len(found.slots), 'slot', 'runs', 'run')}, the oldest first."]
    if found.present:
        said.append(
            f"{counted(found.present, 'other')} of the range ran before: nothing changes there."
        )
    return Effect(sentences=said, slots=found.slots)


def delete(requested: Requested) -> Effect:
    """Delete the rows of a job that is no longer in the code."""
    rows = requested.operations.delete(requested.name, **requested.how)
    return Effect(
        sentences=[f"{counted(rows, 'row', 'is', 'are')} deleted; the history stays."]
    )


def retry_tasks(requested: Requested) -> Effect:
    """Let dead tasks run again."""
    rows = requested.operations.retry_tasks(
        requested.name, where=requested.tasks, limit=requested.limit, **requested.how
    )
    return _of_tasks(requested, rows, "dead, to run again with all attempts")


def cancel_tasks(requested: Requested) -> Effect:
    """Remove tasks that wait, and ask those that run to stop."""
    rows = requested.operations.cancel_tasks(
        requested.name,
        state=requested.form.get("state") or None,
        where=requested.tasks,
        limit=requested.limit,
        **requested.how,
    )
    said = "removed; the handlers of those that run are asked to stop"
    return _of_tasks(requested, rows, said)


def delete_tasks(requested: Requested) -> Effect:
    """Remove tasks that do not run."""
    rows = requested.operations.delete_tasks(
        requested.name,
        state=requested.form.get("state") or None,
        where=requested.tasks,
        limit=requested.limit,
        **requested.how,
    )
    return _of_tasks(requested, rows, "removed; those that run stay")


def _of_tasks(requested: Requested, rows: int, said: str) -> Effect:
    is_more = requested.limit is not None and rows >= requested.limit
    return Effect(
        sentences=[f"{counted(rows, 'task', 'is', 'are')} {said}."],
        rows=rows,
        is_more=is_more,
    )


def _resumed(one: Resumed) -> str:
    when = (
        "without a next slot"
        if one.next_slot is None
        else f"next at {one.next_slot:%c} UTC"
    )
    return f"{one.job}: the pause skips {counted(one.skipped, 'slot')}; {when}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of operation: what it is called, who may request it, and how it is carried out."""

    title: str
    carry_out: Callable[[Requested], Effect]
    role: Role = Role.OPERATOR
    is_harmful: bool = False
    #: Whether it may end by itself, at an instant that the preview asks for.
    has_end: bool = False
    #: The page that shows what it has changed.
    page: str = "/job"


KINDS: Final[Mapping[str, Kind]] = {
    "pause": Kind(title="Pause", carry_out=pause, has_end=True),
    "pause_jobs": Kind(
        title="Pause all of these",
        carry_out=pause_jobs,
        is_harmful=True,
        has_end=True,
        page="/jobs",
    ),
    "resume": Kind(title="Resume", carry_out=resume),
    "pause_all": Kind(
        title="Pause everything",
        carry_out=pause_all,
        role=Role.ADMIN,
        is_harmful=True,
        has_end=True,
    ),
    "resume_all": Kind(
        title="Resume everything", carry_out=resume_all, role=Role.ADMIN
    ),
    "trigger": Kind(title="Run now", carry_out=trigger),
    "skip_next": Kind(title="Skip the next slot", carry_out=skip_next),
    "cancel": Kind(title="Cancel", carry_out=cancel, is_harmful=True),
    "retry": Kind(title="Retry", carry_out=retry),
    "backfill": Kind(title="Backfill", carry_out=backfill),
    "delete": Kind(title="Delete", carry_out=delete, role=Role.ADMIN, is_harmful=True),
    "retry_tasks": Kind(title="Retry tasks", carry_out=retry_tasks, page="/tasks"),
    "cancel_tasks": Kind(
        title="Cancel tasks", carry_out=cancel_tasks, is_harmful=True, page="/tasks"
    ),
    "delete_tasks": Kind(
        title="Delete tasks",
        carry_out=delete_tasks,
        role=Role.ADMIN,
        is_harmful=True,
        page="/tasks",
    ),
}


def kind_of(form: Mapping[str, str]) -> Kind:
    """Return the kind that a form names. Raises Refused (400) for another."""
    name = form.get("operation", "")
    if name not in KINDS:
        raise Refused(f"operation={name!r:.60}: there is no such operation", 400)
    return KINDS[name]


def shown_after(kind: Kind, form: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """Return the page that shows what an operation has changed, and its values."""
    given = {field: form[field] for field in ("name", "id") if form.get(field)}
    if kind.page == "/jobs":
        return kind.page, {"q": form.get("begins", "")}
    if "name" not in given:
        return "/", {}
    if kind.page == "/tasks":
        if "id" in given:
            return "/task", given
        fields = (
            "name",
            "state",
            "begins",
            "error",
            "since",
            "until",
            "order_key",
        )
        return kind.page, {field: form[field] for field in fields if form.get(field)}
    if form.get("slot"):
        return "/instant", {**given, "at": form["slot"]}
    return kind.page, given


def effect_of(
    kind: Kind,
    operations: Operations,
    inspect: Inspection,
    form: Mapping[str, str],
    *,
    dry_run: bool,
) -> Effect:
    """Carry out an operation, or rehearse it. What slotwise rejects is Refused (409)."""
    note = form.get("note") or None
    requested = Requested(
        operations=operations,
        inspect=inspect,
        form=form,
        how={"note": note, "dry_run": dry_run},
    )
    try:
        return kind.carry_out(requested)
    except DatabaseProblem:
        raise
    except SlotwiseError as error:
        raise Refused(" ".join(str(error).split()), 409) from error
