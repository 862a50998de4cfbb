"""Told to stop once, told twice, and the end when nothing else helps."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

from stoker.service.stopping import EXIT_LATE, Stop


async def test_the_first_signal_asks_and_the_second_hurries() -> None:
    stop = Stop()
    stop.listen()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.asked.wait()
        assert not stop.hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(5):
            await stop.hurry.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


def test_what_hangs_is_ended() -> None:
    script = """
import threading
from stoker.service.stopping import end_at_last
threading.Thread(target=threading.Event().wait).start()  # keeps the interpreter from ending
end_at_last(0.2)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == EXIT_LATE
    assert "not stopped in time" in done.stdout + done.stderr


def test_what_ends_by_itself_does_not_wait_for_the_last_resort() -> None:
    script = "from stoker.service.stopping import end_at_last\nend_at_last(600)\n"
    assert subprocess.run([sys.executable, "-c", script], timeout=30, check=False).returncode == 0
