"""``slotwise dashboard``: serve the dashboard to browsers on this machine."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import webbrowser
from typing import Final

import click
import jinja2  # noqa: F401  # the extra: where it is missing, the command says which to install
import uvicorn

from slotwise import ConfigurationError
from slotwise.contrib.dashboard.access import Role
from slotwise.contrib.dashboard.connections import Connection
from slotwise.contrib.dashboard.dashboard import Dashboard
from slotwise.spi import CommandLine, PluginCommand, Section, database_url

LOOPBACK: Final = "127.0.0.1"
PORT: Final = 8228
_EXAMPLES: Final = """\b
Examples:
  slotwise dashboard --open
  slotwise dashboard --operate --port 8300
"""


@click.command(
    short_help="Serve pages that show what ran, what did not, and why.",
    epilog=_EXAMPLES,
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="The port on 127.0.0.1; 0 takes a free one.",
)
@click.option("--operate", is_flag=True, help="Allow operations, not only reading.")
@click.option(
    "--read-url", metavar="URL", help="A replica of the database, for the reads."
)
@click.option("--open", "opens", is_flag=True, help="Open the address in a browser.")
@click.pass_obj
def dashboard(
    line: CommandLine, port: int, operate: bool, read_url: str | None, opens: bool
) -> None:
    """Serve the dashboard to browsers on this machine, until it is interrupted.

    There is no login, so it serves 127.0.0.1 alone and refuses requests that a proxy forwards.
    Anyone on this machine can open it. To serve others, mount it into an application with a
    login.
    """
    settings = line.settings()
    if read_url is not None:
        database_url(read_url)
    page = Dashboard(
        settings if settings.app is None else line.registry(),
        role=Role.ADMIN if operate else Role.VIEWER,
        secret=secrets.token_hex(),
        read_from=read_url,
        is_local=True,
    )
    listening = _listening(port)
    address = f"http://{LOOPBACK}:{listening.getsockname()[1]}/"
    click.echo(f"the dashboard is at {address}; stop it with Ctrl+C")
    threading.Thread(target=page.prepare, daemon=True).start()
    if opens:
        threading.Timer(0.5, webbrowser.open, (address,)).start()
    try:
        uvicorn.Server(config_of(page)).run(sockets=[listening])
    finally:
        page.close()


def config_of(page: Dashboard) -> uvicorn.Config:
    """Return how the dashboard is served."""
    return uvicorn.Config(
        page.asgi,
        http=Connection,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=1,
    )


def _listening(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port))
    except OSError as error:
        reason = error.strerror or os.strerror(error.errno or 0)
        raise ConfigurationError(
            f"the port {port} of {LOOPBACK} cannot be used: {reason}; choose another with --port"
        ) from None


DASHBOARD: Final = PluginCommand(command=dashboard, section=Section.SEE)
