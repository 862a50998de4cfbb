"""Docker configuration files, and which of their credentials belong to an image. Pure.

The matching is the kubelet's (pkg/credentialprovider/keyring.go), so that an image is pulled here with the
credentials with which the kubelet would pull it. Credential helpers, which the kubelet does not know, follow the
docker client: ``credHelpers`` for the servers they name, ``credsStore`` for every other.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import unquote

import msgspec

from stokerd.errors import redact
from stokerd.registry.globs import glob_matches
from stokerd.registry.references import DEFAULT_HOST, Reference

HUB_SERVER = "https://index.docker.io/v1/"
"""The name under which docker files credentials for Docker Hub."""

_HUB_KEY = "index.docker.io"
_HELPER_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PORT = re.compile(r"[0-9]*")
_HOST_PORT = re.compile(r"(?P<host>\[[^\[\]]*\]|[^:\[\]]*):(?P<port>[^:\[\]]*)")
_SECRET_FIELDS = ("auth", "username", "password", "identitytoken", "registrytoken")
_MAX_SERVER = 4096
_SHOWN = 80

_T = TypeVar("_T")


class Credential(msgspec.Struct, frozen=True):
    """One way to log in at a registry: user name and password, an identity token, or a registry token.

    ``server`` is the entry as it was written: ``host[:port][/path]``, a URL, or empty for "whatever is asked for".
    ``source`` says where it came from: ``request``, ``file /path`` or ``helper docker-credential-x``. The repr shows
    neither names nor secrets.
    """

    username: str = ""
    password: str = ""
    identity_token: str = ""
    registry_token: str = ""
    source: str = "request"
    server: str = ""

    def __repr__(self) -> str:
        return f"Credential(source={self.source!r}, server={redact(self.server)!r}, [redacted])"

    @property
    def empty(self) -> bool:
        return not (self.username or self.password or self.identity_token or self.registry_token)

    @property
    def secret(self) -> tuple[str, str, str, str]:
        """What is sent, for comparisons: two credentials that differ in nothing else are the same one."""
        return self.username, self.password, self.identity_token, self.registry_token


class HelperCall(msgspec.Struct, frozen=True):
    """Ask ``docker-credential-<name>`` for the credentials of ``server``."""

    name: str
    server: str


class DockerConfig(msgspec.Struct, frozen=True):
    """What one docker configuration says. ``problems`` has a line for each entry that was left out."""

    source: str
    credentials: tuple[Credential, ...] = ()
    helpers: tuple[HelperCall, ...] = ()
    """``server`` is the key as it was written."""
    store: str = ""
    """The helper for every server without a helper of its own, empty for none."""
    problems: tuple[str, ...] = ()


# ---------------------------------------------------------------------------------------------- reading


def parse_docker_config(data: bytes, source: str) -> DockerConfig:
    """Read a ``config.json`` (``.dockerconfigjson``) or a legacy ``.dockercfg``; the content tells which it is.

    Never raises: a file that is no configuration gives an empty one with a problem. Problems quote keys, no values.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return DockerConfig(source, problems=(f"{source}: this is not JSON: {error}",))
    if not isinstance(document, dict):
        return DockerConfig(source, problems=(f"{source}: this is not a JSON object",))
    if not document.keys() & {"auths", "credHelpers", "credsStore"} and _is_legacy(document):
        document = {"auths": document}
    problems: list[str] = []
    credentials = tuple(_read_auths(document.get("auths"), source, problems))
    helpers = tuple(_read_helpers(document.get("credHelpers"), source, problems))
    store = document.get("credsStore") or ""
    if not _is_helper_name(store) and store != "":
        problems.append(f"{source}: credsStore: this is not the name of a helper")
        store = ""
    return DockerConfig(source, credentials, helpers, store, tuple(problems))


