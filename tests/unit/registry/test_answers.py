"""What a status, a Retry-After and a Location mean."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.errors import StokerError
from stokerd.registry import errors
from stokerd.registry.answers import MAX_WAIT, error_for_answer, origin, parse_retry_after, redirect_target
from stokerd.registry.errors import RegistryError, Subject

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
SUBJECT = Subject("registry-1.docker.io", "docker.io/library/app", "v1")


def error(status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> RegistryError:
    return error_for_answer(status, headers or {}, body, SUBJECT, now=NOW)


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, b"", errors.RegistryUnauthorized),
        (401, b'{"errors":[{"code":"NAME_UNKNOWN"}]}', errors.RegistryUnauthorized),
        (403, b"", errors.RegistryDenied),
        (403, b'{"errors":[{"code":"toomanyrequests"}]}', errors.RateLimited),
        (404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":null,"detail":{"x":1}}]}', errors.ManifestNotFound),
        (404, b"<html>", errors.ManifestNotFound),
        (400, b'{"errors":[{"code":"NAME_UNKNOWN","message":"no"}]}', errors.ManifestNotFound),
        (400, b"", errors.RegistryProtocol),
        (429, b"[" * 99_999, errors.RateLimited),
        (500, b"", errors.RegistryUnavailable),
        (503, b"", errors.RegistryUnavailable),
        (408, b"", errors.RegistryUnavailable),
        (406, b"", errors.UnsupportedMediaType),
        (204, b"", errors.RegistryProtocol),
    ],
)
def test_each_status_has_its_error(status: int, body: bytes, kind: type[RegistryError]) -> None:
    caught = error(status, body)
    assert type(caught) is kind
    assert caught.status == status
    assert f"HTTP {status}" in caught.message
    assert caught.message.startswith("docker.io/library/app:v1 at registry-1.docker.io: ")
    assert caught.hint


def test_reasons_are_stable_and_retrying_is_told() -> None:
    kinds = {
        kind.reason: kind.retryable
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, StokerError)
    }
    kinds.pop("Internal")
    assert kinds == {
        "RegistryFailed": False,
        "RegistryUnreachable": True,
        "RegistryTimeout": True,
        "RegistryTls": False,
        "RegistryUnauthorized": False,
        "RegistryDenied": False,
        "ManifestNotFound": False,
        "RateLimited": True,
        "RegistryUnavailable": True,
        "RegistryProtocol": False,
        "DigestMismatch": False,
        "UnsupportedMediaType": False,
        "NoRegistryEndpoint": False,
        "PushRefused": False,
        "BlobMissing": False,
    }


def test_the_registrys_words_are_repeated_without_secrets_and_controls() -> None:
    body = b'{"errors":[{"code":"DENIED","message":"no\\u001b[31m token=Hunter2 \\n' + b"x" * 1000 + b'"}]}'
    caught = error(403, body)
    assert "DENIED: no" in caught.message
    assert "Hunter2" not in str(caught)
    assert caught.message.isprintable()
    assert len(caught.message) < 500


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("9" * 400, MAX_WAIT),
        ("Wed, 02 Jan 2030 03:04:35 GMT", 30.0),
        ("Wed, 02 Jan 2030 03:04:35 -0000", 30.0),
        ("Wed, 02 Jan 2030 05:04:35 +0200", 30.0),
        ("Wed, 02 Jan 1999 03:04:35 GMT", 0.0),
        ("Wed, 02 Jan 2999 03:04:35 GMT", MAX_WAIT),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("soon", None),
        ("٣", None),
        ("Wed, 99 Jan 2030 99:04:35 GMT", None),
    ],
)
def test_retry_after(value: str, expected: float | None) -> None:
    assert parse_retry_after(value, NOW) == expected


@given(st.text())
def test_no_retry_after_raises(value: str) -> None:
    wait = parse_retry_after(value, NOW)
    assert wait is None or 0 <= wait <= MAX_WAIT


def test_the_wait_is_in_the_error() -> None:
    caught = error(429, headers={"Retry-After": "30"})
    assert caught.retry_after == 30.0
    assert "30 s" in caught.message


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("/v2/x", "https://a.io/v2/x"),
        ("x", "https://a.io/v2/x"),
        ("//b.io/x", "https://b.io/x"),
        ("https://b.io:444/x?sig=a%2Fb%2B+c#f", "https://b.io:444/x?sig=a%2Fb%2B+c"),
        ("https://b.io/a b", "https://b.io/a%20b"),
        ("https://b.io/\u00e4", "https://b.io/%C3%A4"),
        ("https://b.io/\udce4", "https://b.io/%E4"),
    ],
)
def test_where_redirects_lead(location: str, expected: str) -> None:
    assert redirect_target("https://a.io/v2/b", location) == expected


@pytest.mark.parametrize(
    "location",
    [
        "",
        "http://a.io/x",
        "ftp://a.io/x",
        "file:///etc/passwd",
        "https://me:pw@b.io/",
        "https://b.io:x/",
        "https://[::1/",
    ],
)
def test_where_redirects_must_not_lead(location: str) -> None:
    with pytest.raises(ValueError, match=r"^it redirects ") as caught:
        redirect_target("https://a.io/v2/b", location)
    assert "pw" not in str(caught.value)


def test_from_http_a_redirect_may_lead_to_both() -> None:
    assert redirect_target("http://a.io/", "http://b.io/x") == "http://b.io/x"
    assert redirect_target("http://a.io/", "https://b.io/x") == "https://b.io/x"


@given(st.text())
def test_no_location_raises_anything_else(location: str) -> None:
    try:
        target = redirect_target("https://a.io/v2/b", location)
    except ValueError as caught:
        target = str(caught)
    assert target.startswith(("https://", "it redirects "))
    assert target.isascii()


def test_an_origin_has_the_port_of_its_scheme() -> None:
    assert origin("https://A.io/x") == origin("https://a.io:443/y")
    assert len({origin(url) for url in ("https://a.io", "http://a.io", "https://a.io:444", "https://b.io")}) == 4


@pytest.mark.parametrize(
    ("subject", "text"),
    [
        (Subject("quay.io"), "quay.io"),
        (Subject("quay.io", "quay.io/app"), "quay.io/app"),
        (Subject("quay.io", "quay.io/app", "v1"), "quay.io/app:v1"),
        (Subject("quay.io", "quay.io/app", "sha256:ab"), "quay.io/app@sha256:ab"),
        (Subject("m.io", "quay.io/app", "v1"), "quay.io/app:v1 at m.io"),
    ],
)
def test_how_a_subject_is_named(subject: Subject, text: str) -> None:
    assert str(subject) == text
