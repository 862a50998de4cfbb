"""Which servers stand behind a registry's name: containerd's ``hosts.toml``, as containerd reads it.

Follows core/remotes/docker/config/hosts.go: the search for a host's directory, the order of the servers, the
defaults, and ``https`` first for a server that is named ``http`` but has TLS settings. One difference is meant: where
containerd logs a broken file and goes on as if there were none, this raises, because the operator wants to know.
"""

from __future__ import annotations

import ipaddress
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PurePosixPath
from posixpath import normpath
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from stokerd.errors import ConfigError
from stokerd.registry.references import DEFAULT_HOST

HOSTS_FILE = "hosts.toml"
ALL_CAPABILITIES = frozenset({"pull", "resolve", "push"})

_KNOWN_CAPABILITIES = ALL_CAPABILITIES | {"referrers"}
_HUB_API = "registry-1.docker.io"
_MAX_FILE = 1 << 20
_MAX_LINKS = 40
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MAX_SECONDS = 3600.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class RegistryEndpoint:
    """One server that may be asked for the images of a registry.

    ``host`` has the port where one is given. ``namespace`` is the registry's name for a server that stands in for it
    (a mirror), which is told it as ``?ns=``, and empty for the registry itself. With ``plain_http_fallback`` TLS is
    tried first and plain HTTP if the other end has none. ``header`` may hold secrets, so no repr shows it.
    """

    scheme: Literal["http", "https"]
    host: str
    path: str = "/v2"
    capabilities: frozenset[str] = ALL_CAPABILITIES
    namespace: str = ""
    skip_verify: bool = False
    ca: tuple[Path, ...] = ()
    client: tuple[tuple[Path, Path | None], ...] = ()
    """Certificate and key files; the key is in the certificate's file where it is None."""
    header: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    dial_timeout: float | None = None
    """Seconds for making a connection, None for the client's own."""
    plain_http_fallback: bool = False

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.host}{self.path}"


# ---------------------------------------------------------------------------------------------- pure


def is_loopback(host: str) -> bool:
    """Return whether *host*, with or without a port, is ``localhost`` or a loopback address."""
    name = _split_port(host)[0]
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_directories(host: str) -> tuple[str, ...]:
    """Return the names under which containerd looks for the directory of *host*, in its order."""
    if "/" in host or host in ("", ".", ".."):
        return ("_default",)
    colon = host.rfind(":")
    escaped = f"{host[:colon]}_{host[colon + 1 :]}_" if colon > 0 else host
    return tuple(dict.fromkeys((escaped, host, "_default")))


def default_endpoint(host: str) -> RegistryEndpoint:
    """Return where *host* (of a reference) is asked when nothing is configured.

    That is https, and for loopback hosts https without verification, then plain http, as the port allows.
    """
    return _with_default(RegistryEndpoint("https", ""), host)


