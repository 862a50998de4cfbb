"""An event loop whose clock jumps: what waits for a timer waits no real time, and every run takes the same steps."""

from __future__ import annotations

import asyncio
import functools
import itertools
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

_TURN = 1e-6
"""Each turn of the loop takes a moment, as it does everywhere."""
_LATEST = 40 * 86_400.0
P = ParamSpec("P")
T = TypeVar("T")


class Inline(Executor):
    """Runs what it is given at once: the outcome arrives through the loop, as that of a thread would."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the caller
            future.set_exception(error)
        return future


class _Selector(selectors.SelectSelector):
    """Never waits: when nothing is ready, the loop's clock goes to the next timer instead."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._loop.step()
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0) or self._loop.stepped:
            return ready
        if timeout is None:
            raise RuntimeError("nothing will ever happen: every task waits for another one")
        if self._loop.now > _LATEST:
            raise RuntimeError("what the test waits for does not happen in forty days")
        self._loop.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """``now`` is the clock. ``at_step`` calls something when the loop has turned so many times from now on."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.steps = 0
        self.stepped = False
        self.problems: list[dict[str, Any]] = []
        self._due: dict[int, list[Callable[[], object]]] = {}
        super().__init__(_Selector(self))
        self.set_exception_handler(lambda _loop, context: self.problems.append(context))

    def time(self) -> float:
        return self.now

    def at_step(self, steps: int, call: Callable[[], object]) -> None:
        self._due.setdefault(self.steps + steps, []).append(call)

    def step(self) -> None:
        self.steps += 1
        self.now += _TURN
        calls = self._due.pop(self.steps, [])
        self.stepped = bool(calls)
        for call in calls:
            call()

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        return asyncio.wrap_future(Inline().submit(func, *args), loop=self)


def virtual_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an asynchronous test on a loop of its own; tasks that it leaves, and errors that nobody saw, fail it."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run


def at_every_step(run: Callable[[int], Coroutine[Any, Any, bool]], *, least: int = 10, stride: int = 1) -> None:
    """Run something that is disturbed at its first step, its second, and so on; it says when it ended undisturbed.

    Each run takes the same steps up to there, so this covers every moment at which anything can happen at all. With a
    *stride*, every so-manieth one: where the moments in between are much like their neighbours.
    """
    for step in itertools.count(1, stride):
        try:
            disturbed = run_virtual(run(step))
        except BaseException as error:
            error.add_note(f"disturbed at step {step}")
            raise
        if not disturbed:
            assert step > least
            return


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    async def whole() -> T:
        answer = await work
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"tasks left behind: {others}"
        return answer

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        answer = runner.run(whole())
        loop = runner.get_loop()
        assert isinstance(loop, VirtualLoop)
    assert not loop.problems, loop.problems
    return answer
