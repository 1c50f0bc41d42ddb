"""A unit of systemd for a worker: start, readiness, watchdog, drain, and few rights."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from string import Template
from typing import Final

from slotwise import ConfigurationError

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,29}")
#: After the grace time: time to stop handlers, hand claims back and leave the lifespan.
AFTER_GRACE: Final = timedelta(seconds=30)

_UNIT: Final = Template("""\
# /etc/systemd/system/$name.service
# systemctl daemon-reload && systemctl enable --now $name
[Unit]
Description=slotwise worker of $app
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=notify
NotifyAccess=main
# DATABASE_URL=postgresql://…, and further SLOTWISE_… settings; readable for root alone
EnvironmentFile=/etc/$name.env
WorkingDirectory=$directory
ExecStart=$command worker --app $app --log-format json
# A loop that hangs is killed; a database that is away is waited for.
WatchdogSec=3min
TimeoutStartSec=90
# shutdown_grace, and what follows it
TimeoutStopSec=$stop
KillMode=mixed
Restart=on-failure
RestartSec=5
# 2: the command line cannot be right
RestartPreventExitStatus=2

# It needs the network, its own files to read, and /tmp. Open what the handlers need.
DynamicUser=yes
StateDirectory=$name
UMask=0077
NoNewPrivileges=yes
CapabilityBoundingSet=
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
""")


def unit(
    app: str, *, name: str, command: str, directory: Path, shutdown_grace: timedelta
) -> str:
    """Return the unit of a worker.

    ``command``: the path of ``slotwise``. ``directory``: where the application's modules are.
    Raises ConfigurationError for a name or a path that a unit cannot have.
    """
    if _NAME.fullmatch(name) is None:
        raise ConfigurationError(
            f"name: {name!r:.60} cannot name a unit; write up to 30 of a-z, 0-9 and -, a letter "
            "first"
        )
    stop = shutdown_grace + AFTER_GRACE
    return _UNIT.substitute(
        name=name,
        app=_word(app),
        command=_word(command),
        directory=_literal(str(directory)),
        stop=round(stop.total_seconds()),
    )


def hidden_paths(*paths: Path) -> list[Path]:
    """Return those of these paths that the unit hides from its worker: the temporary ones."""
    return [
        path
        for path in paths
        if any(path.is_relative_to(one) for one in ("/tmp", "/var/tmp"))
    ]


def _literal(text: str) -> str:
    """A value as it is, for a key that takes one: % begins a specifier."""
    if not text.isprintable():
        raise ConfigurationError(
            f"{text!r:.60} has characters that a unit cannot have; choose another path"
        )
    return text.replace("%", "%%")


def _word(text: str) -> str:
    """An argument of a command line."""
    plain = _literal(text).replace("$", "$$")
    if re.fullmatch(r"[\w@%+=:,./$-]+", plain):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
