"""Alarms: one message for each incident over the whole cluster, and one when it is over.

``slotwise watch`` raises them as a separate process, ``Alarms`` inside a worker. ``CheckIns``
reports each run to a service such as healthchecks or Sentry. Imports the hall and its own files.
"""

from __future__ import annotations

from slotwise.contrib.alarms.alarms import Alarms
from slotwise.contrib.alarms.check_ins import CheckIns, Healthchecks, SentryCrons
from slotwise.contrib.alarms.incidents import Incident, Silence
from slotwise.contrib.alarms.messages import Message, signature, verify
from slotwise.contrib.alarms.rules import AlarmKind, Rules, alarm_rules
from slotwise.contrib.alarms.targets import Call, Email, Slack, Target, Webhook

__all__ = [
    "AlarmKind",
    "Alarms",
    "Call",
    "CheckIns",
    "Email",
    "Healthchecks",
    "Incident",
    "Message",
    "Rules",
    "SentryCrons",
    "Silence",
    "Slack",
    "Target",
    "Webhook",
    "alarm_rules",
    "signature",
    "verify",
]
