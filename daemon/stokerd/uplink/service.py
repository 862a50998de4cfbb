"""The uplink: keeps a stream to the coordinator, whatever happens to either. Loaded by `room` where there is one."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import time
from pathlib import Path
from typing import NoReturn

import grpc
import msgspec
import structlog

from stoker.objects import link
from stoker.objects.link import About, Certificate, Heartbeat, Hello, JoinAnswer, JoinRequest
from stoker.objects.node import NodeInfo
from stokerd import VERSION
from stokerd.errors import ConfigError, StokerError
from stokerd.journal.uplink import UplinkJournal
from stokerd.settings import UplinkSettings
from stokerd.uplink import pauses
from stokerd.uplink.doers import CommitDoer, Doer, RecreateDoer, WarmDoer
from stokerd.uplink.identity import Identity, NoIdentity, Store, read_token
from stokerd.uplink.inventory import Inventory
from stokerd.uplink.ports import Ports
from stokerd.uplink.staged import CheckpointDoer, CloneDoer
from stokerd.uplink.standing import Standing
from stokerd.uplink.stream import RefusedHere, Stream
from stokerd.uplink.wishes import Wishes

_log = structlog.get_logger("uplink")
_BEAT_SECONDS, _JOIN_SECONDS, _RENEW_LOOK = 5.0, 30.0, 3600.0
_STEADY_SECONDS = 30.0
"""A stream that held for so long was a good one: the next try is soon again."""
_MAX_CA = 1 << 20
_REPLACED = "CertificateReplaced"
"""Why the coordinator refuses a certificate that was revoked, or that another one has taken the place of."""
_OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.max_receive_message_length", link.MAX_MESSAGE),
    ("grpc.max_send_message_length", link.MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
)


class UplinkService:
    """`load`, then `run`."""

    def __init__(
        self, settings: UplinkSettings, directory: Path, journal: UplinkJournal, ports: Ports, standing: Standing
    ) -> None:
        """*directory*: where the node's key and certificate are kept. *standing* is kept up to date."""
        self._settings, self._ports, self.standing = settings, ports, standing
        self.node = settings.node or socket.gethostname().lower()
        self._woken = asyncio.Event()
        self._store = Store(directory)
        self._instance = secrets.token_hex(8)
        self._inventory = Inventory(self.node, settings, ports, self._woken.set)
        doers: dict[str, Doer] = {
            "warm": WarmDoer(ports.images),
            "recreate": RecreateDoer(ports.containers),
            "checkpoint": CheckpointDoer(ports.checkpoints),
            "clone": CloneDoer(ports.checkpoints),
            "commit": CommitDoer(ports.checkpoints),
        }
        self._wishes = Wishes(journal, doers, time.time, self._woken.set)
        self._failing = ""
        self._replaced = b""
        """The certificate that holds no more by the coordinator's word, whatever is written in it."""

    async def load(self) -> None:
        """Take up what the journal says."""
        await self._wishes.load()

    async def run(self) -> None:
        """Keep a stream to the coordinator, and do what it wishes, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._wishes.run(), name="uplink: wishes")
            group.create_task(self._keep_connected(group), name="uplink: coordinator")

    async def _keep_connected(self, group: asyncio.TaskGroup) -> None:
        failures = 0
        while True:
            began = time.monotonic()
            # In a task of its own: a stream that breaks in the moment in which this is cancelled must not hide that.
            attempt = group.create_task(self._attempt(), name="uplink: stream")
            await asyncio.wait({attempt})
            error = attempt.result()
            share = random.random()  # noqa: S311 - no secret
            if isinstance(error, RefusedHere) and not self._may_join(error):
                seconds = pauses.told_pause(error.seconds, share)
            else:
                failures = 1 if time.monotonic() - began > _STEADY_SECONDS else failures + 1
                seconds = pauses.pause(failures, self._settings.reconnect_initial, self._settings.reconnect_max, share)
            await asyncio.sleep(seconds)

    def _may_join(self, refused: RefusedHere) -> bool:
        """Say whether a token may help: then it is tried soon, and again until somebody has put a new one there."""
        return refused.why == _REPLACED and bool(self._settings.token_file)

    async def _attempt(self) -> StokerError:
        """Serve one stream; return why it ended."""
        try:
            await self._stream()
        except StokerError as error:
            self._note(error.why if isinstance(error, RefusedHere) else error.reason, error)
            return error
        finally:
            self.standing.ended()

    def _note(self, reason: str, error: StokerError) -> None:
        """Log a failure once, until it is another one."""
        self.standing.lost(reason, error)
        if reason != self._failing:
            _log.warning("no coordinator; work goes on", reason=reason, why=error.message, hint=error.hint)
        self._failing = reason

    # ------------------------------------------------------------------------------------------ one stream

    async def _stream(self) -> NoReturn:
        """Connect, and serve one stream to its end; always raises StokerError."""
        identity = await self._identified() if self._settings.ca else None
        self.standing.identified(identity.not_after if identity is not None else None)
        async with await self._channel(self._settings.coordinator, identity) as channel:
            stream = Stream(
                await self._hello(),
                self._inventory,
                self._wishes,
                self._heartbeat,
                self._certified,
                lambda stream: self._beside(stream, identity),
                self._woken,
            )
            try:
                await stream.run(channel)
            except RefusedHere as error:
                if identity is not None and error.why == _REPLACED:
                    self._replaced = identity.chain
                raise

    async def _beside(self, stream: Stream, identity: Identity | None) -> None:
        """Note that the stream is good, and have the certificate renewed in time."""
        self.standing.connected()
        self._failing = ""
        while identity is not None:
            if identity.due(time.time()):
                try:
                    stream.renew(await self._store.request())
                except NoIdentity as error:
                    _log.warning("the certificate cannot be renewed yet", why=error.message, hint=error.hint)
            await asyncio.sleep(min(_RENEW_LOOK, max((identity.not_after - time.time()) / 10, 1.0)))
            identity = await asyncio.to_thread(self._store.load) or identity
            self.standing.identified(identity.not_after)

    async def _certified(self, certificate: Certificate) -> None:
        """Keep a new certificate: the next stream is opened with it."""
        try:
            await asyncio.to_thread(self._store.keep, self.node, certificate.chain, certificate.not_after, time.time())
        except NoIdentity as error:
            _log.error("the new certificate was lost; another one is asked for", why=error.message)
        else:
            _log.info("the node has a new certificate")

    async def _identified(self) -> Identity:
        """Return the node's certificate; join to get one. NoIdentity, ConfigError."""
        identity = await asyncio.to_thread(self._store.load)
        replaced = identity is not None and identity.chain == self._replaced
        if identity is not None and identity.node == self.node and time.time() < identity.not_after:
            if not replaced or not self._settings.token_file:
                return identity
        elif not self._settings.token_file:
            what = "has expired" if identity is not None else "is missing"
            raise NoIdentity(f"the node's certificate {what}", hint="set uplink.token_file to a file with a join token")
        token = await asyncio.to_thread(read_token, Path(self._settings.token_file))
        answer = await self._join(JoinRequest(token=token, node=self.node, csr=await self._store.request()))
        if answer.reason:
            raise NoIdentity(f"the coordinator lets this node not join: {answer.message}", hint=answer.hint)
        await asyncio.to_thread(self._store.keep, self.node, answer.chain, answer.not_after, time.time())
        _log.info("joined the cluster", node=self.node)
        identity = await asyncio.to_thread(self._store.load)
        if identity is None:
            raise NoIdentity("the node's certificate went away this moment")
        return identity

    async def _join(self, request: JoinRequest) -> JoinAnswer:
        address = self._settings.join or _next_port(self._settings.coordinator)
        async with await self._channel(address, None) as channel:
            try:
                ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(link.JOIN)
                data = await ask(msgspec.msgpack.encode(request), timeout=_JOIN_SECONDS)
                return msgspec.msgpack.decode(data, type=JoinAnswer)
            except grpc.aio.AioRpcError as error:
                raise NoIdentity(f"joining at {address} failed: {error.code().name}: {error.details()}") from None
            except msgspec.DecodeError as error:
                raise NoIdentity(f"joining at {address} failed: {error}") from None

    async def _channel(self, address: str, identity: Identity | None) -> grpc.aio.Channel:
        if not self._settings.ca:
            return grpc.aio.insecure_channel(address, options=[*_OPTIONS, ("grpc.default_authority", "localhost")])
        authority = await asyncio.to_thread(_read_ca, Path(self._settings.ca))
        key, chain = (identity.key, identity.chain) if identity is not None else (None, None)
        options = [*_OPTIONS]
        if self._settings.server_name:
            options.append(("grpc.ssl_target_name_override", self._settings.server_name))
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(authority, key, chain), options=options)

    # ------------------------------------------------------------------------------------------ about the node

    async def _hello(self) -> Hello:
        boot_id, machine_id = await asyncio.to_thread(_machine)
        about = _about(await self._info())
        return Hello(
            node=self.node,
            boot_id=boot_id,
            machine_id=machine_id,
            instance=self._instance,
            version=VERSION,
            runtime=about.runtime,
            capabilities=about.capabilities,
            addresses=await asyncio.to_thread(_addresses, self._settings.coordinator),
            generation=self._wishes.generation,
        )

    async def _heartbeat(self) -> tuple[Heartbeat, About | None]:
        info = await self._info()
        if info is None:
            return Heartbeat(ready=False, problem=f"stokerd did not answer itself for {_BEAT_SECONDS:g} s"), None
        beat = Heartbeat(ready=info.runtime_ready, problem=info.runtime_message, free_bytes=info.space.free_bytes)
        return beat, _about(info) if info.runtime_ready else None

    async def _info(self) -> NodeInfo | None:
        try:
            async with asyncio.timeout(_BEAT_SECONDS):
                return await self._ports.info()
        except (StokerError, TimeoutError):
            return None


def _read_ca(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_CA)
    except OSError as error:
        raise ConfigError("uplink.ca", [f"{path} cannot be read: {error.strerror or error}"]) from None


def _about(info: NodeInfo | None) -> About:
    """Return what the node says of itself beside how it is."""
    if info is None:
        return About()
    capabilities = {each.name: "" if each.available else each.detail or "no" for each in info.capabilities}
    return About(runtime=f"{info.runtime_name} {info.runtime_version}".strip(), capabilities=capabilities)


def _machine() -> tuple[str, str]:
    """Return the kernel's boot id and the installation's id; empty where there is none."""
    return _line("/proc/sys/kernel/random/boot_id"), _line("/etc/machine-id")


def _line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""


def _addresses(coordinator: str) -> list[str]:
    """Return the address that this node reaches the coordinator from."""
    host, _, port = coordinator.rpartition(":")
    if coordinator.startswith("unix:") or not port.isdigit():
        return []
    try:
        family, kind, _, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(target)  # nothing is sent
            return [str(probe.getsockname()[0])]
    except OSError:
        return []


def _next_port(address: str) -> str:
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + 1}"
