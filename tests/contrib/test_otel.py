"""Spans and metrics, as OpenTelemetry's own SDK receives them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from slotwise import (
    ConfigurationError,
    Context,
    Every,
    JobContext,
    JobRegistry,
    Retry,
    Snooze,
    job,
    task,
)
from slotwise.contrib.otel import instrument
from slotwise.testing import ManualWorker

seen: list[trace.SpanContext] = []


@job(name="report", schedule=Every("1h"))
def report(ctx: JobContext) -> None:
    seen.append(trace.get_current_span().get_span_context())


@task(name="mail", retry=Retry.exponential(max_attempts=2, initial="1s"))
def mail(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise ValueError("no way")


@task(name="later")
def later(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise Snooze("1s")


@task(name="async")
async def awaited(ctx: Context) -> None:
    seen.append(trace.get_current_span().get_span_context())


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@task(name="unspeakable", retry=None)
def unspeakable(ctx: Context) -> None:
    raise Unspeakable from ValueError("password=hunter2 " + "x" * 200_000)


class Telemetry:
    """An SDK that keeps what it gets."""

    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider(**options)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader])

    def spans(self, name: str) -> list[ReadableSpan]:
        return [
            span for span in self.exporter.get_finished_spans() if span.name == name
        ]

    def points(self) -> dict[str, list[Any]]:
        data = self.reader.get_metrics_data()
        assert data is not None
        metrics = [
            one
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for one in scope.metrics
        ]
        return {one.name: list(one.data.data_points) for one in metrics}


def worker_of(telemetry: Telemetry, **options: Any) -> ManualWorker:
    registry = JobRegistry(jobs=[report], tasks=[mail, later, awaited, unspeakable])
    instrument(
        registry,
        tracer_provider=telemetry.tracers,
        meter_provider=telemetry.meters,
        **options,
    )
    seen.clear()
    return ManualWorker(registry)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.tracers.shutdown()
    made.meters.shutdown()


def test_a_span_per_attempt(telemetry: Telemetry) -> None:
    """Current in the handler, with the attempt's identity; a failure has its exception; a retry
    has its own span.
    """
    with worker_of(telemetry) as worker:
        worker.client.schedule("mail", id="1")
        worker.client.schedule("async", id="2")
        worker.tick("1h")
        worker.run_due()
        worker.tick("5s")
        worker.run_due()
    (span,) = telemetry.spans("run report")
    assert span.parent is None
    assert span.kind is trace.SpanKind.CONSUMER
    assert span.attributes is not None
    assert (span.attributes["slotwise.name"], span.attributes["slotwise.id"]) == (
        "report",
        "recurring",
    )
    assert (span.attributes["slotwise.attempt"], span.attributes["slotwise.slot"]) == (
        1,
        "2026-01-01T01:00:00+00:00",
    )
    failed, succeeded = telemetry.spans("run mail")
    assert (failed.status.status_code, failed.status.description) == (
        trace.StatusCode.ERROR,
        "ValueError: no way",
    )
    assert [event.name for event in failed.events] == ["exception"]
    assert succeeded.status.status_code is trace.StatusCode.UNSET
    (of_async,) = telemetry.spans("run async")
    assert {one.span_id for one in seen} == {
        span.context.span_id,
        of_async.context.span_id,
    }


def test_an_error_in_a_span(telemetry: Telemetry) -> None:
    """It has no secret and no megabytes, also where the exception has no text."""
    with worker_of(telemetry) as worker:
        worker.client.schedule("unspeakable", id="1")
        worker.run_due()
    (span,) = telemetry.spans("run unspeakable")
    (event,) = span.events
    assert event.attributes is not None
    trace_of = str(event.attributes["exception.stacktrace"])
    assert event.attributes["exception.type"] == "Unspeakable"
    assert "hunter2" not in trace_of
    assert len(trace_of) < 20_000
    assert "Unspeakable" in str(span.status.description)


def test_a_span_is_linked_to_the_one_that_scheduled(telemetry: Telemetry) -> None:
    """Each attempt of it. A task that was scheduled outside of a span has no link."""
    tracer = telemetry.tracers.get_tracer("application")
    with worker_of(telemetry) as worker:
        with tracer.start_as_current_span("request") as request:
            worker.client.schedule("mail", id="1")
        worker.client.schedule("async", id="outside")
        worker.run_due()
        worker.tick("5s")
        worker.run_due()
    for span in telemetry.spans("run mail"):
        (link,) = span.links
        assert link.context.span_id == request.get_span_context().span_id
        assert link.context.trace_id != span.context.trace_id
    assert len(telemetry.spans("run mail")) == 2
    assert not telemetry.spans("run async")[0].links


def test_the_context_is_stored_with_the_task(telemetry: Telemetry) -> None:
    """In the same transaction: what is rolled back leaves nothing; an id that existed keeps its
    own context.
    """
    tracer = telemetry.tracers.get_tracer("application")
    with worker_of(telemetry) as worker:
        store = worker.store

        def stored() -> list[Any]:
            tasks = store.tables.tasks
            with store.transaction() as connection:
                return list(
                    connection.scalars(
                        sa.select(tasks.c.plan).where(tasks.c.task_name == "mail")
                    )
                )

        with tracer.start_as_current_span("first") as first:
            worker.client.schedule("mail", id="1")
        with tracer.start_as_current_span("second"):
            worker.client.schedule("mail", id="1", if_exists="keep")
        (found,) = stored()
        assert (
            format(first.get_span_context().span_id, "016x")
            in found["trace"]["traceparent"]
        )
        worker.client.schedule("mail", id="2")
        assert sorted(map(str, stored()))[0] == "None"


def test_control_flow_is_no_error(telemetry: Telemetry) -> None:
    with worker_of(telemetry) as worker:
        worker.client.schedule("later", id="1")
        worker.run_due()
    (span,) = telemetry.spans("run later")
    assert span.status.status_code is trace.StatusCode.UNSET
    assert span.attributes is not None
    assert span.attributes["slotwise.ended_by"] == "Snooze"


def test_attempts_that_are_not_sampled_make_no_span(telemetry: Telemetry) -> None:
    """Nor is anything read for them."""
    with worker_of(telemetry, sample=0.0) as worker:
        worker.client.schedule("mail", id="1")
        statements: list[str] = []
        sa.event.listen(
            worker.store.database.main,
            "before_cursor_execute",
            lambda *given: statements.append(given[2]),
        )
        worker.run_due()
        assert not any("SELECT scheduled_tasks.plan" in one for one in statements)
    assert telemetry.exporter.get_finished_spans() == ()


def test_the_sampler_of_the_sdk_decides_too() -> None:
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    tracer = telemetry.tracers.get_tracer("application")
    with worker_of(telemetry) as worker:
        with tracer.start_as_current_span("request"):
            worker.client.schedule("mail", id="1")
        tasks = worker.store.tables.tasks
        with worker.store.transaction() as connection:
            assert (
                connection.scalar(
                    sa.select(tasks.c.plan).where(tasks.c.task_name == "mail")
                )
                is None
            )
        worker.run_due()
    assert telemetry.exporter.get_finished_spans() == ()
    telemetry.tracers.shutdown()
    telemetry.meters.shutdown()


def test_metrics(telemetry: Telemetry) -> None:
    """The figures of the page, with their labels as attributes, and units in their own field."""
    with worker_of(telemetry) as worker:
        worker.client.schedule("mail", id="1")
        worker.tick("1h")
        worker.run_due()
        points = telemetry.points()
    attempts = {
        tuple(point.attributes.values()): point.value
        for point in points["slotwise.attempts"]
    }
    assert attempts == {
        ("report", "slot", "succeeded", ""): 1,
        ("mail", "task", "failed", "retry"): 1,
    }
    durations = {
        point.attributes["name"]: point.count for point in points["slotwise.duration"]
    }
    assert durations == {"report": 1, "mail": 1}
    (waited,) = [
        point
        for point in points["slotwise.queue_wait"]
        if point.attributes["name"] == "mail"
    ]
    assert round(waited.sum) == timedelta(hours=1).total_seconds()
    assert "slotwise.settlement_batch_size" in points


def test_without_an_sdk_nothing_happens() -> None:
    """The handler runs, nothing is stored, and no span is current."""
    registry = JobRegistry(jobs=[report], tasks=[mail])
    instrument(registry)
    seen.clear()
    with ManualWorker(registry) as worker:
        worker.client.schedule("mail", id="1")
        worker.tick("1h")
        worker.run_due()
    assert [one.is_valid for one in seen] == [False]


@pytest.mark.parametrize("sample", [-0.1, 1.1, True, "all"], ids=str)
def test_a_share_that_is_none(sample: Any) -> None:
    with pytest.raises(ConfigurationError, match="write a number from 0 to 1"):
        instrument(JobRegistry(jobs=[report]), sample=sample)
