"""Writes docs/configuration.md from settings.py, where every setting is described beside its field.

python -m stokerd.settings_reference > docs/configuration.md
python -m stokerd.settings_reference --check docs/configuration.md
"""

from __future__ import annotations

import sys

from stoker import settings_pages
from stokerd.settings import Settings, is_live

_HEAD = """\
# Configuration

<!-- Made from daemon/stokerd/settings.py by `python -m stokerd.settings_reference > docs/configuration.md`. -->

stokerd reads one TOML file, `/etc/stoker/stokerd.toml` where it is installed as a service (`stokerd --config FILE`
elsewhere). Every setting has a default, so the file may be empty. `stokerd --check-config --config FILE`
prints all errors at once and starts nothing.

- Durations are strings such as `"90s"`, `"10m"`, `"24h"`, or numbers of seconds.
- Sizes are strings such as `"512MiB"`, `"2GiB"`, or numbers of bytes.
- **Reload** says whether a changed value holds as soon as the file is read again, by `stoker reload`, `systemctl reload
  stokerd` or SIGHUP; running work goes on. The others need `systemctl restart stokerd`, which parks running work and
  takes it up again. A file with errors changes nothing: all its errors are logged, and `systemctl status stokerd` and
  `stoker doctor` say so.
"""


def render() -> str:
    """Return the whole page."""
    return settings_pages.render(Settings, _HEAD, is_live)


def main(arguments: list[str]) -> int:
    """Print the page, or compare it with a file: 0 the same, 1 stale."""
    return settings_pages.write_or_check(arguments, render, "stokerd.settings_reference")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