def parse_pull_secret(secret: Mapping[str, object], source: str) -> DockerConfig:
    """Read a Kubernetes Secret object of type ``kubernetes.io/dockerconfigjson`` or ``kubernetes.io/dockercfg``.

    Takes ``data`` (base64) and ``stringData``. Never raises, see ``parse_docker_config``.
    """
    for field, encoded in (("stringData", False), ("data", True)):
        values = secret.get(field)
        for key in (".dockerconfigjson", ".dockercfg"):
            value = values.get(key) if isinstance(values, Mapping) else None
            if not isinstance(value, str) or not value:
                continue
            try:
                content = base64.b64decode(value, validate=True) if encoded else value.encode()
            except (binascii.Error, ValueError):
                return DockerConfig(source, problems=(f"{source}: {field}{_key(key)}: this is not base64",))
            return parse_docker_config(content, source)
    return DockerConfig(source, problems=(f"{source}: it has no .dockerconfigjson and no .dockercfg",))


def _is_legacy(document: Mapping[str, object]) -> bool:
    return any(
        isinstance(value, dict) and any(field in value for field in _SECRET_FIELDS) for value in document.values()
    )


def _read_auths(auths: object, source: str, problems: list[str]) -> Iterable[Credential]:
    if auths is not None and not isinstance(auths, dict):
        problems.append(f"{source}: auths: this is not an object")
    for server, entry in auths.items() if isinstance(auths, dict) else ():
        try:
            credential = _read_entry(server, entry, source)
        except ValueError as error:
            problems.append(f"{source}: auths{_key(server)}: {error}")
            continue
        # docker leaves an empty entry behind for what it keeps in a credential store.
        if not credential.empty:
            yield credential


def _read_entry(server: str, entry: object, source: str) -> Credential:
    """Return one entry of ``auths``. Raises ValueError with what is wrong, without any value of the entry."""
    if server_key(server) is None:
        raise ValueError("the server is neither host[:port][/path] nor a URL")
    if not isinstance(entry, dict):
        raise ValueError("this is not an object")
    fields = {}
    for field in _SECRET_FIELDS:
        value = entry.get(field)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{field} is not a string")
        fields[field] = value or ""
    username, password = fields["username"], fields["password"]
    if fields["auth"]:
        username, password = _decode_auth(fields["auth"])
    return Credential(username, password, fields["identitytoken"], fields["registrytoken"], source, server)


def _decode_auth(text: str) -> tuple[str, str]:
    """Return user name and password of an ``auth`` field: base64 of ``name:password``, padded or not."""
    text = text.strip()
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        # "from None": the cause would carry the secret along.
        raise ValueError("auth is not base64 of name:password") from None
    username, colon, password = decoded.partition(":")
    if not colon:
        raise ValueError("auth is not base64 of name:password")
    # docker and containerd cut these too: old clients wrote fixed-size buffers.
    return username, password.strip("\0")


def _read_helpers(helpers: object, source: str, problems: list[str]) -> Iterable[HelperCall]:
    if helpers is not None and not isinstance(helpers, dict):
        problems.append(f"{source}: credHelpers: this is not an object")
    for server, name in helpers.items() if isinstance(helpers, dict) else ():
        if server_key(server) is None:
            problems.append(f"{source}: credHelpers{_key(server)}: the server is neither a host nor a URL")
        elif not _is_helper_name(name):
            problems.append(f"{source}: credHelpers{_key(server)}: this is not the name of a helper")
        else:
            yield HelperCall(name, server)


def _is_helper_name(name: object) -> bool:
    return isinstance(name, str) and _HELPER_NAME.fullmatch(name) is not None


