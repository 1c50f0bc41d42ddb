"""Pages of the admin: jobs with their slots, one-time tasks, workers; read through
``registry.inspect``, and operated through ``registry.operations``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar, Literal

from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.core.exceptions import PermissionDenied
from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    HttpResponseBadRequest,
    HttpResponseRedirect,
)
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html

from slotwise import ConfigurationError, InvalidJob, SlotwiseError, UnknownTask
from slotwise.contrib.django.models import Job, Task, Worker
from slotwise.contrib.django.project import registry
from slotwise.inspect import Inspection, JobInfo, Pause, TaskCount, describe_schedule
from slotwise.operations import Operations, Paused
from slotwise.spi import Outcome

Rows = Iterable[Sequence[object]]
#: Labels with their values.
Facts = Sequence[tuple[str, object]]
#: Recurring instances on the page of one task.
_MOST_INSTANCES = 100
#: The call of Python that an error begins with, which a visitor has not written.
_CALL = re.compile(r"\w+\('.*?\): ")


#: Outcomes of slots that can be retried.
_RETRIED = (Outcome.FAILED, Outcome.DEAD, Outcome.LOST, Outcome.CANCELLED)


class Listing(admin.ModelAdmin):
    """A table, and a page for each object; nothing can be added, edited or deleted. What can be
    done are operations, which keep an audit with the user's name.
    """

    columns: ClassVar[tuple[str, ...]]
    detail_columns: ClassVar[tuple[str, ...]] = ()
    #: What the pages of one object are of; None: there are none.
    kind: ClassVar[Literal["job", "task"] | None] = None
    #: The buttons on the page of one object.
    operations: ClassVar[tuple[str, ...]] = ()
    #: What ``schedule`` takes, and how that is explained; empty: the page has no such button.
    fields_of_schedule: ClassVar[Mapping[str, str]] = {}

    def operate(
        self, operations: Operations, name: str, word: str, note: str | None
    ) -> str:
        """Do what the button says; return what was done. Raises SlotwiseError."""
        raise NotImplementedError

    def schedule(self, name: str, given: Mapping[str, str]) -> str:
        """Schedule what the form says; return what was done. Raises SlotwiseError."""
        raise NotImplementedError

    def rows(self, inspect: Inspection) -> Rows:
        """Return the rows of the page."""
        raise NotImplementedError

    def details(self, inspect: Inspection, name: str) -> Rows:
        """Return the rows of the page of one object."""
        return ()

    def facts(self, inspect: Inspection, name: str) -> Facts:
        """Return what stands above the rows of the page of one object."""
        return ()

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nothing can be added."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Nothing can be changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: object = None) -> bool:
        """Nothing can be deleted."""
        return False

    def get_urls(self) -> list[object]:
        """Return the table and the page of one object; there is nothing else."""
        name = f"slotwise_{self.model._meta.model_name}"
        view = self.admin_site.admin_view
        return [
            path("", view(self.changelist_view), name=f"{name}_changelist"),
            path(
                "<path:object_id>/change/",
                view(self.change_view),
                name=f"{name}_change",
            ),
        ]

    def changelist_view(
        self, request: HttpRequest, extra_context: object = None
    ) -> HttpResponse:
        """Show the page."""
        return self._page(
            request, str(self.model._meta.verbose_name_plural), self.columns, self.rows
        )

    def change_view(
        self,
        request: HttpRequest,
        object_id: str,
        form_url: str = "",
        extra_context: object = None,
    ) -> HttpResponse:
        """Show the page of one object."""
        name = admin.utils.unquote(object_id)
        if not self.has_view_permission(request):
            raise PermissionDenied
        unknown = self._unknown(name)
        if unknown is not None and request.method != "POST":
            raise Http404(unknown)
        if unknown is not None:
            messages.error(request, unknown)
            table = f"slotwise_{self.model._meta.model_name}_changelist"
            return HttpResponseRedirect(reverse(f"{self.admin_site.name}:{table}"))
        if request.method == "POST":
            return self._operate(request, name)
        return self._page(
            request,
            name,
            self.detail_columns,
            lambda inspect: self.details(inspect, name),
            self.operations if self.may_operate(request) else (),
            lambda inspect: self.facts(inspect, name),
        )

    def _unknown(self, name: str) -> str | None:
        """Return why there is no page of this name: no code, row or live worker knows it."""
        if self.kind is None or not name.isprintable():
            return f"no page of {name!r:.60}"
        definition = registry().definitions.get(name)
        if definition is not None and definition.is_job == (self.kind == "job"):
            return None
        try:
            registry().inspect.check_name(name, kind=self.kind)
        except (InvalidJob, UnknownTask) as error:
            return str(error)
        except SlotwiseError:  # the database is away, as the page tells
            return None
        return None

    def may_operate(self, request: HttpRequest) -> bool:
        """Whether the user has the permission to change such objects."""
        return bool(self.operations) and admin.ModelAdmin.has_change_permission(
            self, request
        )

    def _operate(self, request: HttpRequest, name: str) -> HttpResponse:
        """Do an operation in the user's name, and show the page again; CSRF is Django's."""
        if not self.may_operate(request):
            raise PermissionDenied
        word = request.POST.get("operation", "")
        is_schedule = word == "schedule" and bool(self.fields_of_schedule)
        if word not in self.operations and not is_schedule:
            return HttpResponseBadRequest("no such operation")
        note = request.POST.get("note", "").strip() or None
        operations = registry().operations.by(request.user.get_username())
        try:
            if is_schedule:
                done = self._schedule(request, name, note)
            else:
                done = self.operate(operations, name, word, note)
        except SlotwiseError as error:
            messages.error(request, _CALL.sub("", str(error)))
        else:
            messages.success(request, done)
        return HttpResponseRedirect(request.path)

    def _schedule(self, request: HttpRequest, name: str, note: str | None) -> str:
        """Schedule, and write it into Django's log of changes: the audit of slotwise has
        operations on what is scheduled already.
        """
        given = {
            field: request.POST.get(field, "").strip()
            for field in self.fields_of_schedule
        }
        done = self.schedule(name, given)
        LogEntry.objects.create(
            user_id=request.user.pk,
            content_type=ContentType.objects.get_for_model(self.model),
            object_id=name,
            object_repr=name[:200],
            action_flag=ADDITION,
            change_message=f"{done}: {note}" if note else done,
        )
        return done

    def _page(
        self,
        request: HttpRequest,
        title: str,
        columns: Sequence[str],
        read: Callable[[Inspection], Rows],
        operations: Sequence[str] = (),
        read_facts: Callable[[Inspection], Facts] | None = None,
    ) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        rows = list[Sequence[object]]()
        facts: Facts = ()
        problem = None
        try:
            rows = list(read(registry().inspect))
            if read_facts is not None:
                facts = read_facts(registry().inspect)
        except (
            SlotwiseError
        ) as error:  # the database is away, or has no tables: the page says so
            problem = str(error)
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "columns": columns,
            "rows": rows,
            "facts": facts,
            "problem": problem,
            "operations": operations,
            "fields": self.fields_of_schedule if operations else {},
            "opts": self.model._meta,
        }
        return TemplateResponse(request, "admin/slotwise/table.html", context)

    def link(self, name: str) -> object:
        """Return a link to the page of one object."""
        address = reverse(
            f"{self.admin_site.name}:slotwise_{self.model._meta.model_name}_change",
            args=[admin.utils.quote(name)],
        )
        return format_html('<a href="{}">{}</a>', address, name)


def _switch(
    operations: Operations, name: str, word: str, note: str | None
) -> str | None:
    """Pause or resume; None for another word."""
    if word == "pause":
        is_new = operations.pause(name, note=note)
        return f"Paused {name}" if is_new else f"Already paused: {name}"
    if word == "resume":
        resumed = operations.resume(name, note=note)
        return f"Resumed {name}" if resumed else f"Not paused: {name}"
    return None


def _declared() -> Iterable[str]:
    """Return the names of the project's one-time tasks."""
    for name, one in registry().definitions.items():
        if not one.is_job and one.renamed_to is None:
            yield name


