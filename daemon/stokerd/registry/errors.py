"""What can go wrong between this node and a registry: one class for each thing that somebody would do about it.

The reasons are stable. They classify the failures of this client, and those of pulls that the runtime made.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from stokerd.errors import StokerError


class Subject(msgspec.Struct, frozen=True):
    """What a request was about: the host that was asked, the repository (``host/path``), and a tag or a digest."""

    registry: str
    repository: str = ""
    target: str = ""

    def __str__(self) -> str:
        if not self.repository:
            return self.registry
        separator = "@" if ":" in self.target else ":"
        name = f"{self.repository}{separator}{self.target}" if self.target else self.repository
        return name if name.startswith(f"{self.registry}/") else f"{name} at {self.registry}"


class RegistryError(StokerError):
    """A registry did not give what was asked of it.

    ``status`` is the HTTP status if there was an answer; ``retry_after`` is the wait in seconds that the registry
    asked for, None if it asked for none. *what* must hold no secret.
    """

    reason = "RegistryFailed"
    advice: ClassVar[str] = ""
    """The hint of an error that brings none of its own."""

    def __init__(
        self,
        what: str,
        subject: Subject,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(f"{subject}: {what}", hint=hint or self.advice or None)
        self.what = what
        self.subject = subject
        self.status = status
        self.retry_after = retry_after


class RegistryUnreachable(RegistryError):
    """No connection, or it broke: unknown host, refused, reset, no route."""

    reason = "RegistryUnreachable"
    retryable = True
    advice = "check the node's DNS, routes and proxy, and the registry's address"


class RegistryTimeout(RegistryUnreachable):
    """The registry did not answer within the deadline."""

    reason = "RegistryTimeout"


class RegistryTls(RegistryError):
    """The TLS handshake failed: a certificate that is not trusted, or no TLS at the other end."""

    reason = "RegistryTls"
    advice = "put the registry's CA into its hosts.toml (ca), or name an http:// server there if it has no TLS"


class RegistryUnauthorized(RegistryError):
    """401: credentials are needed, or those that were sent are wrong."""

    reason = "RegistryUnauthorized"
    advice = "give credentials that may pull this image; a repository that does not exist looks the same"


class RegistryDenied(RegistryError):
    """403: the registry knows who asks, and refuses."""

    reason = "RegistryDenied"
    advice = "ask for permission to pull from this repository"


class ManifestNotFound(RegistryError):
    """404: no such repository, tag, manifest or blob."""

    reason = "ManifestNotFound"
    advice = "check the name and the tag"


class RateLimited(RegistryError):
    """429: too many requests."""

    reason = "RateLimited"
    retryable = True
    advice = "wait, log in for a higher limit, or use a mirror"


class RegistryUnavailable(RegistryError):
    """5xx: the registry has trouble of its own."""

    reason = "RegistryUnavailable"
    retryable = True
    advice = "try again later"


class RegistryProtocol(RegistryError):
    """The answer is not one of a registry, or it is too large, or it leads where it must not."""

    reason = "RegistryProtocol"
    advice = "check that the address is a registry's, and what stands between it and this node"


class DigestMismatch(RegistryError):
    """The content is not what its digest says."""

    reason = "DigestMismatch"
    advice = "a mirror or a proxy changes content; ask the registry itself"


class UnsupportedMediaType(RegistryError):
    """The manifest has a type that cannot be used, as those of Docker's schema 1 have."""

    reason = "UnsupportedMediaType"
    advice = "build the image again with a current tool"


class PushRefused(RegistryError):
    """The registry does not take what is pushed: the repository is not there or read-only, or a limit is passed."""

    reason = "PushRefused"
    advice = "check the repository's name and whether it takes pushes"


class BlobMissing(RegistryError):
    """A blob that is to be pushed is neither here nor there, and cannot be fetched again."""

    reason = "BlobMissing"
    advice = "pull the image that it belongs to again, then push"


class NoRegistryEndpoint(RegistryError):
    """The node's registry configuration leaves no host that may be asked."""

    reason = "NoRegistryEndpoint"
    advice = "check the capabilities in the registry's hosts.toml"
