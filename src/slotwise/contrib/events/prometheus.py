"""How far handlers are behind, for Prometheus: the extra ``slotwise[metrics]``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from slotwise import ConfigurationError
from slotwise.contrib.events import reading
from slotwise.contrib.events.events import Events

try:
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError:
    raise ConfigurationError(
        "the figures need prometheus-client: pip install 'slotwise[metrics]'"
    ) from None


class EventsCollector(Collector):
    """A collector that reads the lag of each handler from the database at each scrape.

    All processes read the same, so register it in one of them: ``REGISTRY.register(
    EventsCollector(events))``.
    """

    def __init__(self, events: Events) -> None:
        self._events = events

    def describe(self) -> list[GaugeMetricFamily]:
        """Return no metrics: a registry would otherwise collect at its registration."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the figures; raises DatabaseProblem."""
        client = self._events.client
        dialect = client.dialect
        backlog = client.within(lambda own: reading.backlog(own, dialect))
        lags = client.within(lambda own: reading.lags(own, dialect))
        now = client.within(dialect.now)
        yield _single("waiting", "Events that wait for the fan-out", backlog.waiting)
        yield _single(
            "waiting_seconds", "Age of the oldest one of them", _seconds(backlog.lag)
        )
        lag = _family("lag_seconds", "Age of the oldest event that has not ended")
        open_ones = _family("open", "Events that have not ended")
        dead = _family("dead", "Dead events")
        blocked = _family(
            "blocked_seconds",
            "Age of the event that blocks a key for longest; 0: none",
        )
        for one in lags:
            since = one.blocked_since
            name = [one.handler]
            lag.add_metric(name, _seconds(one.lag))
            open_ones.add_metric(name, one.open)
            dead.add_metric(name, one.dead)
            blocked.add_metric(name, _seconds(None if since is None else now - since))
        yield from (lag, open_ones, dead, blocked)


def _single(name: str, help: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"slotwise_events_{name}", help, value=value)


def _family(name: str, help: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(
        f"slotwise_event_handler_{name}", f"{help}, by handler", labels=["handler"]
    )


def _seconds(span: timedelta | None) -> float:
    return 0.0 if span is None else max(0.0, span.total_seconds())
