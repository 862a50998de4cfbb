"""One attempt to pull one image: lease, credentials in turn, the pull itself under watch, and the check afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

import structlog
from msgspec.structs import replace

from stokerd.errors import RuntimeAlreadyExists, StokerError
from stokerd.images import leases
from stokerd.images.budget import DiskBudget
from stokerd.images.failures import UNSUPPORTED, Failure, classify, no_credential_left
from stokerd.images.manifests import (
    ImageConfig,
    NoMatchingPlatform,
    Platform,
    accepted_platforms,
    compression_of,
)
from stokerd.images.presence import Presence, Present
from stokerd.images.progress import PullProgress, complete
from stokerd.images.watch import PullWatch, Subject, Timing
from stokerd.registry.credentials import Credential
from stokerd.registry.references import Reference
from stokerd.runtime.protocol import Runtime
from stokerd.runtime.types import Lease, RegistryAuth

_log = structlog.get_logger("images")


class CredentialLookup(Protocol):
    """What is needed of `registry.keyring.Keyring`."""

    async def lookup(self, reference: Reference, extra: Sequence[Credential] = ()) -> tuple[Credential, ...]: ...


@dataclass(frozen=True, slots=True)
class PullOrder:
    """What one attempt is to do. ``report`` is told of progress as it comes, ``pulled`` when containerd has done its
    part and only questions are left."""

    reference: Reference
    auths: tuple[Credential, ...]
    report: Callable[[PullProgress], None]
    pulled: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        return self.reference.pull_spec


@dataclass(frozen=True, slots=True)
class Pulled:
    """The image is there. ``fetched``: bytes that came over the network; ``remark``: a warning, or empty."""

    present: Present
    fetched: int
    progress: PullProgress = field(default_factory=PullProgress)
    remark: str = ""


class Puller:
    """Carries attempts out. It decides nothing about order, retries or deadlines."""

    def __init__(
        self,
        runtime: Runtime,
        presence: Presence,
        budget: DiskBudget,
        keyring: CredentialLookup,
        *,
        daemon: str,
        platform: Platform,
        timing: Timing,
    ) -> None:
        self._runtime = runtime
        self._presence = presence
        self._budget = budget
        self._keyring = keyring
        self._daemon = daemon
        self._platform = platform
        self._timing = timing
        self._under_way = 0
        self._claimed: set[str] = set()

    def apply(self, timing: Timing) -> None:
        """Let new timing hold for attempts that begin from now on."""
        self._timing = timing

    async def attempt(self, order: PullOrder) -> Pulled | Failure:
        """Try once. What was fetched stays under the lease, for the next attempt, until `discard` or success."""
        self._under_way += 1
        try:
            lease = await self._lease(order.name)
            outcome = await self._with_credentials(order, lease)
        except StokerError as error:
            return classify(error, order.name)
        finally:
            self._budget.release(order.name)
            self._under_way -= 1
            if not self._under_way:
                self._claimed.clear()
        return outcome

    async def release(self, name: str) -> None:
        """Let go of an image that is complete: its own records hold it now."""
        await self._runtime.leases.delete(leases.lease_id(self._daemon, name), sync=False)

    async def discard(self, reference: Reference) -> None:
        """Remove all that attempts on *reference* left; returns when it is gone."""
        wanted = leases.lease_id(self._daemon, reference.pull_spec)
        lease = await self._find_lease(wanted)
        if lease is None:
            return
        await self._drop_broken_records(reference, lease)
        await self._runtime.leases.delete(wanted, sync=True)

    async def _drop_broken_records(self, reference: Reference, lease: Lease) -> None:
        """Remove the names that a pull gave to an image that is not whole: containerd names some before it fails."""
        record = await self._runtime.images.get(reference.pull_spec)
        if record is None or await self._presence.find(reference) is not None:
            return
        for other in await self._runtime.images.list():
            young = lease.created_at and other.created_at and other.created_at >= lease.created_at
            if young and other.target.digest == record.target.digest:
                await self._runtime.images.delete(other.name, sync=False)

    async def _lease(self, name: str) -> Lease:
        """Make the lease, or go on with the one that an earlier attempt left."""
        wanted = leases.lease_id(self._daemon, name)
        while True:
            try:
                labels = leases.lease_labels(self._daemon, name, datetime.now(UTC))
                return await self._runtime.leases.create(wanted, labels)
            except RuntimeAlreadyExists:
                lease = await self._find_lease(wanted)
                if lease is not None:  # else it has come to its end between the two calls
                    return lease

    async def _find_lease(self, wanted: str) -> Lease | None:
        return next((lease for lease in await self._runtime.leases.list() if lease.id == wanted), None)

    async def _with_credentials(self, order: PullOrder, lease: Lease) -> Pulled | Failure:
        """Try every credential that matches, the most specific first, and then none at all."""
        tried: list[str] = []
        refused: Failure | None = None
        for credential in (*await self._keyring.lookup(order.reference, order.auths), None):
            failure, watch = await self._watched_pull(order, lease, credential)
            if failure is None:
                order.pulled()
                return await self._finish(order, watch)
            if not failure.auth:
                return await self._explained(failure, order.name, watch)
            tried.append(credential.source if credential else "anonymous")
            refused = failure if refused is None or credential else refused
        assert refused is not None
        failure = no_credential_left(refused, order.name, order.reference.host, tuple(tried))
        return replace(failure, auth=True)  # others may know a credential that this attempt did not

    async def _watched_pull(
        self, order: PullOrder, lease: Lease, credential: Credential | None
    ) -> tuple[Failure | None, PullWatch]:
        subject = Subject(order.name, order.name, lease, self._platform)
        watch = PullWatch(self._runtime, subject, self._budget, self._timing, order.report)
        async with asyncio.TaskGroup() as group:
            pulling = group.create_task(self._pull(order.name, lease, credential), name=f"pull {order.name}")
            watching = group.create_task(watch.run(), name=f"watch {order.name}")
            done, pending = await asyncio.wait({pulling, watching}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
        error = pulling.result() if pulling in done else watching.result()
        return (classify(error, order.name) if error is not None else None), watch

    async def _pull(self, name: str, lease: Lease, credential: Credential | None) -> StokerError | None:
        try:
            await self._runtime.cri.pull(name, auth=_auth(credential), lease=lease.id)
        except StokerError as error:
            return error
        return None

    async def _finish(self, order: PullOrder, watch: PullWatch) -> Pulled | Failure:
        present, _ = await asyncio.gather(self._presence.find(order.reference), watch.last_look())
        if present is None:
            return _incomplete(order.name, watch)
        await asyncio.gather(self._learn(watch), self.release(order.name))
        progress = complete(watch.progress)
        return Pulled(present, self._claim(progress), progress, self._remark(watch.config))

    async def _explained(self, failure: Failure, name: str, watch: PullWatch) -> Failure:
        """Add what containerd leaves out: the platforms that there are, the media types that it does not know."""
        if failure.reason == NoMatchingPlatform.reason:
            problem = await watch.platforms_problem()
            return classify(problem, name) if problem else failure
        if failure.reason == UNSUPPORTED:
            await watch.last_look()
            return _unknown_layers(name, watch) or failure
        return failure

    def _claim(self, progress: PullProgress) -> int:
        """Return the bytes that this pull fetched. A layer that several pulls wanted at once is counted for one."""
        fetched = {layer.digest: layer.size for layer in progress.layers if layer.state != "present"}
        mine = {digest: size for digest, size in fetched.items() if digest not in self._claimed}
        self._claimed |= mine.keys()
        return sum(mine.values())

    def _remark(self, config: ImageConfig | None) -> str:
        """Warn of an image for another kind of machine: containerd pulls one that has no choice of platforms."""
        if config is None or not config.platform.os or config.platform in accepted_platforms(self._platform):
            return ""
        return f"the image is for {config.platform}, but this node is {self._platform}: it may not run here"

    async def _learn(self, watch: PullWatch) -> None:
        """Remember what the layers that were unpacked grew to; failing to is no failure of the pull."""
        if watch.manifest is None or watch.config is None:
            return
        fresh = list(zip(watch.manifest.layers, watch.config.chain_ids, strict=False))[watch.baseline.unpacked :]
        try:
            usages = await asyncio.gather(*(self._runtime.snapshots.usage(chain) for _, chain in fresh))
            grown = {layer.digest: usage for (layer, _), usage in zip(fresh, usages, strict=True) if usage is not None}
            await self._budget.learn(watch.manifest, grown)
        except StokerError as error:
            _log.debug("could not learn layer sizes", image=watch.subject.name, why=error.message)


def _unknown_layers(name: str, watch: PullWatch) -> Failure | None:
    """Name the media types that no containerd unpacks; None when all are known."""
    layers = watch.manifest.layers if watch.manifest else ()
    unknown = sorted({layer.media_type for layer in layers if compression_of(layer.media_type) == "unknown"})
    if not unknown:
        return None
    return Failure(
        UNSUPPORTED,
        f"{name} has layers that containerd cannot unpack: {', '.join(unknown)}",
        "this is not a container image, or one for another snapshotter",
    )


def _incomplete(name: str, watch: PullWatch) -> Failure:
    """Say why an image is not there although containerd said that it was pulled."""
    return _unknown_layers(name, watch) or Failure(
        "Incomplete",
        f"containerd said that {name} was pulled, but it is not complete and unpacked",
        "is something else removing images on this node?",
        retryable=True,
    )


def _auth(credential: Credential | None) -> RegistryAuth | None:
    """Return CRI's form. The server's address stays empty, as the kubelet leaves it: containerd compares one with the
    host that it asks, and a docker config's way of writing it would often not match.
    """
    if credential is None:
        return None
    return RegistryAuth(
        username=credential.username,
        password=credential.password,
        identity_token=credential.identity_token,
        registry_token=credential.registry_token,
    )
