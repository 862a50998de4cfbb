"""Follows objects of a coordinator until they are over: a live block on a terminal, lines elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from stoker.cli import exits
from stoker.cli import server_tables as tables
from stoker.cli.console import Console, write_out
from stoker.cli.server_jobs import job_line, trouble_lines
from stoker.cli.terminal import Screen
from stoker.cli.text import Style, clean, pad, shorten_end, width_of
from stoker.errors import ClientError
from stoker.objects.cluster_images import ImageListPullJob, ImagePullJob
from stoker.objects.meta import Object

if TYPE_CHECKING:
    from stoker.objects.kinds import Kind
    from stoker.server_client import ServerClient

_TICK_SECONDS = 0.25
Followed = tuple["Kind", str, str]
"""Kind, namespace and name."""


class Gone(Exception):
    """An object that is followed was removed."""


def is_over(obj: Object) -> bool:
    """Whether nothing more is to come of an object as it is."""
    over = getattr(obj.status, "completion_time", None) is not None
    if isinstance(obj, ImagePullJob | ImageListPullJob):
        return over and obj.status.observed_generation >= obj.generation
    return over or not hasattr(obj.status, "completion_time")


def code_of(obj: Object) -> int:
    """Return the exit code for an object that is over."""
    if isinstance(obj, ImagePullJob | ImageListPullJob):
        conditions = obj.status.conditions
        bad = tables.holds(conditions, "Failed") or tables.holds(conditions, "Degraded")
        return exits.FAILED if bad else exits.OK
    outcome = getattr(obj.status, "result", "") or getattr(obj.status, "phase", "Succeeded")
    return exits.OK if outcome == "Succeeded" else exits.FAILED


def state_line(obj: Object, style: Style) -> str:
    """Return in one line how an object is."""
    if isinstance(obj, ImagePullJob | ImageListPullJob):
        return job_line(obj, style)
    status: Any = obj.status
    word = getattr(status, "result", "") or getattr(status, "phase", "")
    node, message = getattr(status, "node_name", ""), getattr(status, "message", "")
    return " ".join(part for part in (tables.paint_state(word, style), clean(node), clean(message)) if part)


async def wait_for(console: Console, client: ServerClient, followed: Sequence[Followed]) -> set[int]:
    """Follow objects until all are over, and return the exit codes of those that went wrong."""
    board = _Board(console, followed)
    codes: set[int] = set()

    async def one(target: Followed) -> None:
        try:
            codes.add(code_of(await _until_over(client, target, board)))
        except Gone:
            board.say(target, "removed before it was over")
            codes.add(exits.NOT_FOUND)

    try:
        async with asyncio.TaskGroup() as group:
            ticking = group.create_task(board.tick(), name="draw")
            waiting = [group.create_task(one(target), name="follow") for target in followed]
            await asyncio.wait(waiting)
            ticking.cancel()
    except* ClientError as failures:
        failed: BaseException = failures
        while isinstance(failed, BaseExceptionGroup):
            failed = failed.exceptions[0]
        raise failed from None
    finally:
        board.close()
    return codes - {exits.OK}


async def _until_over(client: ServerClient, target: Followed, board: _Board) -> Object:
    kind, namespace, name = target
    events = client.watch(kind, namespace=namespace, fields=f"metadata.name={name}")
    async with aclosing(events):
        async for event in events:
            if event["type"] == "SYNC":
                continue
            if event["type"] == "DELETED":
                raise Gone
            obj = tables.typed(event["object"], kind)
            over = is_over(obj)
            board.update(target, obj, over=over)
            if over:
                return obj
    raise AssertionError("a watch has no end")


class _Board:
    """What is known of the objects, drawn over and over on a terminal."""

    def __init__(self, console: Console, followed: Sequence[Followed]) -> None:
        self._console = console
        self._style = console.style()
        self._objects: dict[Followed, Object] = {}
        self._said: dict[Followed, str] = {}
        self._above: list[str] = []
        self._screen = Screen(write_out, sys.stdout.fileno()) if console.live and not console.json else None
        labels = [f"{namespace}/{name}" if namespace else name for _, namespace, name in followed]
        self._width = max(width_of(clean(label)) for label in labels)

    def update(self, target: Followed, obj: Object, *, over: bool) -> None:
        """Take an object as it is now."""
        if self._console.json:
            if over:
                self._console.document(obj)
            return
        if not over:
            self._objects[target] = obj
            return
        self._objects.pop(target, None)
        lines = [state_line(obj, self._style)]
        if isinstance(obj, ImagePullJob | ImageListPullJob):
            lines += trouble_lines(obj, self._style)
        for line in lines:
            self.say(target, line)

    def say(self, target: Followed, text: str) -> None:
        """Print a line about an object for good."""
        line = f"{self._label(target)}  {text}"
        if self._screen is None:
            self._console.say(line)
        else:
            self._above.append(line)

    def _label(self, target: Followed) -> str:
        _, namespace, name = target
        return pad(clean(f"{namespace}/{name}" if namespace else name), self._width)

    async def tick(self) -> None:
        """Draw again and again, until cancelled."""
        while True:
            self._draw()
            await asyncio.sleep(_TICK_SECONDS)

    def _draw(self) -> None:
        if self._screen is None:
            return
        columns, height = self._screen.size()
        lines = [f"{self._label(target)}  {state_line(obj, self._style)}" for target, obj in self._objects.items()]
        block = [shorten_end(line, columns - 1, self._style) for line in lines[: height - 2]]
        above, self._above = self._above, []
        self._screen.draw(above, block)

    def close(self) -> None:
        """Draw what is left, and give the terminal back."""
        if self._screen is not None:
            self._draw()
            self._screen.close()


def followed_of(documents: Sequence[tuple[Kind, dict[str, Any]]]) -> list[Followed]:
    """Return what to follow of objects as the coordinator gave them."""
    return [
        (kind, cast("str", document["metadata"].get("namespace", "")), cast("str", document["metadata"]["name"]))
        for kind, document in documents
    ]
