"""The environment of a command: cron's own, what is inherited, what the job says, and which slot this is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from slotwise.contrib.command.invocation import DEFAULT_SHELL

if TYPE_CHECKING:
    from slotwise.contrib.command.account import Account
    from slotwise.contrib.command.invocation import Invocation
    from slotwise.jobs.context import JobContext

#: Where cron looks for programs.
DEFAULT_PATH: Final = "/usr/bin:/bin"


def environment(invocation: Invocation, account: Account, ctx: JobContext) -> dict[str, str]:
    """Later ones win: cron's, the worker's as far as inherited, the job's own, the slot's."""
    identity = {"HOME": account.home, "LOGNAME": account.name, "USER": account.name}
    inherited = _inherited(invocation.inherit_env)
    if invocation.user is not None:
        inherited = {name: value for name, value in inherited.items() if name not in identity}
    shell = {"PATH": DEFAULT_PATH, "SHELL": invocation.shell or DEFAULT_SHELL}
    return {**shell, **identity, **inherited, **invocation.env, **slot_variables(ctx)}


def slot_variables(ctx: JobContext) -> dict[str, str]:
    """What a script may want to know: the slot tells it which period to process, the token fences its writes."""
    return {
        "SLOTWISE_JOB": ctx.name,
        "SLOTWISE_SLOT": ctx.slot.isoformat().replace("+00:00", "Z"),
        "SLOTWISE_ATTEMPT": str(ctx.attempt),
        "SLOTWISE_TOKEN": str(ctx.token),
        "SLOTWISE_KEY": ctx.idempotency_key,
    }


def _inherited(which: bool | tuple[str, ...]) -> Mapping[str, str]:
    if which is True:
        return dict(os.environ)
    return {name: os.environ[name] for name in which or () if name in os.environ}
