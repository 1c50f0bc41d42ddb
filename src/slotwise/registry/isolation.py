"""Find what runs attempts of ``isolation="process"``: an entry point, loaded when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from slotwise.engine.run.runner import Isolate
from slotwise.engine.worker import aside
from slotwise.errors import ConfigurationError
from slotwise.jobs.definition import Definition
from slotwise.model.plugged_in import plugged_in
from slotwise.settings.settings import Settings


def isolation_for(
    definitions: Iterable[Definition], settings: Settings
) -> Isolate | None:
    """Return what runs isolated attempts; None if no job needs it.

    Raise ConfigurationError if the settings do not say where the application is.
    """
    isolated = sorted(found.name for found in definitions if found.isolation)
    if not isolated:
        return None
    if settings.app is None:
        raise ConfigurationError(
            f'{", ".join(isolated)}: isolation="process" needs to import the '
            "application again; say where it is: "
            'JobRegistry(…, app="package.module:registry"), or SLOTWISE_APP'
        )
    make: Callable[..., Isolate] = plugged_in("slotwise.isolation", "process")
    # A child that does not stop is killed before the shutdown gives it up.
    return make(settings.told(), settings.app, patience=aside(settings) * 0.6)
