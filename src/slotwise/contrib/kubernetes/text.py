"""Manifests as text: YAML that each reader of YAML 1.1 and 1.2 reads alike."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from slotwise.errors import ConfigurationError

if TYPE_CHECKING:
    from slotwise.contrib.kubernetes.manifests import Manifest

#: Strings that no reader takes for a number, a time, a boolean or null. All others are quoted: Go reads 1e3 as a
#: number, and PyYAML would leave it bare.
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9./_-]*")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"})


def as_yaml(manifests: Iterable[Manifest]) -> str:
    """Return the manifests as YAML documents. Raise ConfigurationError without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise ConfigurationError(
            "manifests in YAML need PyYAML; run: pip install 'slotwise[yaml]', or print JSON: --json"
        ) from None

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no annotations
        """Quotes every string that is not a plain word, and writes no aliases."""

        def ignore_aliases(self, data: object) -> bool:
            return True

        def text(self, value: str) -> Any:
            is_plain = _PLAIN.fullmatch(value) is not None and value.lower() not in _WORDS
            return self.represent_scalar("tag:yaml.org,2002:str", value, style=None if is_plain else '"')

    Dumper.add_representer(str, Dumper.text)
    return str(yaml.dump_all(manifests, Dumper=Dumper, sort_keys=False, explicit_start=True, width=1_000_000))
