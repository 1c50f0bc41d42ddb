"""Variables that mean something to cron: what each does here."""

from __future__ import annotations

from typing import Final

#: About the mail that cron sends.
MAIL: Final = frozenset({"MAILTO", "MAILFROM", "CONTENT_TYPE", "CONTENT_TRANSFER_ENCODING"})

#: Where cron does something that we do not: what, and what there is instead. Commands find them in their environment
#: as under cron; since they change nothing else, they do not make a line another one.
IGNORED: Final = {
    **dict.fromkeys(
        MAIL,
        (
            "no mail is sent",
            "the output goes to the worker's log, the end of a failed command's to the ledger: slotwise slots NAME",
        ),
    ),
    "RANDOM_DELAY": (
        "RANDOM_DELAY is ignored: a slot is at the same time on all machines, and one of them runs it",
        "write another minute, or sleep in the command",
    ),
    "MLS_LEVEL": (
        "MLS_LEVEL is ignored: commands keep the worker's security context",
        "remove it, or set the worker's",
    ),
    "XDG_SESSION_CLASS": ("XDG_SESSION_CLASS is ignored: no login session is opened", "remove it"),
}

#: cron sets them to the account's name, whatever the crontab says.
FIXED: Final = frozenset({"LOGNAME", "USER"})

#: Our own, for the lines below: cron takes them for variables like any other.
TIMEOUT: Final = "SLOTWISE_TIMEOUT"
ON_LOST: Final = "SLOTWISE_ON_LOST"
ZONE: Final = "CRON_TZ"

#: They steer, and are not the command's.
STEERING: Final = frozenset({TIMEOUT, ON_LOST, ZONE})
