"""One container brought back from a checkpoint: its surroundings first, then CRIU."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import structlog
from msgspec.structs import replace

from stokerd.checkpoints import giving, networks
from stokerd.checkpoints import lazy as helpers
from stokerd.checkpoints import shelf as shelves
from stokerd.checkpoints.clone_types import Clone, CloneWish
from stokerd.checkpoints.cloning import (
    CLONE_LABEL,
    CONTAINER_LABEL,
    IMAGE_LABEL,
    POD_LABEL,
    Places,
    clone_spec,
    has_own_network,
    restored_spec,
)
from stokerd.checkpoints.cni import NetworkList
from stokerd.checkpoints.copying import copy_tree
from stokerd.checkpoints.criu import GHOST_LIMIT, Step, Tuning, config, parse_version
from stokerd.checkpoints.ending import in_thread, settled, to_the_end
from stokerd.checkpoints.errors import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointNoSpace,
    CheckpointRefused,
    CriuCrashed,
    HookFailed,
)
from stokerd.checkpoints.manifest import Manifest
from stokerd.checkpoints.model import CHECKPOINT_LABEL, GC_ROOT_LABEL, OWNER_LABEL, Tell
from stokerd.checkpoints.nodes import must, run_on_node
from stokerd.checkpoints.overlay import root_of
from stokerd.checkpoints.planting import plant
from stokerd.checkpoints.refusals import explain
from stokerd.checkpoints.reserve import Reserve
from stokerd.checkpoints.shelf import Shelf
from stokerd.checkpoints.undoing import ROOT, snapshot_of, view_of
from stokerd.errors import RuntimeFailure, RuntimeTimeout
from stokerd.runtime.protocol import NativeRuntime
from stokerd.runtime.task_types import AnyValue, ContainerRecord, Mount, Restore, Stdio

T = TypeVar("T")
_log = structlog.get_logger("checkpoints")
_START_TIMEOUT = 300.0
_HOOK_TIMEOUT = 60.0
_OUTPUT = Stdio(stdout="file:///dev/null", stderr="file:///dev/null")
"""What a clone prints goes nowhere, but by pipes: a /dev/null of the node's could not be dumped with the clone."""
_SHM_SIZE = 64 << 20
"""What CRI gives a pod. Where more was in use there was more, and the clone gets twice of that."""


class Plan(msgspec.Struct, frozen=True):
    """What is known before anything is made. ``files`` are those given to this one alone, ``mounted`` those that it has
    instead of its pod's."""

    manifest: Manifest
    wish: CloneWish
    golden: ContainerRecord
    spec: dict[str, Any]
    files: dict[str, bytes]
    mounted: dict[str, bytes]
    lazy: bool
    tell: Tell


