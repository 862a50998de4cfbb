"""Threads that count, each into an open file of its own; what is in the files is what was counted, or there is /bad."""

from __future__ import annotations

import os
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

THREADS = 4
counts = [0] * THREADS
turns = threading.Condition()


def count(number: int, file: BinaryIO) -> None:
    while True:
        with turns:
            turns.wait_for(lambda: counts[number] == min(counts))
            counts[number] += 1
            file.write(b"%07d\n" % counts[number])
            file.flush()
            turns.notify_all()
        time.sleep(0.002)


def look(files: list[BinaryIO]) -> None:
    for number, file in enumerate(files):
        body = os.pread(file.fileno(), 1 << 24, 0)
        if body != b"".join(b"%07d\n" % each for each in range(1, counts[number] + 1)):
            Path("/bad").write_text(f"file {number} has {len(body)} bytes at {counts[number]}\n")


with ExitStack() as stack:
    opened: list[BinaryIO] = [stack.enter_context(Path(f"/thread-{each}").open("w+b")) for each in range(THREADS)]
    for each, own in enumerate(opened):
        threading.Thread(target=count, args=(each, own), daemon=True).start()
    while True:
        with turns:
            look(opened)
            now = sum(counts)
        Path("/new").write_text(f"{now}\n")
        Path("/new").rename("/count")
        time.sleep(0.02)
