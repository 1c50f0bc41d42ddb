"""In which order several processes run the tests: each has its share of every folder, and the
quick ones last.

xdist hands out slices of the list, so without this one process would get all faults, which take
long and mostly wait; and to the end the others would take them over one by one, with nothing to do
beside them.
"""

from __future__ import annotations

from itertools import chain, groupby

import pytest

#: The quick ones last. What tolerates a busy machine only as far as its load is known does not
#: come first.
FOLDERS = (
    "contrib",
    "integration",
    "faults",
    "docs",
    "examples",
    "simulation",
    "model",
    "store",
    "unit",
)


@pytest.hookimpl(trylast=True)  # of those that are left
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    processes = int(getattr(config, "workerinput", {}).get("workercount", 1))
    if processes > 1:
        files = [list(tests) for _, tests in groupby(items, key=_file)]
        files.sort(key=lambda tests: _place(tests[0]))
        items[:] = chain.from_iterable(
            chain.from_iterable(
                files[number::processes] for number in range(processes)
            )
        )


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0]


def _place(item: pytest.Item) -> int:
    folder = _file(item).split("/")[1:2]
    return (
        FOLDERS.index(folder[0]) if folder and folder[0] in FOLDERS else len(FOLDERS)
    )