@admin.register(Job)
class JobPage(Listing):
    """All jobs; and the newest slots of one."""

    columns = (
        "job",
        "state",
        "schedule",
        "next slot",
        "last success",
        "failures",
        "last error",
    )
    detail_columns = (
        "slot",
        "outcome",
        "reason",
        "attempts",
        "started",
        "finished",
        "worker",
        "error",
    )

    kind = "job"
    operations = ("pause", "resume", "run now", "retry")

    def operate(
        self, operations: Operations, name: str, word: str, note: str | None
    ) -> str:
        """Pause, resume or run the job, or retry its newest slot that did not succeed."""
        done = _switch(operations, name, word, note)
        if done is not None:
            return done
        if word == "run now":
            slot = operations.trigger(name, note=note)
            return f"Started {name} as the slot {slot}"
        for one in registry().inspect.slots(name):
            if one.outcome in _RETRIED:
                operations.retry(name, one.slot, id=one.id, note=note)
                return f"Retried the slot {one.slot} of {name}"
        return f"Found no slot of {name} that can be retried"

    def rows(self, inspect: Inspection) -> Rows:
        """Return a row for each job."""
        for one in inspect.jobs():
            yield (
                self.link(one.job),
                one.state,
                describe_schedule(one.schedule),
                one.next_slot,
                one.last_success,
                one.consecutive_failures,
                _first_line(one.last_error),
            )

    def facts(self, inspect: Inspection, name: str) -> Facts:
        """Return how a job is now; empty while it has no row."""
        one = inspect.job(name)
        return [*_everything(inspect), *([] if one is None else _facts(one))]

    def details(self, inspect: Inspection, name: str) -> Rows:
        """Return the newest slots of a job."""
        for one in inspect.slots(name):
            slot = f"{one.slot} to {one.last} ({one.count})" if one.last else one.slot
            yield (
                slot,
                one.outcome,
                one.reason,
                one.attempts,
                one.started,
                one.finished,
                one.worker,
                _first_line(one.error),
            )


