"""Kubernetes Secrets with registry credentials, as PullSecrets. Pure; no message quotes what is in them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stoker_coordinator.errors import Invalid

VERSION, KIND = "v1", "Secret"
_MODERN, _OLD = "kubernetes.io/dockerconfigjson", "kubernetes.io/dockercfg"
_KEYS = {_MODERN: ".dockerconfigjson", _OLD: ".dockercfg"}


def is_secret(document: Mapping[str, Any]) -> bool:
    """Whether a document is a Secret of Kubernetes."""
    return document.get("kind") == KIND and document.get("apiVersion") == VERSION


def converted(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Secret as the document of a PullSecret; Invalid."""
    kind = document.get("type")
    if kind not in _KEYS:
        raise Invalid(f"Secret: type: is {str(kind)[:60]!r}; only {_MODERN} and {_OLD} can be taken, as PullSecrets")
    key = _KEYS[kind]
    config = _config(document, key)
    entries = config.get("auths") if kind == _MODERN else config
    if not isinstance(entries, dict):
        raise Invalid(f"Secret: {key}: has no auths")
    return {
        "apiVersion": "stoker.dev/v1",
        "kind": "PullSecret",
        "metadata": document.get("metadata"),
        "spec": {"auths": list(_auths(entries, key))},
    }


def _config(document: Mapping[str, Any], key: str) -> dict[str, Any]:
    data, plain = document.get("data") or {}, document.get("stringData") or {}
    if not isinstance(data, Mapping) or not isinstance(plain, Mapping):
        raise Invalid("Secret: data: must be a map")
    try:
        text = plain[key] if key in plain else base64.b64decode(data[key], validate=True)
        config = msgspec.json.decode(text)
    except KeyError:
        raise Invalid(f"Secret: data[{key}]: is missing") from None
    except (ValueError, TypeError, binascii.Error, msgspec.MsgspecError):
        raise Invalid(f"Secret: data[{key}]: is not a docker configuration in base64") from None
    if not isinstance(config, dict):
        raise Invalid(f"Secret: data[{key}]: is not a docker configuration")
    return config


def _auths(entries: Mapping[str, Any], key: str) -> Iterator[dict[str, str]]:
    for registry, entry in entries.items():
        if not isinstance(entry, dict):
            raise Invalid(f"Secret: {key}: the entry of {registry[:80]!r} is not a map")
        names = {"username": "username", "password": "password", "identitytoken": "identityToken"}
        auth = {ours: entry[theirs] for theirs, ours in names.items() if isinstance(entry.get(theirs), str)}
        if isinstance(entry.get("registrytoken"), str):
            auth["registryToken"] = entry["registrytoken"]
        if isinstance(entry.get("auth"), str) and entry["auth"] and "password" not in auth:
            auth["username"], auth["password"] = _pair(entry["auth"], registry, key)
        yield {"registry": _host(registry), **{name: value for name, value in auth.items() if value}}


def _pair(text: str, registry: str, key: str) -> tuple[str, str]:
    try:
        name, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (ValueError, binascii.Error):
        colon = name = password = ""
    if not colon:
        raise Invalid(f"Secret: {key}: auth of {registry[:80]!r} is not name:password in base64")
    return name, password


def _host(registry: str) -> str:
    """Return a registry without what docker writes around it: ``https://index.docker.io/v1/`` is docker.io."""
    host = registry.removeprefix("https://").removeprefix("http://").rstrip("/")
    for ending in ("/v1", "/v2"):
        host = host.removesuffix(ending)
    return "docker.io" if host in {"index.docker.io", "registry-1.docker.io"} else host
