"""Processes whose purpose is a worker, or one slot: in the foreground, under a supervisor, as
process 1.
"""

from __future__ import annotations

from slotwise.contrib.processes.foreground import Foreground
from slotwise.contrib.processes.process_one import reap_as_process_one
from slotwise.contrib.processes.signals import StopSignals, signal_name
from slotwise.contrib.processes.slot_run import SlotEnd, SlotRun
from slotwise.contrib.processes.supervisor import Supervisor

__all__ = [
    "Foreground",
    "SlotEnd",
    "SlotRun",
    "StopSignals",
    "Supervisor",
    "reap_as_process_one",
    "signal_name",
]
