"""How the daemon is, from how its parts are. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stoker.objects.node import Health

_RECONCILING = "what earlier runs left is still being gone through"


class Part(msgspec.Struct, frozen=True):
    """One subsystem. ``failure``: it broke and is started again; ``problem``: it runs, but lacks something."""

    failure: str = ""
    problem: str = ""
    reconciled: bool = True


def health_of(runtime_problem: str, parts: Mapping[str, Part]) -> Health:
    """Alive: the runtime answers. What is wrong with other parts is told, and is no reason to end the process."""
    told = {name: part.failure or part.problem or "ok" for name, part in parts.items()}
    return Health(ok=not runtime_problem, message=runtime_problem, parts={"runtime": runtime_problem or "ok", **told})


def readiness_of(runtime_problem: str, parts: Mapping[str, Part]) -> Health:
    """Ready: besides, every subsystem runs and has gone through what was left before."""
    health = health_of(runtime_problem, parts)
    lacking = {
        name: part.failure or _RECONCILING for name, part in parts.items() if part.failure or not part.reconciled
    }
    if not lacking or not health.ok:
        return health
    message = "; ".join(f"{name}: {why}" for name, why in lacking.items())
    return Health(ok=False, message=message, parts={**health.parts, **lacking})
