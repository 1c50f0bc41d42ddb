"""Manifests for Kubernetes: workers as Deployments, jobs as CronJobs. It imports the core only.

>>> from slotwise import Cron
>>> from slotwise.contrib.kubernetes import firing
>>> firing("nightly-report", Cron("0 2 * * MON-FRI", tz="Europe/Vienna")).schedule
'0 2 * * 1-5'
"""

from __future__ import annotations

from slotwise.contrib.kubernetes.firing import Firing, firing
from slotwise.contrib.kubernetes.manifests import Manifest, as_yaml, manifests
from slotwise.contrib.kubernetes.plan import Plan, Pods, read_plan

__all__ = [
    "Firing",
    "Manifest",
    "Plan",
    "Pods",
    "as_yaml",
    "firing",
    "manifests",
    "read_plan",
]