@admin.register(Task)
class TaskPage(Listing):
    """How many one-time tasks of each name wait, run or are dead, and how many recurring instances
    it has, also of the project's tasks without any; and the first hundred of one name, of both.
    """

    columns = (
        "task",
        "waiting",
        "running",
        "paused",
        "blocked",
        "dead",
        "recurring instances",
    )
    detail_columns = (
        "id",
        "state",
        "due",
        "schedule",
        "priority",
        "attempt",
        "worker",
        "last error",
    )

    kind = "task"
    operations = ("pause", "resume", "retry")
    fields_of_schedule: ClassVar[Mapping[str, str]] = {
        "data": "as JSON",
        "id": "none: a new one",
        "delay": "10m; none: now",
        "schedule": "a recurring instance with this id: 0 2 * * *",
    }

    def schedule(self, name: str, given: Mapping[str, str]) -> str:
        """Schedule a task, or a recurring instance of it."""
        client = registry().client
        try:
            value = json.loads(given["data"] or "null")
        except ValueError as error:
            raise ConfigurationError(
                f'data is no JSON ({error}); write for example {{"customer": 7}}'
            ) from None
        data = client.typed_data(name, value)
        id = given["id"] or None
        delay = given["delay"] or None
        text = given["schedule"]
        if not text:
            found = client.schedule(name, data, id=id, delay=delay)
            return f"{found.status.capitalize()}: {name} {found.id}"
        if id is None or delay is not None:
            raise ConfigurationError(
                "a recurring instance has an id and no delay; its schedule says when"
            )
        slot = client.schedule_recurring(name, id, text, data)
        return f"Scheduled: {name} {id}, {text}, next slot {slot}"

    def operate(
        self, operations: Operations, name: str, word: str, note: str | None
    ) -> str:
        """Pause or resume the tasks of a name, or retry its dead ones."""
        done = _switch(operations, name, word, note)
        if done is not None:
            return done
        count = operations.retry_tasks(name, note=note)
        return f"Retried {count} dead tasks of {name}"

    def rows(self, inspect: Inspection) -> Rows:
        """Return a row for each task."""
        counts = {one.task: one for one in inspect.task_counts()}
        instances = inspect.instance_counts()
        for name in sorted({*counts, *_declared()}):
            one = counts.get(name) or TaskCount(task=name)
            yield (
                self.link(name),
                one.waiting,
                one.running,
                one.paused,
                one.blocked,
                one.dead,
                instances.get(name, 0),
            )

    def facts(self, inspect: Inspection, name: str) -> Facts:
        """Return who paused the tasks of a name, and how many recurring instances it has."""
        mine = [one for one in inspect.pauses() if one.job == name and not one.id]
        paused = [("paused", _pause(one)) for one in mine]
        number = inspect.instance_counts().get(name, 0)
        return [*_everything(inspect), *paused, ("recurring instances", number)]

    def details(self, inspect: Inspection, name: str) -> Rows:
        """Return the first hundred one-time tasks, and the first hundred recurring instances."""
        for task in inspect.tasks(name):
            yield (
                task.id,
                task.state,
                task.due,
                "",
                task.priority,
                task.attempt,
                task.worker,
                _first_line(task.last_error),
            )
        for one in inspect.instances(name, limit=_MOST_INSTANCES):
            yield (
                one.id,
                f"{one.state}: {one.reason}" if one.reason else one.state,
                one.due,
                describe_schedule(one.schedule),
                one.priority,
                one.attempt,
                one.worker,
                _first_line(one.last_error),
            )


@admin.register(Worker)
class WorkerPage(Listing):
    """All workers that have signed in."""

    columns = (
        "worker",
        "state",
        "live",
        "running",
        "capacity",
        "version",
        "started",
        "last seen",
    )

    def rows(self, inspect: Inspection) -> Rows:
        """Return a row for each worker."""
        for one in inspect.workers():
            yield (
                one.worker,
                one.state,
                "yes" if one.live else "no",
                one.running,
                one.capacity,
                one.version,
                one.started,
                one.last_seen,
            )


def _everything(inspect: Inspection) -> Facts:
    """Return the pause of all jobs and tasks, if there is one."""
    found = inspect.all_paused()
    return [] if found is None else [("everything is paused", _pause(found))]


def _pause(one: Pause | Paused) -> str:
    until = one.until if isinstance(one, Pause) else None
    end = f", until {until:%Y-%m-%d %H:%M:%S} UTC" if until else ""
    note = f": {one.note}" if one.note else ""
    return f"by {one.author} since {one.since:%Y-%m-%d %H:%M:%S} UTC{end}{note}"


def _facts(one: JobInfo) -> Facts:
    return [
        ("state", f"{one.state}: {one.reason}" if one.reason else one.state),
        ("schedule", describe_schedule(one.schedule)),
        ("next slot", one.next_slot),
        ("due", one.due),
        ("running since", one.running_since),
        ("last success", one.last_success),
        ("last failure", one.last_failure),
        ("failures in a row", one.consecutive_failures),
    ]


def _first_line(error: str | None) -> str:
    from slotwise.spi import error_summary

    return error_summary(error)
