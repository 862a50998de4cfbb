"""The certificate authority of a cluster's link, and the certificates that it gives. Blocking; made for a thread.

Its key lies in the coordinator's state directory, for root alone. Certificates of nodes are for clients only: a node
cannot pass for the coordinator.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from stoker_coordinator.errors import ConfigError, Invalid
from stoker_coordinator.nodes.names import Identity, uri_of

_AUTHORITY_DAYS, _SERVER_DAYS, _SERVER_RENEWED_BEFORE = 3650.0, 365.0, 60.0
_SKEW = timedelta(minutes=10)
"""Clocks of nodes may be behind by so much."""
_MAX_CSR = 8192


class Issued(Struct, frozen=True):
    """A certificate, PEM, and until when it holds, seconds since the epoch."""

    chain: bytes
    not_after: float


class Pair(Struct, frozen=True):
    key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return "Pair([redacted])"


class Authority:
    """Use `open_authority`."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate
        self._server: tuple[Pair, datetime] | None = None

    @property
    def pem(self) -> bytes:
        """The authority's own certificate: what nodes trust."""
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def sign(self, csr: bytes, identity: Identity, seconds: float, now: datetime | None = None) -> Issued:
        """Return a certificate for the key of a node. What the request says of names is not looked at. Invalid."""
        key = _key_of(csr)
        begin, end = _span(seconds / 86_400, now)
        builder = (
            _builder(f"stoker node {identity.node}"[:64], self._certificate.subject, key, begin, end)
            .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri_of(identity))]), False)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), True)
        )
        return Issued(self._signed(builder), end.timestamp())

    def server(self, names: Iterable[str], now: datetime | None = None) -> Pair:
        """Return the coordinator's own key and certificate: the same until it is to be renewed."""
        moment = now or datetime.now(UTC)
        if self._server is None or self._server[1] - moment < timedelta(days=_SERVER_RENEWED_BEFORE):
            begin, end = _span(_SERVER_DAYS, now)
            key = ec.generate_private_key(ec.SECP256R1())
            builder = (
                _builder("stoker-coordinator", self._certificate.subject, key.public_key(), begin, end)
                .add_extension(x509.SubjectAlternativeName([_name(each) for each in sorted(set(names))]), False)
                .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), True)
            )
            self._server = Pair(_private(key), self._signed(builder)), end
        return self._server[0]

    def _signed(self, builder: x509.CertificateBuilder) -> bytes:
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def open_authority(directory: Path) -> Authority:
    """Return the authority that is kept in *directory*; make it at the first start. ConfigError."""
    key_file, certificate_file = directory / "ca.key", directory / "ca.crt"
    if not key_file.exists():
        key, certificate = _made()
        # The certificate first: with a key there always is one.
        _write(certificate_file, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
        _write(key_file, _private(key), 0o600)
        return Authority(key, certificate)
    try:
        loaded = serialization.load_pem_private_key(key_file.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(str(directory), [f"the certificate authority cannot be read: {error}"]) from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != certificate.public_key():
        raise ConfigError(str(directory), ["ca.key is not the key of ca.crt"])
    return Authority(loaded, certificate)


def _made() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stoker cluster authority")])
    begin, end = _span(_AUTHORITY_DAYS, None)
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(_usage(signs=True), True)
    )
    return key, builder.sign(key, hashes.SHA256())


def _builder(
    common_name: str, issuer: x509.Name, key: CertificatePublicKeyTypes, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    return (
        x509.CertificateBuilder(issuer, name, key, x509.random_serial_number(), begin, end)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), True)
        .add_extension(_usage(signs=False), True)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def fingerprint_of(csr: bytes) -> bytes:
    """Return what tells the key of a signing request from others. Invalid."""
    der = _key_of(csr).public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(der).digest()


def _key_of(csr: bytes) -> CertificatePublicKeyTypes:
    """Return the key of a signing request whose sender has proved that it is his; only P-256 is taken."""
    if len(csr) > _MAX_CSR:
        raise Invalid("the certificate request is too long")
    try:
        request = x509.load_pem_x509_csr(csr)
        key = request.public_key()
        sound = request.is_signature_valid
    except Exception as error:  # hostile bytes: whatever the parser makes of them
        raise Invalid("the certificate request cannot be read") from error
    if not sound or not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp256r1":
        raise Invalid("the certificate request is not signed by a P-256 key of its own")
    return key


def _span(days: float, now: datetime | None) -> tuple[datetime, datetime]:
    moment = now or datetime.now(UTC)
    return moment - _SKEW, moment + timedelta(days=days)


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a file whole, readable for nobody else at any moment."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
    fresh.replace(path)
