"""OpenTelemetry, by its API alone: metrics, and one span per attempt, linked to the span that
scheduled it.

``instrument(registry)`` before the worker starts and before the first task is scheduled. Without
an SDK nothing is recorded, written or read. The extra is ``slotwise[otel]``.
"""

from __future__ import annotations

import logging
import random
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import TracebackType

import sqlalchemy as sa

from slotwise import (
    ConfigurationError,
    Context,
    JobCancelled,
    JobContext,
    JobRegistry,
    SlotwiseError,
)
from slotwise.contrib.metrics.figures import FIGURES, Figure, Kind, Snapshot
from slotwise.contrib.metrics.meter import Metrics
from slotwise.spi import (
    BatchClaimed,
    BatchSettled,
    Event,
    Finished,
    Inserted,
    Joinable,
    Steering,
    error_summary,
    storable,
    store_trace,
)
from slotwise.spi import Kind as RowKind

try:
    from opentelemetry import context, metrics, propagate, trace
    from opentelemetry.metrics import (
        CallbackOptions,
        Histogram,
        MeterProvider,
        Observation,
    )
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider
except ImportError:
    raise ConfigurationError(
        "traces need the API of OpenTelemetry: pip install 'slotwise[otel]'"
    ) from None

logger = logging.getLogger("slotwise.otel")

#: One snapshot serves all instruments that are read within this time, in seconds.
SHARED = 1.0
#: Without an SDK, one is looked for again after this time, in seconds.
PAUSE = 0.1
_NOTHING = nullcontext()


