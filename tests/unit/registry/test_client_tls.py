"""TLS: whom a client trusts, what it shows, and when plain HTTP is allowed."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stokerd.registry.credentials import Credential
from stokerd.registry.errors import RegistryError, RegistryProtocol, RegistryTls
from stokerd.registry.hosts import RegistryEndpoint, load_endpoints
from stokerd.registry.references import parse_reference
from tests.unit.registry.conftest import Certificate, Connect, Serve, make_certificate
from tests.unit.registry.fakes import digest, manifest

TAG = "/v2/team/app/manifests/v1"
BODY = manifest()
DIGEST = digest(BODY)
BLOB = f"/v2/team/app/blobs/{DIGEST}"
APP = parse_reference("quay.io/team/app:v1")


async def test_a_certificate_that_signs_itself_is_not_trusted(
    serve: Serve, connect: Connect, certificate: Certificate
) -> None:
    server = await serve(certificate.server())
    server.put(TAG, BODY)
    with pytest.raises(RegistryTls, match="not trusted: self-signed certificate") as caught:
        await connect(server.endpoint).resolve(APP, [Credential("me", "pw")])
    assert not caught.value.retryable
    assert server.seen == []


async def test_a_ca_file_or_no_verification_makes_it_work(
    serve: Serve, connect: Connect, certificate: Certificate
) -> None:
    server = await serve(certificate.server())
    server.put(TAG, BODY)
    for endpoint in (
        replace(server.endpoint, ca=(certificate.cert,)),
        replace(server.endpoint, skip_verify=True),
        replace(server.endpoint, ca=(certificate.cert,), skip_verify=True),
    ):
        client = connect(endpoint)
        assert (await client.resolve(APP)).body == BODY
        assert (await client.resolve(APP)).body == BODY


async def test_a_wrong_ca_does_not(serve: Serve, connect: Connect, certificate: Certificate, tmp_path: Path) -> None:
    server = await serve(certificate.server())
    other = make_certificate(tmp_path, "other")
    with pytest.raises(RegistryTls):
        await connect(replace(server.endpoint, ca=(other.cert,))).resolve(APP)


async def test_a_ca_file_that_changes_is_read_again(
    serve: Serve, connect: Connect, certificate: Certificate, tmp_path: Path
) -> None:
    server = await serve(certificate.server())
    server.put(TAG, BODY)
    ca = make_certificate(tmp_path, "other").cert
    client = connect(replace(server.endpoint, ca=(ca,)))
    with pytest.raises(RegistryTls):
        await client.resolve(APP)
    ca.write_bytes(certificate.cert.read_bytes())
    os.utime(ca, ns=(1, 1))
    assert (await client.resolve(APP)).body == BODY


async def test_another_name_is_not_trusted(serve: Serve, connect: Connect, certificate: Certificate) -> None:
    server = await serve(certificate.server())
    endpoint = RegistryEndpoint("https", server.host.replace("127.0.0.1", "localhost"), ca=(certificate.cert,))
    with pytest.raises(RegistryTls, match="not trusted"):
        await connect(endpoint).resolve(APP)


async def test_a_client_certificate_is_shown(
    serve: Serve, connect: Connect, certificate: Certificate, client_certificate: Certificate, tmp_path: Path
) -> None:
    server = await serve(certificate.server(clients=client_certificate.cert))
    server.put(TAG, BODY)
    trusting = replace(server.endpoint, ca=(certificate.cert,))
    pair = replace(trusting, client=((client_certificate.cert, client_certificate.key),))
    assert (await connect(pair).resolve(APP)).body == BODY
    both = tmp_path / "both.pem"
    both.write_bytes(client_certificate.cert.read_bytes() + client_certificate.key.read_bytes())
    assert (await connect(replace(trusting, client=((both, None),))).resolve(APP)).body == BODY
    with pytest.raises(RegistryError):
        await connect(trusting).resolve(APP)


def encrypt(key: Path, to: Path) -> Path:
    command = ["openssl", "ec", "-in", str(key), "-out", str(to), "-aes128", "-passout", "pass:secret"]
    subprocess.run(command, check=True, capture_output=True)
    return to


async def test_certificate_files_that_cannot_be_used_are_named(
    connect: Connect, certificate: Certificate, tmp_path: Path
) -> None:
    garbage, encrypted = tmp_path / "garbage.pem", encrypt(certificate.key, tmp_path / "encrypted.key")
    garbage.write_text("no certificate")
    endpoint = RegistryEndpoint("https", "127.0.0.1:1")
    for broken, name in (
        (replace(endpoint, ca=(tmp_path / "missing.pem",)), "missing.pem"),
        (replace(endpoint, ca=(garbage,)), "garbage.pem"),
        (replace(endpoint, client=((garbage, None),)), "garbage.pem"),
        (replace(endpoint, client=((certificate.cert, tmp_path / "missing.key"),)), "missing.key"),
        (replace(endpoint, client=((certificate.cert, encrypted),)), "encrypted.key"),
    ):
        with pytest.raises(RegistryTls, match=name):
            await connect(broken).resolve(APP)


async def test_a_server_without_tls_is_not_asked_in_the_clear(serve: Serve, connect: Connect) -> None:
    server = await serve()
    server.put(TAG, BODY)
    with pytest.raises(RegistryTls, match="handshake failed"):
        await connect(RegistryEndpoint("https", server.host)).resolve(APP)
    assert server.seen == []


async def test_loopback_falls_back_to_plain_http(serve: Serve, connect: Connect, certificate: Certificate) -> None:
    plain, secure = await serve(), await serve(certificate.server())
    for server in (plain, secure):
        server.put(TAG, BODY)
        (endpoint,) = load_endpoints(server.host)
        assert (endpoint.scheme, endpoint.plain_http_fallback) == ("https", True)
        assert (await connect(endpoint).resolve(APP)).endpoint == f"{server.url}/v2"
        assert len(server.seen) == 1


async def test_the_fallback_is_not_for_certificates_that_are_wrong(
    serve: Serve, connect: Connect, certificate: Certificate, tmp_path: Path
) -> None:
    server = await serve(certificate.server())
    other = make_certificate(tmp_path, "other")
    endpoint = replace(server.endpoint, ca=(other.cert,), plain_http_fallback=True)
    with pytest.raises(RegistryTls, match="not trusted"):
        await connect(endpoint).resolve(APP)


async def test_a_token_server_is_never_asked_in_the_clear_instead(serve: Serve, connect: Connect) -> None:
    registry, tokens = await serve(), await serve()
    registry.put(TAG, BODY)
    registry.guard(TAG, f'Bearer realm="https://{tokens.host}/token"', "Bearer T")
    tokens.tokens("/token", {None: {"token": "T"}})
    (endpoint,) = load_endpoints(registry.host)
    with pytest.raises(RegistryTls):
        await connect(endpoint).resolve(APP)
    assert tokens.seen == []


async def test_with_tls_neither_tokens_nor_redirects_go_without(
    serve: Serve, connect: Connect, certificate: Certificate
) -> None:
    registry, plain = await serve(certificate.server()), await serve()
    registry.put(TAG, BODY)
    registry.guard(TAG, f'Bearer realm="{plain.url}/token"', "Bearer T")
    registry.redirect(BLOB, f"{plain.url}/data")
    plain.put("/data", BODY)
    plain.tokens("/token", {None: {"token": "T"}})
    client = connect(replace(registry.endpoint, ca=(certificate.cert,)))
    with pytest.raises(RegistryProtocol, match="token server without TLS"):
        await client.resolve(APP)
    with pytest.raises(RegistryProtocol, match="from https to http"):
        await client.fetch_blob(APP, DIGEST, 1000)
    assert plain.seen == []


async def test_a_token_server_under_the_registrys_ca_is_trusted(
    serve: Serve, connect: Connect, certificate: Certificate
) -> None:
    registry, tokens = await serve(certificate.server()), await serve(certificate.server())
    registry.put(TAG, BODY)
    registry.guard(TAG, f'Bearer realm="{tokens.url}/token"', "Bearer T")
    tokens.tokens("/token", {None: {"token": "T"}})
    assert (await connect(replace(registry.endpoint, ca=(certificate.cert,))).resolve(APP)).body == BODY
    assert tokens.seen[0].query == {"scope": ["repository:team/app:pull"]}


async def test_loopback_without_verification_says_nothing_about_others(
    serve: Serve, connect: Connect, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, tokens = await serve(), await serve(certificate.server())
    registry.put(TAG, BODY)
    registry.guard(TAG, f'Bearer realm="{tokens.url}/token"', "Bearer T")
    tokens.tokens("/token", {None: {"token": "T"}})
    (endpoint,) = load_endpoints(registry.host)
    assert (await connect(endpoint).resolve(APP)).body == BODY
    monkeypatch.setattr("stokerd.registry.transport.is_loopback", lambda host: host == registry.host)
    with pytest.raises(RegistryTls, match="not trusted"):
        await connect(endpoint).resolve(APP)
