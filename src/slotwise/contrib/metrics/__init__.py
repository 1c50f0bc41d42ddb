"""Figures and health of a worker: for Prometheus, OpenTelemetry, probes and alarms.

``slotwise worker --http :8081`` serves them. An application that embeds a registry creates
``Metrics(registry)`` before the worker starts, and shows it with
``slotwise.contrib.metrics.prometheus.register`` or ``Port(":8081", metrics)``. Imports the
registry, the worker's loops and events, and reads of the store.
"""

from slotwise.contrib.metrics.alive_file import AliveFile
from slotwise.contrib.metrics.health import ProbeResult, WorkerHealth
from slotwise.contrib.metrics.meter import Metrics
from slotwise.contrib.metrics.port import Port

__all__ = ["AliveFile", "Metrics", "Port", "ProbeResult", "WorkerHealth"]