def instrument(
    registry: JobRegistry,
    *,
    traces: bool = True,
    links: bool = True,
    sample: float = 1.0,
    figures: bool = True,
    max_names: int = 1000,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Add spans and metrics to a registry, before its worker starts and before its client is used.

    ``sample`` is the share of attempts that get a span; it is decided before a span is made or
    anything is read, and the SDK's sampler decides about those that are left. With ``links``, a
    task that is scheduled within a recorded span stores the span's context, in the same
    transaction: one more statement for each call; and an attempt that is sampled reads it: one
    more statement for each. ``max_names``: see ``Metrics``. Raises ConfigurationError.
    """
    if (
        isinstance(sample, bool)
        or not isinstance(sample, int | float)
        or not 0 <= sample <= 1
    ):
        raise ConfigurationError(f"sample={sample!r:.40}: write a number from 0 to 1")
    if registry.worker is not None:
        raise ConfigurationError(
            "the registry is running; instrument it before its worker starts"
        )
    if traces:
        tracing = Tracing(
            registry, sample=float(sample), links=links, provider=tracer_provider
        )
        hooks = registry.hooks
        registry.hooks = replace(hooks, interceptors=(tracing, *hooks.interceptors))
        if links:
            registry.hooks = replace(
                registry.hooks,
                at_insert=(*registry.hooks.at_insert, tracing.at_insert),
            )
    if figures:
        _Instruments(registry, max_names, meter_provider)


# -- traces ---------------------------------------------------------------------------------------


class Tracing:
    """The interceptor that makes a span for each attempt, and the hook that stores the context of
    a schedule call.
    """

    def __init__(
        self,
        registry: JobRegistry,
        *,
        sample: float,
        links: bool,
        provider: TracerProvider | None,
    ) -> None:
        self._settings = registry.settings
        self._sample = sample
        self._links = links
        self._provider = provider
        self._asked = -PAUSE
        self._tracer = trace.get_tracer("slotwise", tracer_provider=provider)

    def __call__(self, ctx: Context) -> AbstractContextManager[object]:
        if self._sample < 1.0 and random.random() >= self._sample:
            return _NOTHING
        if self._provider is None:
            # To ask for the provider costs more than all else here, so each answer that there is
            # none holds a while.
            if (now := time.monotonic()) - self._asked < PAUSE:
                return _NOTHING
            if isinstance(trace.get_tracer_provider(), _WITHOUT_SDK):
                self._asked = now
                return _NOTHING
        return _Attempt(
            self._tracer, ctx, self._scheduled_by(ctx) if self._links else ()
        )

    def at_insert(self, rows: Sequence[Inserted], tx: Joinable) -> None:
        """Store the context of the current span with these tasks, if it is recorded."""
        if not trace.get_current_span().get_span_context().trace_flags.sampled:
            return
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        if not carrier:
            return
        store_trace(tx, rows, carrier, settings=self._settings)

    def _scheduled_by(self, ctx: Context) -> Sequence[Link]:
        if isinstance(ctx, JobContext):
            return ()
        try:
            carrier = ctx.client.inspect.trace(ctx.name, ctx.id)
        except (
            SlotwiseError,
            sa.exc.SQLAlchemyError,
        ):  # the attempt is worth more than its link
            logger.debug("the link of a span cannot be read", exc_info=True)
            return ()
        if carrier is None:
            return ()
        span = trace.get_current_span(
            propagate.extract(carrier, context=context.Context())
        ).get_span_context()
        return (Link(span),) if span.is_valid else ()


class _Attempt:
    """The span of one attempt, current while the handler runs."""

    __slots__ = ("_ctx", "_links", "_span", "_token", "_tracer")

    def __init__(
        self, tracer: trace.Tracer, ctx: Context, links: Sequence[Link]
    ) -> None:
        self._tracer = tracer
        self._ctx = ctx
        self._links = links

    def __enter__(self) -> None:
        ctx = self._ctx
        attributes: dict[str, str | int] = {
            "slotwise.name": ctx.name,
            "slotwise.id": ctx.id,
            "slotwise.attempt": ctx.attempt,
            "slotwise.worker": ctx.worker,
            "slotwise.token": ctx.token,
        }
        if isinstance(ctx, JobContext):
            attributes["slotwise.slot"] = ctx.slot.isoformat()
        # A root of its own: the span that scheduled it may have ended days ago, and a link says
        # so.
        self._span = self._tracer.start_span(
            f"run {ctx.name}",
            context.Context(),
            SpanKind.CONSUMER,
            attributes,
            self._links,
        )
        self._token = context.attach(trace.set_span_in_context(self._span))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        context.detach(self._token)
        if error is not None and not isinstance(error, Steering | JobCancelled):
            text = storable("".join(traceback.format_exception(error)))
            self._span.add_event(
                "exception",
                {
                    "exception.type": type(error).__qualname__,
                    "exception.message": error_summary(text),
                    "exception.stacktrace": text,
                },
            )
            self._span.set_status(Status(StatusCode.ERROR, error_summary(text)))
        elif error is not None:
            self._span.set_attribute("slotwise.ended_by", type(error).__name__)
        self._span.end()


_WITHOUT_SDK = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)


# -- metrics --------------------------------------------------------------------------------------


class _Instruments:
    """The figures as instruments: counters and gauges are observed, histograms are recorded batch
    by batch.
    """

    def __init__(
        self, registry: JobRegistry, max_names: int, provider: MeterProvider | None
    ) -> None:
        self._metrics = Metrics(registry, max_names=max_names)
        self._provider = provider
        self._snapshot: tuple[float, Snapshot] = (-SHARED, {})
        meter = metrics.get_meter("slotwise", meter_provider=provider)
        self._histograms: dict[str, Histogram] = {}
        for figure in FIGURES.values():
            name, unit = _named(figure)
            if figure.kind is Kind.HISTOGRAM:
                self._histograms[figure.name] = meter.create_histogram(
                    name, unit, figure.help
                )
            elif figure.kind is Kind.COUNTER:
                meter.create_observable_counter(
                    name, [self._observer(figure)], unit, figure.help
                )
            else:
                meter.create_observable_gauge(
                    name, [self._observer(figure)], unit, figure.help
                )
        registry.listen(self)

    def _observer(
        self, figure: Figure
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            at, found = self._snapshot
            if time.monotonic() - at > SHARED:
                found = self._metrics.snapshot()
                self._snapshot = time.monotonic(), found
            for labels, value in found.get(figure.name, {}).items():
                assert not isinstance(value, tuple)
                yield Observation(value, dict(zip(figure.labels, labels, strict=True)))

        return observe

    def wants(self, kind: type[Event]) -> bool:
        return kind in (BatchClaimed, BatchSettled)

    def __call__(self, event: Event) -> None:
        if not self.wants(type(event)):
            return  # an event that another listener wants
        provider = self._provider or metrics.get_meter_provider()
        if (
            isinstance(provider, metrics.NoOpMeterProvider)
            or type(provider).__name__ == "_ProxyMeterProvider"
        ):
            return  # no SDK: nothing would be recorded
        if isinstance(event, BatchSettled):
            self._histograms["slotwise_settlement_seconds"].record(
                event.took.total_seconds()
            )
            self._histograms["slotwise_settlement_batch_size"].record(event.count)
            for attempt in event.succeeded:
                self._record(attempt)
            for attempt, _, _ in event.others:
                self._record(attempt)
        elif isinstance(event, BatchClaimed):
            self._histograms["slotwise_claim_seconds"].record(
                event.took.total_seconds()
            )
            self._histograms["slotwise_claim_batch_size"].record(event.count)

    def _record(self, attempt: Finished) -> None:
        if attempt.ran is None:
            return
        began, ended = attempt.ran
        claim = attempt.claim
        row = attempt.claim.row
        name = self._metrics.label(row.task_name)
        labels = {
            "name": name,
            "kind": RowKind.TASK.value if not attempt.is_slot else "slot",
        }
        self._histograms["slotwise_duration_seconds"].record(ended - began, labels)
        in_process = began - attempt.since
        waited = (claim.claimed_at - row.execution_time).total_seconds() + in_process
        self._histograms["slotwise_queue_wait_seconds"].record(waited, labels)
        if attempt.is_slot and row.slot is not None and row.attempt == 1:
            late = (claim.claimed_at - row.slot).total_seconds() + in_process
            self._histograms["slotwise_start_lateness_seconds"].record(
                late, {"name": name}
            )


def _named(figure: Figure) -> tuple[str, str]:
    """Return the instrument's name, with dots and without the unit, and its unit."""
    name = figure.name.replace("slotwise_", "slotwise.", 1)
    if name.endswith("_seconds"):
        return name.removesuffix("_seconds"), "s"
    return name, "{row}" if figure.buckets else "1"
