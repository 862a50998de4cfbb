"""A browser without a screen, from a root of its own (images/browser), for tests that look at pages.

It is driven over its debugging port, by playwright; this module only starts and ends it.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from types import TracebackType
from typing import Self

from tests.rig import paths
from tests.rig.errors import RigError
from tests.rig.waiting import until

SUITE = "trixie"
IMAGE = paths.REPOSITORY / "images" / "browser"
_START_TIMEOUT = 60.0
_LISTENS = re.compile(r"DevTools listening on ws://(127\.0\.0\.1:\d+)/")
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # it is root in a root of its own, and sees nothing but our pages
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-sync",
    "--no-first-run",
    "--no-zygote",
    "--remote-debugging-address=127.0.0.1",
    "--remote-debugging-port=0",
    "--user-data-dir=/tmp/profile",
)


class Browser:
    """Runs from `with` to its end. ``url`` is where it can be driven."""

    def __init__(self) -> None:
        self.url = ""
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        root = paths.node_root(SUITE, IMAGE)
        mounts = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
        mounts += [f"mount -t tmpfs tmpfs {root}/{name}" for name in ("tmp", "run", "root")]
        program = ["chromium", *_FLAGS, "about:blank"]
        start = f"exec chroot {root} /usr/bin/env -i HOME=/root PATH=/usr/bin:/bin {' '.join(program)}"
        # Process ids of its own, so that all that it starts ends with it, however this process ends.
        spaces = ["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
        with tempfile.TemporaryFile() as said:
            command = ["unshare", *spaces, "sh", "-ec", " && ".join([*mounts, start])]
            self._process = subprocess.Popen(command, stderr=said, stdout=subprocess.DEVNULL)
            self.url = f"http://{self._wait(said.fileno())}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        assert process is not None
        # unshare takes with it what it has started. There is nothing to save.
        process.kill()
        process.wait()

    def _wait(self, said: int) -> str:
        """Return where it listens, once it says so."""
        process = self._process
        assert process is not None

        def look() -> str | None:
            text = os.pread(said, 1 << 20, 0).decode(errors="replace")
            found = _LISTENS.search(text)
            if found is None and process.poll() is not None:
                raise RigError(f"the browser does not start: {text[-2000:]}")
            return found[1] if found is not None else None

        try:
            return until("the browser to listen", look, timeout=_START_TIMEOUT)
        except RigError:
            self.__exit__(None, None, None)
            raise
