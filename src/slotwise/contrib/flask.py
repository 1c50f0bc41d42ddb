"""Flask: an extension with ``init_app``, and the command group ``flask slotwise``.

slotwise = Slotwise(registry)

def create_app():
    app = Flask(__name__)
    slotwise.init_app(app)
    return app
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from typing import Final

import click

from slotwise import Client, ConfigurationError, JobRegistry
from slotwise.contrib.hosting import run_commands
from slotwise.spi import START_WAIT, Host, RegistrySource

try:
    from flask import Flask, current_app, has_app_context
    from flask.cli import ScriptInfo
except ImportError:
    raise ConfigurationError(
        "this needs Flask; run: pip install 'slotwise[flask]'"
    ) from None

#: The key in ``app.extensions``.
EXTENSION: Final = "slotwise"
#: Of settings in ``app.config``.
PREFIX: Final = "SLOTWISE_"


class Slotwise:
    """The extension: ``Slotwise(registry, app)``, or ``init_app`` in an application factory.

    ``registry`` is a JobRegistry, or a function that makes one in each process. With ``worker`` a
    worker starts with the first request of each process, after the server's fork, or earlier by
    ``start()`` in gunicorn's ``post_worker_init``; it drains when the process exits, but not if a
    signal kills the process. Without, requests use the client, and ``flask slotwise worker`` runs
    the jobs.
    """

    def __init__(
        self,
        registry: RegistrySource,
        app: Flask | None = None,
        *,
        worker: bool = False,
        start_wait: timedelta | str = START_WAIT,
    ) -> None:
        self._given = registry
        self._settings: dict[str, object] = {}
        host = partial(Host, worker=worker, start_wait=start_wait, caller="Slotwise")
        self.host = host(registry)  # refuses what neither is nor makes a registry
        if not isinstance(registry, JobRegistry):
            self.host = host(self._make)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Add the extension and the command group to an application, once.

        Keys of ``app.config`` that begin with ``SLOTWISE_`` are settings, such as
        ``SLOTWISE_DATABASE_URL``: they count before keywords and the environment. Raises
        InvalidSetting.
        """
        if not isinstance(app, Flask):
            raise ConfigurationError(
                f"init_app({app!r:.80}): pass the Flask application"
            )
        if (found := app.extensions.get(EXTENSION)) is self:
            return
        if found is not None:
            raise ConfigurationError(
                f"the application {app.name} has another Slotwise; create one for all its jobs"
            )
        self._settings = app.config.get_namespace(PREFIX)
        if isinstance(self._given, JobRegistry) and self._settings:
            self._given.configure(**self._settings)
        app.extensions[EXTENSION] = self
        app.before_request(self._before_request)
        app.cli.add_command(commands)

    def _make(self) -> JobRegistry:
        """Make the registry of this process, with the settings of the application."""
        if not callable(self._given):
            return self._given
        made = self._given()
        return made.configure(**self._settings) if self._settings else made

    @property
    def registry(self) -> JobRegistry:
        """The registry. Raises ConfigurationError in a child of the process that has started
        the worker.
        """
        return self.host.registry

    @property
    def client(self) -> Client:
        """The registry's client. Raises what ``registry`` raises."""
        return self.host.client

    def start(self) -> None:
        """Start the worker of this process, once, and stop it when the process ends: for a
        server's hook.
        """
        self.host.start_once()

    def _before_request(self) -> None:
        self.host.start_at_request()


def slotwise_of(app: Flask) -> Slotwise:
    """Return the extension of an application. Raises ConfigurationError if it has none."""
    found = getattr(app, "extensions", {}).get(EXTENSION)
    if not isinstance(found, Slotwise):
        name = getattr(app, "name", app)
        raise ConfigurationError(
            f"the application {name} has no slotwise; add Slotwise(registry, app)"
        )
    return found


def registry() -> JobRegistry:
    """Return the registry of the current application, else of the one that ``FLASK_APP`` names."""
    return slotwise_of(
        current_app if has_app_context() else ScriptInfo().load_app()
    ).registry


@click.command(
    EXTENSION,
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="slotwise's commands: worker, run, jobs, slots, db …",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def commands(context: click.Context, arguments: tuple[str, ...]) -> None:
    """Run slotwise's commands for this application; see: flask slotwise --help"""
    info = context.ensure_object(ScriptInfo)
    app = info.load_app()
    if info.app_import_path:
        os.environ["FLASK_APP"] = info.app_import_path  # for further worker processes
    with app.app_context():
        run_commands(
            arguments,
            app=f"{__name__}:registry",
            settings=slotwise_of(app).registry.settings,
        )