def _key(text: str) -> str:
    """Return *text* as the key of a message: short, and without what could act on a terminal."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in redact(text))
    return f'."{shown[:_SHOWN]}{"..." if len(shown) > _SHOWN else ""}"'


# ---------------------------------------------------------------------------------------------- matching


def server_key(server: str) -> str | None:
    """Return the ``host[:port][/path]`` that the kubelet files *server* under, None when it cannot be parsed.

    A scheme is dropped, and so are a query, a fragment and the prefixes ``/v1/`` and ``/v2/`` of the path.
    """
    rest = server.removeprefix("https://") if server.startswith("https://") else server.removeprefix("http://")
    if len(rest) > _MAX_SERVER or any(c <= " " or c == "\x7f" for c in rest):
        return None
    for separator in "#?":
        rest = rest.partition(separator)[0]
    authority, slash, path = rest.partition("/")
    host = authority.rpartition("@")[2]
    _, port = _split_port(host)
    if not host or not _PORT.fullmatch(port):
        return None
    path = unquote(slash + path)
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host if path == "/" else host + path


def server_matches(key: str, name: str) -> bool:
    """Return whether credentials under *key* (from ``server_key``) apply to the repository *name*, as the kubelet says.

    The ports are equal; the hosts have equally many labels, each a glob (``*``, ``?``, ``[...]``) for the other's;
    the path is a prefix. As in the kubelet, the prefix need not end where a component ends.
    """
    key_host, _, key_path = key.partition("/")
    name_host, _, name_path = name.partition("/")
    key_name, key_port = _split_port(key_host)
    host_name, host_port = _split_port(name_host)
    key_labels, labels = key_name.split("."), host_name.split(".")
    return (
        key_port == host_port
        and len(key_labels) == len(labels)
        and name_path.startswith(key_path)
        and all(glob_matches(glob, label) for glob, label in zip(key_labels, labels, strict=True))
    )


def select_credentials(credentials: Sequence[Credential], reference: Reference) -> tuple[Credential, ...]:
    """Return those of *credentials* that apply to *reference*: without a server first, then the most specific."""
    anywhere = tuple(credential for credential in credentials if not credential.server)
    entries = ((server_key(item.server), item) for item in credentials if item.server)
    return anywhere + tuple(item for _, item in _matching(entries, reference))


def select(configs: Sequence[DockerConfig], reference: Reference) -> tuple[Credential | HelperCall, ...]:
    """Return what *configs* have for *reference*, the most specific first, earlier configurations before later ones.

    A HelperCall stands for credentials that have to be asked for; its ``server`` is what the helper is told.
    """
    entries: list[tuple[str | None, Credential | HelperCall]] = []
    for config in configs:
        entries.extend((server_key(call.server), call) for call in config.helpers)
        entries.extend((server_key(item.server), item) for item in config.credentials)
    found = [(key, _without_globs(item, reference)) for key, item in _matching(entries, reference)]
    for config in configs:
        own = ((server_key(call.server), call) for call in config.helpers)
        if config.store and not _matching(own, reference):
            found.append((reference.host, HelperCall(config.store, _helper_server(reference))))
    return tuple(item for _, item in sorted(found, key=lambda entry: entry[0], reverse=True))


def _matching(entries: Iterable[tuple[str | None, _T]], reference: Reference) -> list[tuple[str, _T]]:
    """Return the entries that apply, in the kubelet's order: keys sorted backwards, equal keys as they came."""
    known = [(key, item) for key, item in entries if key is not None]
    found = [(key, item) for key, item in known if server_matches(key, reference.name)]
    if not found and reference.host == DEFAULT_HOST:
        found = [(key, item) for key, item in known if key == _HUB_KEY]
    return sorted(found, key=lambda entry: entry[0], reverse=True)


def _without_globs(item: Credential | HelperCall, reference: Reference) -> Credential | HelperCall:
    """A helper is asked for a real server; only this project lets patterns stand in ``credHelpers``."""
    if isinstance(item, HelperCall) and any(c in item.server for c in "*?[\\"):
        return HelperCall(item.name, _helper_server(reference))
    return item


def _helper_server(reference: Reference) -> str:
    return HUB_SERVER if reference.host == DEFAULT_HOST else reference.host


def _split_port(host: str) -> tuple[str, str]:
    """Split like Go's net.SplitHostPort; a host that it refuses, one without a port above all, has no port."""
    match = _HOST_PORT.fullmatch(host)
    if match is None:
        return host, ""
    return match["host"].removeprefix("[").removesuffix("]"), match["port"]
