"""A program of its own: makes a key and the request for its certificate, and prints the request.

cryptography takes much memory and is needed once in some weeks; so it is loaded here and not in the daemon.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def main() -> None:
    """``python -m stokerd.uplink.newkey KEYFILE``: the key that is in the file already is used again."""
    path = Path(sys.argv[1])
    key = _kept(path) or _made(path)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stoker node")])
    request = x509.CertificateSigningRequestBuilder(name).sign(key, hashes.SHA256())
    sys.stdout.write(request.public_bytes(serialization.Encoding.PEM).decode("ascii"))


def _kept(path: Path) -> ec.EllipticCurvePrivateKey | None:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (FileNotFoundError, ValueError):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _made(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(descriptor)
    return key


if __name__ == "__main__":
    main()
