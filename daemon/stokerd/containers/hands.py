"""Carries out single actions against the runtime, and says what came of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import structlog

from stoker.objects.images import InlineAuth
from stokerd.containers import hooks, network
from stokerd.containers.actions import Action, Check, Create, Examine, Hook, Observe, Remove, Start, Stop, Warm
from stokerd.containers.clock import Clock
from stokerd.containers.inventory_model import seen
from stokerd.containers.job import Job, Material
from stokerd.containers.model import REQUEST_LABEL, ROLE_LABEL, SandboxState, Seen, Sight, Spec
from stokerd.containers.outcomes import Learned, Result
from stokerd.errors import RuntimeFailure, RuntimeNotFound, RuntimeTimeout, StokerError
from stokerd.runtime.blueprints import renewed
from stokerd.runtime.pod_types import ContainerStatus, PodStatus
from stokerd.runtime.protocol import Runtime

_log = structlog.get_logger("containers")
_RESTORE_LIMIT = 300.0
"""Seconds for pulling the old image again while nothing runs."""
_SHORTEST_SECRET = 6
_NODE_NETWORK = (2, "NODE")


class Warmer(Protocol):
    """Makes images present."""

    async def warm(self, image: str, auths: Sequence[InlineAuth]) -> None:
        """Return when *image* is on the node, complete and unpacked. Raises StokerError when it cannot be."""
        ...


class Hands:
    def __init__(self, runtime: Runtime, warmer: Warmer, clock: Clock, *, grace: float) -> None:
        """*grace* is for containers of which neither request nor pod says one."""
        self._runtime = runtime
        self._warmer = warmer
        self._clock = clock
        self._grace = grace

    def apply(self, *, grace: float) -> None:
        self._grace = grace

    async def carry(self, job: Job, action: Action) -> Result:
        """Do it. Never raises, but for being cancelled."""
        try:
            return await self._carry(job, action)
        except StokerError as error:
            error.message = _without_secrets(error.message, job)
            return Result(error=error)
        except Exception as error:  # noqa: BLE001 - one request fails, and says so; the others go on
            _log.exception("an action failed in a way that nobody thought of", action=type(action).__name__)
            return Result(error=StokerError(f"a fault in stokerd: {type(error).__name__}"))

    async def _carry(self, job: Job, action: Action) -> Result:
        containers = self._runtime.containers
        match action:
            case Observe(full=full):
                return await self._observe(job, full)
            case Warm():
                return await self._warm(job, action)
            case Create():
                return await self._create(job, action)
            case Hook(target=name, timeout=timeout):
                return Result(note=await self._run_hook(job, name, timeout))
            case Stop(container=container, grace=grace):
                await containers.stop(container, grace)
            case Start(container=container):
                await containers.start(container)
            case Examine(container=container):
                status = await containers.status(container)
                return Result(seen=detailed(status) if status is not None else None)
            case Check(target=name, container=container):
                note = await self._probe(job, name, container)
                return Result(ready=not note, note=note)
            case Remove(container=container):
                await containers.remove(container)
            case _:
                raise AssertionError(f"{action!r} is not for the runtime")
        return Result()

    # ------------------------------------------------------------------------------------------ looking

    async def _observe(self, job: Job, full: bool) -> Result:
        at = self._clock.time()
        runtime, pod_id = self._runtime, job.row.pod_id
        unknown = [each for each in job.targets if full and not each.final and not each.effort.known]
        listed, pod, statuses = await asyncio.gather(
            runtime.containers.list(pod_id=pod_id),
            runtime.pods.status(pod_id) if full else _nothing(),
            asyncio.gather(*(runtime.containers.status(each.row.old_id) for each in unknown)),
        )
        if full:
            job.pod = pod
        for target, status in zip(unknown, statuses, strict=True):
            if status is not None:
                job.materials[target.name] = self.material(job.spec, status, pod)
        learned = {name: _learned(material) for name, material in job.materials.items()}
        sandbox = sandbox_state(pod) if full else job.sight.sandbox
        return Result(sight=Sight(sandbox, tuple(seen(each) for each in listed), at), learned=learned)

    def material(self, spec: Spec, status: ContainerStatus, pod: PodStatus | None) -> Material:
        """Return what is to be known of the old container before it is recreated."""
        annotations = status.container.annotations
        grace = spec.grace if spec.grace is not None else hooks.grace_of(annotations, self._grace)
        try:
            return Material(status, grace, hooks.pre_stop(annotations, pod.ips if pod is not None else ()))
        except hooks.HookError as problem:
            return Material(status, grace, None, str(problem))

    # ------------------------------------------------------------------------------------------ making

    async def _warm(self, job: Job, action: Warm) -> Result:
        image, limit = action.image, None
        if action.restore:
            image, limit = _image_of(job, action.target), _RESTORE_LIMIT
        try:
            async with asyncio.timeout(limit):
                await self._warmer.warm(image, job.auths)
        except TimeoutError:
            raise RuntimeTimeout(f"{image} was not pulled within {limit:g} s") from None
        return Result()

    async def _create(self, job: Job, action: Create) -> Result:
        material, pod = job.materials.get(action.target), job.pod
        if material is None or pod is None:
            raise RuntimeNotFound("the container that it was to be made from is gone")
        target = job.target(action.target)
        source = await self._runtime.containers.status(action.source) if action.source else None
        if action.source and source is None:
            raise RuntimeNotFound("the container that it was to take the place of is gone")
        changed = action.role == "new" and source is None
        blueprint = renewed(
            (source or material.status).blueprint,
            attempt=action.attempt,
            image=(target.spec.image or None) if changed else None,
            env=_environment(job, action.target) if changed else None,
            labels={REQUEST_LABEL: job.id, ROLE_LABEL: action.role},
        )
        return Result(container=await self._runtime.containers.create(job.row.pod_id, blueprint, pod.blueprint))

    # ------------------------------------------------------------------------------------------ hooks and probes

    async def _run_hook(self, job: Job, name: str, timeout: float) -> str:
        """Run the preStop hook; return what was wrong. Whatever it is, the container is stopped next."""
        material = job.materials.get(name)
        if material is None:
            return "preStop: the hook was lost with the container"
        if material.hook is None:
            return f"preStop: the hook was not run: {material.hook_problem}" if material.hook_problem else ""
        started = self._clock.time()
        problem = await self._hook(job, material, material.hook, timeout)
        if problem:
            _log.info("a preStop hook failed", request=job.id, container=name, why=problem)
        return f"preStop: {problem} (after {self._clock.time() - started:.1f} s)" if problem else ""

    async def _hook(self, job: Job, material: Material, hook: hooks.Hook, timeout: float) -> str:
        container = material.status.container.id
        match hook:
            case hooks.ExecHook(argv=argv):
                return await self._command(container, argv, timeout)
            case hooks.HttpHook():
                return await network.get(_address(job.pod), hook, timeout=timeout)
            case hooks.TcpHook(port=port):
                return await network.connects(_address(job.pod), port, timeout=timeout)
            case hooks.SleepHook(seconds=seconds):
                await asyncio.sleep(min(seconds, timeout))
                return "" if seconds <= timeout else f"its sleep was cut off at {timeout:g} s"

    async def _command(self, container: str, argv: Sequence[str], timeout: float) -> str:
        try:
            async with asyncio.timeout(timeout + 5):
                result = await self._runtime.containers.exec(container, argv, timeout=timeout)
        except (RuntimeTimeout, TimeoutError):
            return f"the command did not end within {timeout:g} s"
        except RuntimeFailure as error:
            return f"the command could not be run: {error.message}"
        return f"the command ended with status {result.exit_code}" if result.exit_code else ""

    async def _probe(self, job: Job, name: str, container: str) -> str:
        """Return "" when the container is ready, else why it is not."""
        probe = job.target(name).spec.probe
        if probe is None:
            return ""
        if probe.tcp_port:
            return await network.connects(_address(job.pod), probe.tcp_port, timeout=probe.timeout_seconds)
        return _without_secrets(await self._command(container, probe.exec, probe.timeout_seconds), job)


# ---------------------------------------------------------------------------------------------- small things


async def _nothing() -> PodStatus | None:
    return None


def sandbox_state(pod: PodStatus | None) -> SandboxState:
    return "gone" if pod is None else pod.pod.state


def detailed(status: ContainerStatus) -> Seen:
    """Return a container that was looked at alone as the planner knows it."""
    plain = seen(status.container)
    return Seen(
        id=plain.id,
        name=plain.name,
        attempt=plain.attempt,
        state=plain.state,
        created_at=plain.created_at,
        request=plain.request,
        role=plain.role,
        started_at=status.started_at.timestamp() if status.started_at is not None else None,
        exit_code=status.exit_code if plain.state == "exited" else None,
        reason=status.reason,
    )


def _learned(material: Material) -> Learned:
    ended = material.status.finished_at
    hook = material.hook is not None or bool(material.hook_problem)
    return Learned(material.grace, hook, ended.timestamp() if ended is not None else None)


def _environment(job: Job, name: str) -> dict[str, str | None]:
    spec = job.target(name).spec
    removed: dict[str, str | None] = dict.fromkeys(spec.env_removed)
    return {**removed, **job.env.get(name, {})}


def _image_of(job: Job, name: str) -> str:
    """Return the image that the old container was made from, as people wrote it where that is known."""
    material = job.materials.get(name)
    if material is None:
        raise RuntimeNotFound("the container that it was made from is gone")
    entry = material.status.blueprint.config.get("image") or {}
    candidates = (entry.get("user_specified_image"), entry.get("image"), material.status.container.image)
    named = [each for each in candidates if each and not each.startswith("sha256:")]
    if not named:
        raise RuntimeNotFound("nobody knows any more by which name its image was pulled")
    return str(named[0])


def _address(pod: PodStatus | None) -> str:
    """Return where the pod is reached from the node."""
    if pod is None:
        return "127.0.0.1"
    options = ((pod.blueprint.config.get("linux") or {}).get("security_context") or {}).get("namespace_options") or {}
    if not pod.ips or options.get("network") in _NODE_NETWORK:
        return "127.0.0.1"
    return pod.ips[0]


def _without_secrets(text: str, job: Job) -> str:
    """Return *text* without values of variables, should the runtime have told one."""
    values = {value for changes in job.env.values() for value in changes.values() if value}
    for material in job.materials.values():
        values |= {str(entry.get("value") or "") for entry in material.status.blueprint.config.get("envs") or []}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "[redacted]")
    return text