class Restorer:
    """Brings containers back. Whoever calls takes down what a failure leaves."""

    def __init__(self, runtime: NativeRuntime, shelf: Shelf, owner: str, reserve: Reserve) -> None:
        self._runtime, self._shelf, self._owner, self._reserve = runtime, shelf, owner, reserve

    async def plan(self, manifest: Manifest, wish: CloneWish, tell: Tell, *, lazy: bool) -> Plan:
        """Read what is needed, and refuse what cannot be; nothing is made."""
        golden, mounted = await asyncio.to_thread(self._shelf.golden, manifest.id)
        spec = golden.document()
        files = giving.given_files(wish, spec, mounted.keys())
        mounted = {place: files.pop(place, content) for place, content in mounted.items()}
        return Plan(manifest, wish, golden, spec, files, mounted, lazy, tell)

    async def build(self, clone: Clone, plan: Plan) -> Clone:
        """Make all of it and start it; returns when it runs."""
        plan.tell("surrounding")
        clone = await self._described(clone, plan)
        places = await _written(partial(self._lay_out, clone, plan))
        record = self._record(clone, plan, await self._spec(clone, plan, places))
        clone = await self._surround(clone, plan, record)
        await _written(partial(self._shelf.write_clone, clone, durable=False))
        plan.tell("restoring")
        pid = await self._start(clone)
        if plan.lazy:
            await _written(partial(helpers.tell, self._shelf.clone_path(clone.id, shelves.WORK), pid))
        await _written(partial(self._tell_criu, clone, plan, "dump"))  # should it be checkpointed itself
        if plan.wish.hook:
            plan.tell("hook")
            await self._hook(clone, plan)
        clone = replace(clone, pid=pid, state="made")
        await _written(partial(self._shelf.write_clone, clone, durable=False))
        return clone

    # ------------------------------------------------------------------------------------------ surroundings

    def _lay_out(self, clone: Clone, plan: Plan) -> Places:
        """Write what the clone has instead of its pod's files, and CRIU's configuration. In a thread."""
        (self._shelf.clone_path(clone.id) / shelves.WORK).mkdir(mode=0o700)
        self._tell_criu(clone, plan, "restore")
        mounted: dict[str, str] = {}
        for number, (place, content) in enumerate(sorted(plan.mounted.items()) if not clone.pod else ()):
            name = f"file-{number}"
            self._shelf.clone_path(clone.id, name).write_bytes(content)
            self._shelf.clone_path(clone.id, name).chmod(0o644)
            mounted[place] = self._shelf.clone_node_path(clone.id, name)
        own_shm = plan.manifest.shm_digest and not clone.pod
        return Places(
            networks.netns_path(clone.netns or clone.id),
            self._shelf.clone_node_path(clone.id, shelves.SHM) if own_shm else "",
            self._shelf.clone_node_path(clone.id, "criu.conf"),
            mounted,
        )

    def _tell_criu(self, clone: Clone, plan: Plan, step: Step) -> None:
        """Write CRIU's configuration for this container. In a thread."""
        kept = plan.manifest.tcp == "established"
        tuning = Tuning(
            "established" if kept else "close",
            skip_network_lock=not kept,
            lazy_pages=plan.lazy,
            ghost_limit=GHOST_LIMIT,
            external_unix_sockets=plan.manifest.external_unix_sockets,
        )
        text = config(parse_version(self._runtime.info.criu_version), step, tuning)
        self._shelf.clone_path(clone.id, "criu.conf").write_text(text, encoding="utf-8")

    async def _described(self, clone: Clone, plan: Plan) -> Clone:
        """Write down what is about to be made, its network above all: one made ahead, or a new one. None is needed in a
        pod, nor where there is one from before it was stopped, nor where the node's is used."""
        if has_own_network(plan.spec) and not clone.pod and clone.result is None:
            network = await networks.configuration(self._runtime.info)
            ahead = await self._reserve.take(network)
            if ahead is not None:
                clone = replace(clone, network=network, result=ahead.result, netns=ahead.name)
                await to_the_end(self._take_over(clone), f"write down the network of {clone.id}")
                return clone
            clone = replace(clone, network=network)
        await _written(partial(self._shelf.write_clone, clone))
        return clone

    async def _take_over(self, clone: Clone) -> None:
        """A network made ahead is the clone's as soon as its description says so, and nobody's when none does."""
        try:
            await asyncio.to_thread(self._shelf.write_clone, clone)
            await self._reserve.forget(clone.netns)
        except BaseException:
            self._reserve.put_back(clone.netns)
            raise

    async def _surround(self, clone: Clone, plan: Plan, record: ContainerRecord) -> Clone:
        """Make all that the processes need, side by side: network, root and shim, /dev/shm, and who brings the memory;
        and look at the images meanwhile.

        What has begun is waited for although something else has failed: only what is there can be removed.
        """
        begun: dict[str, asyncio.Task[Any]] = {}

        def begin(name: str, work: Coroutine[Any, Any, Any]) -> None:
            begun[name] = asyncio.create_task(work, name=f"{name} of {clone.id}")

        begin("images", self._examine(plan.manifest))
        if clone.network is not None and clone.result is None:
            begin("network", self._attach(clone, clone.network))
        begin("task", self._create(clone, plan, record))
        if plan.manifest.shm_digest and not clone.pod:
            begin("shm", self._fill_shm(clone, plan.manifest))
        if plan.lazy:
            images = self._shelf.node_path(plan.manifest.id, shelves.IMAGES)
            begin("helper", helpers.start(self._runtime.info, clone.id, images, self._work(clone.id)))
        cancelled = await settled(asyncio.gather(*begun.values(), return_exceptions=True))
        failed = cancelled or next((error for task in begun.values() if (error := task.exception()) is not None), None)
        if failed is not None:
            raise failed
        if "network" in begun:
            clone = replace(clone, result=begun["network"].result())
        return replace(clone, memory="loading", helper=begun["helper"].result()) if plan.lazy else clone

    async def _attach(self, clone: Clone, network: NetworkList) -> dict[str, Any]:
        await networks.make_netns(self._runtime.info, clone.id)
        return (await networks.attach(self._runtime.info, clone.id, network)).result

    async def _create(self, clone: Clone, plan: Plan, record: ContainerRecord) -> None:
        """Make root, record and task. What the task is to join need not be there before it starts."""
        rootfs = await self._root(clone, plan)
        await self._runtime.records.create(record)
        images = self._shelf.node_path(plan.manifest.id, shelves.IMAGES)
        restore = Restore(images, self._work(clone.id))
        await self._runtime.tasks.create(clone.id, rootfs, options=record.options, restore=restore, stdio=_OUTPUT)

    async def _root(self, clone: Clone, plan: Plan) -> tuple[Mount, ...]:
        """Make the root: on the checkpoint's own; or, where that one is to be free to go, on the image with a copy."""
        labels = {GC_ROOT_LABEL: clone.created_at.isoformat(timespec="seconds"), CLONE_LABEL: clone.id}
        labels[OWNER_LABEL] = self._owner
        root = plan.manifest.root
        parent = root.parent if clone.state == "restoring" or clone.pod else root.snapshot
        mounts = await self._runtime.snapshots.prepare(snapshot_of(clone.id), parent, labels=labels)
        if parent != root.snapshot:
            await self._copy_root(clone, plan, mounts, labels)
        if plan.files:
            await self._give(clone, plan, mounts)
        return mounts

    async def _copy_root(self, clone: Clone, plan: Plan, mounts: tuple[Mount, ...], labels: Mapping[str, str]) -> None:
        target, view = root_of(mounts), view_of(clone.id)
        await self._runtime.snapshots.remove(view)
        try:
            source = root_of(await self._runtime.snapshots.view(view, plan.manifest.root.snapshot, labels=dict(labels)))
            if source is None or not source.lowers or target is None:
                raise CheckpointError("the root filesystem is not on containerd's overlayfs")
            prefix, stop = self._runtime.info.host_root, threading.Event()
            lower, upper = f"{prefix}{source.lowers[0]}", f"{prefix}{target.upper}"
            await in_thread(stop, lambda: copy_tree(lower, upper, stop.is_set))
        finally:
            await to_the_end(self._runtime.snapshots.remove(view), f"remove {view}")

    async def _give(self, clone: Clone, plan: Plan, mounts: tuple[Mount, ...]) -> None:
        """Write the files that this clone alone is given, into its root as the container will see it."""
        place = self._shelf.clone_path(clone.id, ROOT)
        await asyncio.to_thread(place.mkdir, 0o700)
        there = self._shelf.clone_node_path(clone.id, ROOT)
        for mount in mounts:
            kind = [] if mount.type == "bind" else ["-t", mount.type]
            await must(self._runtime.info, "mount", *kind, "-o", ",".join(mount.options), mount.source, there)
        try:
            await in_thread(threading.Event(), lambda: plant(str(place), plan.files, giving.owner_of(plan.spec)))
        finally:
            await to_the_end(run_on_node(self._runtime.info, ["umount", there]), f"unmount the root of {clone.id}")

    async def _examine(self, manifest: Manifest) -> None:
        """See whether all files are there and whole, as far as that takes no time; CheckpointDamaged when not."""
        problems = await asyncio.to_thread(self._shelf.glance, manifest)
        if problems:
            raise CheckpointDamaged(
                f"checkpoint {manifest.id} is damaged: {'; '.join(problems[:5])}",
                problems=problems,
                hint="make it anew",
            )

    async def _fill_shm(self, clone: Clone, manifest: Manifest) -> None:
        """Give the clone a /dev/shm of its own, with what was in its pod's."""
        place = self._shelf.clone_path(clone.id, shelves.SHM)
        await asyncio.to_thread(place.mkdir, 0o1777)
        target = self._shelf.clone_node_path(clone.id, shelves.SHM)
        source = self._shelf.path(manifest.id, shelves.SHM)
        size = max(_SHM_SIZE, 2 * await asyncio.to_thread(used, source))
        options = f"nosuid,nodev,noexec,mode=1777,size={size}"
        await must(self._runtime.info, "mount", "-t", "tmpfs", "-o", options, "shm", target)
        stop = threading.Event()
        await in_thread(stop, lambda: copy_tree(str(source), str(place), stop.is_set))

    # ------------------------------------------------------------------------------------------ starting

    async def _spec(self, clone: Clone, plan: Plan, places: Places) -> dict[str, Any]:
        if not clone.pod:
            return clone_spec(plan.spec, clone.id, places, plan.wish.hostname)
        sandbox = await self._runtime.tasks.get(clone.pod)
        if sandbox is None or not sandbox.pid:
            raise CheckpointError(f"pod {clone.pod} has ended meanwhile")
        return restored_spec(plan.spec, clone.id, sandbox.pid, places)

    def _record(self, clone: Clone, plan: Plan, spec: dict[str, Any]) -> ContainerRecord:
        golden, source = plan.golden, plan.manifest.source
        labels = {CLONE_LABEL: clone.id, CHECKPOINT_LABEL: clone.checkpoint, OWNER_LABEL: self._owner}
        labels |= {CONTAINER_LABEL: source.container_name, IMAGE_LABEL: source.image_digest}
        if clone.pod:
            labels[POD_LABEL] = clone.pod
        return ContainerRecord(
            id=clone.id,
            image=golden.image,
            runtime=golden.runtime,
            spec=AnyValue(golden.spec.type, msgspec.json.encode(spec)),
            snapshotter=golden.snapshotter,
            snapshot_key=snapshot_of(clone.id),
            options=golden.options,
            labels=labels,
        )

    async def _start(self, clone: Clone) -> int:
        try:
            return await self._runtime.tasks.start(clone.id, timeout=_START_TIMEOUT)
        except RuntimeFailure as error:
            raise await self._explained(clone, error) from None

    async def _hook(self, clone: Clone, plan: Plan) -> None:
        """Run the hook in the clone. What it prints may hold what it was given, and is kept nowhere."""
        what = f"the hook {plan.wish.hook[0]}"
        process = giving.hook_process(plan.spec, plan.wish)
        try:
            ended = await self._runtime.tasks.execute(clone.id, "stoker-hook", process, timeout=_HOOK_TIMEOUT)
        except RuntimeTimeout:
            raise HookFailed(f"{what} did not end within {_HOOK_TIMEOUT:g} s") from None
        except RuntimeFailure as error:
            raise HookFailed(f"{what} cannot be run in the clone: {error.message}") from None
        if ended.code:
            raise HookFailed(f"{what} ended with {ended.code}", hint="the clone is taken down again")

    async def _explained(self, clone: Clone, error: RuntimeFailure) -> CheckpointError | RuntimeFailure:
        path = self._shelf.clone_path(clone.id, shelves.WORK, "restore.log")
        log = await asyncio.to_thread(shelves.tail, path)
        verdict = explain(log, error.message)
        _log.warning("a restore failed", id=clone.id, outcome=verdict.outcome, why=error.message, log=verdict.excerpt)
        what = "; ".join(verdict.causes) or "; ".join(verdict.excerpt[-2:]) or error.message
        text, hint = f"CRIU cannot restore: {what}", verdict.hint or None
        if verdict.outcome == "refused":
            return CheckpointRefused(text, causes=verdict.causes, hint=hint)
        if verdict.outcome == "crashed":
            return CriuCrashed(text, hint=hint)
        if verdict.outcome == "no-space":
            return CheckpointNoSpace(text, hint=hint)
        return CheckpointError(text, hint=hint) if log else error

    def _work(self, clone: str) -> str:
        return self._shelf.clone_node_path(clone, shelves.WORK)


async def _written(work: Callable[[], T]) -> T:
    """Have something written, and wait for it also when cancelled: what is written later stays when all is removed."""
    return await in_thread(threading.Event(), work)


def used(directory: Path) -> int:
    """Return the bytes that the files of a tree take. Blocking."""
    return sum(
        os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118 - names of others, by the thousand
        for place, _, names in os.walk(directory)
        for name in names
    )
