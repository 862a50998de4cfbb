"""What containers of the memory runtime do once they are told to: start, run, heed signals, answer commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stokerd.errors import StokerError
from stokerd.runtime.pod_types import ExecResult

Answer = Callable[[tuple[str, ...]], ExecResult]


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a container behaves. Seconds are those of the loop's clock."""

    exits_after: float | None = None
    """The main process ends by itself so long after its start; None: it runs until it is stopped."""

    exit_code: int = 0
    """What it ends with then."""

    reason: str = ""
    """CRI's reason for that end (``OOMKilled``); by default it follows from the exit code."""

    ignores_term: bool = False
    """The stop signal does nothing, so that stopping takes the whole grace and ends in a kill."""

    stops_after: float = 0.0
    """Time between the stop signal and the end."""

    stop_code: int = 143
    """What it ends with after the stop signal."""

    start_error: str = ""
    """Starting it fails with this text, and leaves it exited as containerd does."""

    starts_after: float = 0.0
    """Time that starting it takes."""

    dump_log: str = ""
    """Dumping it fails, and this is what CRIU wrote to its log."""

    dump_bytes: int = 4096
    """What its memory takes in a dump."""


@dataclass(slots=True)
class _Case:
    """Of which containers something is true; "" and an empty table: of all."""

    image: str
    name: str
    env: Mapping[str, str]
    times: int
    command: tuple[str, ...] = ()

    def concerns(self, config: Mapping[str, Any]) -> bool:
        envs = {entry.get("key"): entry.get("value", "") for entry in config.get("envs") or []}
        argv = (*(config.get("command") or ()), *(config.get("args") or ()))
        return (
            self.times > 0
            and argv[: len(self.command)] == self.command
            and self.image in {"", (config.get("image") or {}).get("image")}
            and self.name in {"", (config.get("metadata") or {}).get("name")}
            and all(envs.get(key) == value for key, value in self.env.items())
        )


@dataclass(slots=True)
class _Command:
    case: _Case
    argv: tuple[str, ...]
    outcome: ExecResult | StokerError | str | Answer
    takes: float


@dataclass(slots=True)
class Conducts:
    """The rules; of those that fit, the one made last holds."""

    conducts: list[tuple[_Case, Conduct]] = field(default_factory=list)
    commands: list[_Command] = field(default_factory=list)

    def add(
        self,
        conduct: Conduct,
        *,
        image: str,
        name: str,
        command: Sequence[str],
        env: Mapping[str, str] | None,
        times: int,
    ) -> None:
        self.conducts.append((_Case(image, name, env or {}, times, tuple(command)), conduct))

    def add_command(
        self,
        outcome: ExecResult | StokerError | str | Answer,
        *,
        argv: Sequence[str],
        image: str,
        name: str,
        takes: float,
        times: int,
    ) -> None:
        self.commands.append(_Command(_Case(image, name, {}, times), tuple(argv), outcome, takes))

    def of(self, config: Mapping[str, Any]) -> Conduct:
        """Return how a container made from *config* behaves from its start on."""
        for case, conduct in reversed(self.conducts):
            if case.concerns(config):
                case.times -= 1
                return conduct
        return Conduct()

    def command(
        self, config: Mapping[str, Any], argv: tuple[str, ...]
    ) -> tuple[ExecResult | StokerError | str | Answer, float]:
        """Return what running *argv* there gives, and how long it takes."""
        for entry in reversed(self.commands):
            if argv[: len(entry.argv)] == entry.argv and entry.case.concerns(config):
                entry.case.times -= 1
                return entry.outcome, entry.takes
        return ExecResult(0), 0.0
