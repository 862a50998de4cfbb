"""Writes docs/coordinator-configuration.md from the settings, where every one is described beside its field.

python -m stoker_coordinator.settings_reference > docs/coordinator-configuration.md
python -m stoker_coordinator.settings_reference --check docs/coordinator-configuration.md
"""

from __future__ import annotations

import sys

from stoker import settings_pages
from stoker_coordinator.configuration import Settings

_HEAD = """\
# Configuration of the coordinator

<!-- Made from the coordinator's settings by
`python -m stoker_coordinator.settings_reference > docs/coordinator-configuration.md`. -->

`stoker-coordinator --config FILE` reads one TOML file. Every setting has a default, so the file may be empty.
`stoker-coordinator --check-config --config FILE` prints all errors at once and starts nothing. A changed file holds
with the next start; certificates are read again when they change.

- Durations are strings such as `"90s"`, `"10m"`, `"24h"`, or numbers of seconds.
- Sizes are strings such as `"512MiB"`, `"2GiB"`, or numbers of bytes.
"""


def render() -> str:
    """Return the whole page."""
    return settings_pages.render(Settings, _HEAD)


def main(arguments: list[str]) -> int:
    """Print the page, or compare it with a file: 0 the same, 1 stale."""
    return settings_pages.write_or_check(arguments, render, "stoker_coordinator.settings_reference")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
