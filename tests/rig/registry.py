"""A docker-registry on 127.0.0.1 with a port and a storage of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import secrets
import socket
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.rig import paths
from tests.rig.cgroups import NodeCgroup
from tests.rig.errors import RigError
from tests.rig.images import Image, Index
from tests.rig.processes import ProcessId, joined, let_go, run
from tests.rig.push import Pushed, RegistryClient, push
from tests.rig.records import Record
from tests.rig.waiting import until

START_TIMEOUT = 20.0
IDENTITY = "X-Rig-Registry"


@dataclass(frozen=True)
class RegistryOptions:
    """Everything about a registry that has a default."""

    auth: tuple[str, str] | None = None
    # A certificate of its own for 127.0.0.1 and localhost; `registry.ca` is what a client must trust.
    tls: bool = False
    delete: bool = False
    port: int = 0


def free_ports(count: int) -> list[int]:
    """So many different ports of 127.0.0.1 that were free a moment ago."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def free_port() -> int:
    """One of them."""
    (port,) = free_ports(1)
    return port


class Registry:
    """Start it with start() or `with`; every method blocks. Port and content stay over kill and restart."""

    def __init__(
        self,
        name: str = "registry",
        *,
        workdir: Path = paths.DEFAULT_WORKDIR,
        options: RegistryOptions | None = None,
    ) -> None:
        self.name = name
        self.options = options or RegistryOptions()
        self.port = self.options.port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.data_dir = workdir.resolve() / name
        self.log_file = self.data_dir / "registry.log"
        self._identity = secrets.token_hex(8)
        self._cgroup = NodeCgroup.planned(name)
        self._record: Record | None = None
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"{'https' if self.options.tls else 'http'}://{self.address}"

    @property
    def ca(self) -> Path | None:
        return self.data_dir / "tls.crt" if self.options.tls else None

    def start(self) -> None:
        details = {"address": self.address}
        record = Record(self.name, "registry", ProcessId.own(), self._cgroup, [self.data_dir], details)
        record.create()
        self._record = record
        try:
            self._cgroup.create()
            self._prepare()
            self.restart()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it and remove its content."""
        record, self._record = self._record, None
        if record is not None:
            record.destroy()
        if self._child is not None:
            self._child.wait(10)
            self._child = None

    def kill(self) -> None:
        """SIGKILL; transfers in progress break off. restart() brings it back on the same port."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait(10)

    def restart(self) -> None:
        """Start it again (or for the first time) with what it had."""
        self.kill()
        with self.log_file.open("ab") as log:
            self._child = subprocess.Popen(
                joined(self._cgroup.entries, [str(paths.registry_binary()), "serve", str(self._config_file)]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={"PATH": "/usr/bin:/bin", "OTEL_TRACES_EXPORTER": "none"},
            )
        until(f"the registry at {self.address} to answer", self._answers, START_TIMEOUT)

    def detach(self) -> None:
        """Let it outlive this object and this process: stop() does nothing any more."""
        assert self._record is not None
        assert self._child is not None
        process = ProcessId.of(self._child.pid)
        assert process is not None
        self._record.owner = process
        self._record.save()
        let_go([self._child])
        self._record = self._child = None

    def client(self) -> RegistryClient:
        return RegistryClient(self.address, auth=self.options.auth, ca=self.ca)

    def push(self, repository: str, image: Image | Index, *, tag: str = "v1") -> Pushed:
        return push(self.address, repository, image, tag=tag, auth=self.options.auth, ca=self.ca)

    # Inside

    @property
    def _config_file(self) -> Path:
        return self.data_dir / "config.yml"

    def _prepare(self) -> None:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        if self.options.tls:
            make_certificate(self.data_dir / "tls.crt", self.data_dir / "tls.key")
        if self.options.auth is not None:
            import bcrypt

            user, password = self.options.auth
            word = bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()
            (self.data_dir / "htpasswd").write_text(f"{user}:{word}\n", encoding="utf-8")
        # JSON is YAML too.
        self._config_file.write_text(json.dumps(self._config()), encoding="utf-8")

    def _config(self) -> dict[str, Any]:
        http_part: dict[str, Any] = {
            "addr": self.address,
            "relativeurls": True,
            "secret": secrets.token_hex(16),
            "draintimeout": "1s",
            # By it start() tells this registry from another that has the port.
            "headers": {IDENTITY: [self._identity]},
        }
        if self.options.tls:
            http_part["tls"] = {
                "certificate": str(self.data_dir / "tls.crt"),
                "key": str(self.data_dir / "tls.key"),
            }
        config: dict[str, Any] = {
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": False}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.data_dir / "storage")},
                "delete": {"enabled": self.options.delete},
            },
            "http": http_part,
        }
        if self.options.auth is not None:
            config["auth"] = {"htpasswd": {"realm": "rig", "path": str(self.data_dir / "htpasswd")}}
        return config

    def _answers(self) -> bool:
        child = self._child
        if child is None or child.poll() is not None:
            code = None if child is None else child.returncode
            raise RigError(f"the registry ended with {code} while starting:\n{self.log_tail()}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            if self.options.tls:
                insecure = ssl._create_unverified_context()
                http_client: http.client.HTTPConnection = http.client.HTTPSConnection(
                    self.address, timeout=2, context=insecure
                )
            else:
                http_client = http.client.HTTPConnection(self.address, timeout=2)
            with contextlib.closing(http_client) as connection:
                connection.request("GET", "/v2/")
                answer = connection.getresponse()
                return answer.status in {200, 401} and answer.headers[IDENTITY] == self._identity
        return False

    def log_tail(self, lines: int = 20) -> str:
        try:
            text = self.log_file.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:])


def make_certificate(certificate: Path, key: Path, days: int = 30) -> None:
    """A self-signed certificate for 127.0.0.1 and localhost, which is its own authority."""
    run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", key, "-out", certificate, "-days", str(days), "-subj", "/CN=stoker rig"),
            *("-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ]
    )