def parse_hosts(text: str, host: str, *, directory: PurePosixPath, source: str) -> tuple[RegistryEndpoint, ...]:
    """Read the ``hosts.toml`` *text* for the registry *host*: the servers in order, the fall-back server last.

    Relative files are taken from *directory*. Raises ConfigError, naming *source*, with all problems found.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(source, [f"this is not TOML: {error}"]) from None
    problems: list[str] = []
    table = document.get("host", {})
    if not isinstance(table, dict):
        problems.append("host: this is not a table")
        table = {}
    if "" in table:
        problems.append('host."": the server has no name')
    endpoints = [
        _Reader(entry, directory, f'host."{server}".', problems).endpoint(server) for server, entry in table.items()
    ]
    server = document.get("server", "")
    if not isinstance(server, str):
        problems.append("server: this is not a string")
        server = ""
    fallback = _Reader(document, directory, "", problems).endpoint(server)
    if problems:
        raise ConfigError(source, problems)
    endpoints.append(fallback if server else _with_default(fallback, host))
    return tuple(_finish(endpoint, host) for endpoint in endpoints)


class _Reader:
    """One table of a hosts.toml; what is wrong in it is added to ``problems``, and a default goes on."""

    def __init__(self, table: object, directory: PurePosixPath, where: str, problems: list[str]) -> None:
        self._table: Mapping[str, Any] = table if isinstance(table, dict) else {}
        self._directory = directory
        self._where = where
        self._problems = problems
        if not isinstance(table, dict):
            self._wrong("", "this is not a table")

    def endpoint(self, server: str) -> RegistryEndpoint:
        scheme, host, path = self._address(server)
        skip_verify = self._boolean("skip_verify")
        ca, client = self._ca(), self._client()
        return RegistryEndpoint(
            scheme=scheme,
            host=host,
            path=path,
            capabilities=self._capabilities(),
            skip_verify=bool(skip_verify),
            ca=ca,
            client=client,
            header=self._header(),
            dial_timeout=self._duration("dial_timeout"),
            plain_http_fallback=scheme == "http" and bool(ca or client or skip_verify is not None),
        )

    def _wrong(self, key: str, what: str) -> None:
        self._problems.append(f"{self._where}{key}: {what}" if key else f"{self._where[:-1]}: {what}")

    def _address(self, server: str) -> tuple[Literal["http", "https"], str, str]:
        if not server:
            return "https", "", "/v2"
        parts = _split_server(server)
        if parts is None:
            self._wrong("", "this is neither a host nor a plain http or https URL")
            return "https", "", "/v2"
        path = normpath(parts.path) if parts.path.strip("/") else ""
        if not path.endswith("/v2") and not self._boolean("override_path"):
            path += "/v2"
        return ("http" if parts.scheme == "http" else "https"), parts.netloc, path

    def _boolean(self, key: str) -> bool | None:
        value = self._table.get(key)
        if value is None or isinstance(value, bool):
            return value
        self._wrong(key, "this is neither true nor false")
        return None

    def _duration(self, key: str) -> float | None:
        value = self._table.get(key)
        if value is None or value == "":
            return None
        if isinstance(value, str) and _DURATION.sub("", value) == "":
            seconds = sum(float(number) * _SECONDS[unit] for number, unit in _DURATION.findall(value))
            return min(seconds, _MAX_SECONDS)
        self._wrong(key, 'this is not a duration such as "3s"')
        return None

    def _capabilities(self) -> frozenset[str]:
        value = self._strings("capabilities")
        for name in value:
            if name.lower() not in _KNOWN_CAPABILITIES:
                self._wrong("capabilities", f'"{name}" is none; there are pull, resolve and push')
        return frozenset(name.lower() for name in value) or ALL_CAPABILITIES

    def _strings(self, key: str) -> tuple[str, ...]:
        value = self._table.get(key, [])
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return tuple(value)
        self._wrong(key, "this is not a list of strings")
        return ()

    def _ca(self) -> tuple[Path, ...]:
        value = self._table.get("ca", [])
        names = (value,) if isinstance(value, str) else self._strings("ca")
        return tuple(Path(self._directory / name) for name in names)

    def _client(self) -> tuple[tuple[Path, Path | None], ...]:
        value = self._table.get("client", [])
        pairs: list[tuple[Path, Path | None]] = []
        for item in [value] if isinstance(value, str) else value if isinstance(value, list) else [None]:
            names = [item, ""] if isinstance(item, str) else item
            if not (isinstance(names, list) and len(names) == 2 and all(isinstance(n, str) for n in names)):
                self._wrong("client", "this is neither a file nor a list of files or of [certificate, key]")
                return ()
            key = Path(self._directory / names[1]) if names[1] else None
            pairs.append((Path(self._directory / names[0]), key))
        return tuple(pairs)

    def _header(self) -> tuple[tuple[str, str], ...]:
        table = self._table.get("header", {})
        if not isinstance(table, dict):
            self._wrong("header", "this is not a table")
            return ()
        headers: list[tuple[str, str]] = []
        for name, value in table.items():
            values = [value] if isinstance(value, str) else value
            good = isinstance(values, list) and all(_is_header_value(item) for item in values)
            if good and _HEADER_NAME.fullmatch(name):
                headers.extend((name, item) for item in values)
            else:
                # The value may be a secret, so it is not shown.
                self._wrong(f'header."{name}"', "this is not a header, or its value is none")
        return tuple(headers)


def _split_server(server: str) -> SplitResult | None:
    """Return the parts of a host or of a URL, None if it is neither."""
    try:
        parts = urlsplit(server if server.startswith("http") else f"https://{server}")
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    extra = parts.query or parts.fragment or "@" in parts.netloc or parts.netloc.endswith(":")
    return parts if good and not extra and all("!" <= c <= "~" for c in server) else None


def _is_header_value(value: object) -> bool:
    return isinstance(value, str) and not any(c in value for c in "\r\n\0")


def _with_default(endpoint: RegistryEndpoint, host: str) -> RegistryEndpoint:
    """Return *endpoint*, which names no server, with the default one of *host*. Its TLS settings and headers stay."""
    endpoint = replace(endpoint, scheme="https", path="/v2", capabilities=ALL_CAPABILITIES)
    if host == DEFAULT_HOST:
        return replace(endpoint, host=_HUB_API)
    if not is_loopback(host):
        return replace(endpoint, host=host)
    port = _split_port(host)[1]
    if port == "80":
        return replace(endpoint, host=host, scheme="http", plain_http_fallback=False)
    return replace(endpoint, host=host, skip_verify=True, plain_http_fallback=port not in ("", "443"))


def _finish(endpoint: RegistryEndpoint, host: str) -> RegistryEndpoint:
    """Decide between https and http, and whether the server is a mirror."""
    if endpoint.scheme == "http" and endpoint.plain_http_fallback and _split_port(endpoint.host)[1] != "80":
        endpoint = replace(endpoint, scheme="https")
    elif endpoint.scheme == "http":
        endpoint = replace(endpoint, plain_http_fallback=False)
    itself = endpoint.host == host or (host == DEFAULT_HOST and endpoint.host == _HUB_API)
    return endpoint if itself else replace(endpoint, namespace=host)


def _split_port(host: str) -> tuple[str, str]:
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::([0-9]+))?", host)
    if bracketed:
        return bracketed[1], bracketed[2] or ""
    name, _, port = host.partition(":")
    return (host, "") if ":" in port else (name, port)


# ---------------------------------------------------------------------------------------------- reading


def load_endpoints(host: str, config_path: str = "", host_root: Path | None = None) -> tuple[RegistryEndpoint, ...]:
    """Return the servers for the registry *host*, in the order in which they are asked. Reads files.

    *config_path* is containerd's setting: directories separated by colons, the first that knows *host* counts.
    *host_root* is the prefix under which the node's files are reached, for a daemon in a container. Raises
    ConfigError for a file that cannot be read or understood.
    """
    root = host_root if host_root is not None else Path("/")
    for parent in filter(None, config_path.split(":")):
        for name in host_directories(host):
            directory = PurePosixPath(parent) / name
            try:
                if under_root(root, directory).is_dir():
                    return _load_directory(host, directory, root)
            except OSError as error:
                raise ConfigError(str(directory), [f"this cannot be read: {error.strerror or error}"]) from None
    return (default_endpoint(host),)


def _load_directory(host: str, directory: PurePosixPath, root: Path) -> tuple[RegistryEndpoint, ...]:
    source = str(directory / HOSTS_FILE)
    text = _read(under_root(root, directory / HOSTS_FILE), source)
    if text:
        endpoints = parse_hosts(text, host, directory=directory, source=source)
    else:
        names = sorted(path.name for path in under_root(root, directory).iterdir())
        endpoints = (_finish(_with_default(_certificates(directory, names), host), host),)
    return tuple(_rooted(endpoint, root) for endpoint in endpoints)


def _read(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
    except FileNotFoundError:
        return ""
    if len(data) > _MAX_FILE:
        raise ConfigError(source, [f"this is larger than {_MAX_FILE} bytes"])
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(source, [f"this is not UTF-8 (at line {line})"]) from None


def _certificates(directory: PurePosixPath, names: list[str]) -> RegistryEndpoint:
    """Return what Docker's layout of certificates says: ``*.crt`` are CAs, ``*.cert`` with ``*.key`` clients."""
    ca = tuple(Path(directory / name) for name in names if name.endswith(".crt"))
    client: list[tuple[Path, Path | None]] = []
    for name in names:
        if name.endswith(".cert"):
            key = name.removesuffix(".cert") + ".key"
            client.append((Path(directory / name), Path(directory / key) if key in names else None))
    return RegistryEndpoint("https", "", ca=ca, client=tuple(client))


def _rooted(endpoint: RegistryEndpoint, root: Path) -> RegistryEndpoint:
    """Return *endpoint* with its files as this process reaches them."""
    if root == Path("/"):
        return endpoint
    client = tuple((under_root(root, cert), key and under_root(root, key)) for cert, key in endpoint.client)
    return replace(endpoint, ca=tuple(under_root(root, path) for path in endpoint.ca), client=client)


def under_root(root: Path, path: PurePath) -> Path:
    """Return where *path*, absolute on the node, is found below *root*, with symbolic links taken from *root*.

    The kernel would take an absolute link below ``/proc/<pid>/root`` from this process's own root instead.
    """
    if root == Path("/"):
        return Path(path)
    pending = list(reversed(path.parts[1:]))
    found: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part == "..":
            del found[-1:]
            continue
        here = root.joinpath(*found, part)
        if links < _MAX_LINKS and here.is_symlink():
            links += 1
            target = here.readlink()
            if target.is_absolute():
                found.clear()
            pending.extend(reversed([p for p in target.parts if p != "/"]))
        else:
            found.append(part)
    return root.joinpath(*found)
