"""Shows the figures in Prometheus's format, by prometheus-client: the extra
``slotwise[metrics]``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from slotwise import ConfigurationError
from slotwise.contrib.metrics.figures import FIGURES, Figure, Kind, Snapshot, Value
from slotwise.contrib.metrics.meter import Metrics

try:
    from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.registry import Collector
except ImportError:
    raise ConfigurationError(
        "the figures need prometheus-client: pip install 'slotwise[metrics]'"
    ) from None

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class SlotwiseCollector(Collector):
    """A collector that takes one snapshot at each scrape."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot

    def describe(self) -> list[Metric]:
        """Return no metrics: a registry would otherwise collect at its registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot()
        for name, figure in FIGURES.items():
            if name in snapshot:
                yield _family(figure, snapshot[name])


def register(
    metrics: Metrics, registry: CollectorRegistry = REGISTRY
) -> SlotwiseCollector:
    """Add the figures to a registry of the application, by default the library's own; return the
    collector.
    """
    collector = SlotwiseCollector(metrics.snapshot)
    registry.register(collector)
    return collector


def exposition(snapshot: Snapshot) -> bytes:
    """Return a snapshot in the text format."""
    registry = CollectorRegistry()
    registry.register(SlotwiseCollector(lambda: snapshot))
    return generate_latest(registry)


def _family(figure: Figure, samples: dict[tuple[str, ...], Value]) -> Metric:
    if figure.kind is Kind.HISTOGRAM:
        shown = HistogramMetricFamily(figure.name, figure.help, labels=figure.labels)
        for labels, value in samples.items():
            assert isinstance(value, tuple)
            shown.add_metric(labels, list(_cumulated(figure, value)), value[1])
        return shown
    kind = CounterMetricFamily if figure.kind is Kind.COUNTER else GaugeMetricFamily
    family: CounterMetricFamily | GaugeMetricFamily = kind(
        figure.name, figure.help, labels=figure.labels
    )
    for labels, value in samples.items():
        assert not isinstance(value, tuple)
        family.add_metric(labels, value)
    return family


def _cumulated(
    figure: Figure, value: tuple[object, float]
) -> Iterator[tuple[str, float]]:
    counts = value[0]
    total = 0
    assert isinstance(counts, list)
    for bound, count in zip((*map(str, figure.buckets), "+Inf"), counts, strict=True):
        total += count
        yield bound, total
