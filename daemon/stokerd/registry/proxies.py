"""Which HTTP proxy a URL is asked through: the environment's, as Go programs and so containerd read it. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from stokerd.registry.hosts import is_loopback

_PORTS = {"http": 80, "https": 443}


def proxy_for(url: str, environment: Mapping[str, str]) -> str | None:
    """Return the proxy's URL, None to go straight. Loopback is never asked through a proxy.

    Reads ``HTTP_PROXY`` or ``HTTPS_PROXY`` and ``NO_PROXY``, in upper before lower case. An entry of ``NO_PROXY`` is
    ``*``, an address, a CIDR range, or a domain that stands for its subdomains too; each may end in a port.
    """
    parts = urlsplit(url)
    proxy = _get(environment, f"{parts.scheme}_proxy")
    host = parts.hostname or ""
    if not proxy or is_loopback(host):
        return None
    port = parts.port or _PORTS.get(parts.scheme, 0)
    if any(_excludes(entry.strip(), host, port) for entry in _get(environment, "no_proxy").split(",")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _get(environment: Mapping[str, str], name: str) -> str:
    return environment.get(name.upper()) or environment.get(name) or ""


def _excludes(entry: str, host: str, port: int) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    name, colon, digits = entry.rpartition(":")
    if colon and digits.isascii() and digits.isdigit() and (name.startswith("[") or ":" not in name):
        if digits.lstrip("0") != str(port):
            return False
        entry = name
    entry = entry.strip("[]").lower()
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
    except (ValueError, TypeError):
        domain = entry.removeprefix("*").removeprefix(".")
        return host.endswith(f".{domain}") or (host == domain and not entry.startswith((".", "*")))
