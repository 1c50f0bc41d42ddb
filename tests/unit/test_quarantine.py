"""The list of unsure tests is read strictly, and names tests that exist."""

from __future__ import annotations

import pytest
from tests.kit import quarantine


def test_a_line_names_test_date_and_reason() -> None:
    text = "# why\n\ntests/unit/test_x.py::test_a[b] 2026-11-29 waits for a core\n"
    assert quarantine.read(text) == {
        "tests/unit/test_x.py::test_a[b]": "quarantined since 2026-11-29: waits for a core"
    }


@pytest.mark.parametrize("line", ["tests/a.py::test_a", "test_a 2026-11-29 because"])
def test_another_line_is_rejected(line: str) -> None:
    with pytest.raises(ValueError, match="is not: TEST YYYY-MM-DD REASON"):
        quarantine.read(line)


def test_each_test_of_the_list_exists() -> None:
    root = quarantine.LIST.parents[1]
    for name in quarantine.read(quarantine.LIST.read_text()):
        file, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}(" in (root / file).read_text(), name
