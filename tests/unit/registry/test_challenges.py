"""WWW-Authenticate, and the requests and answers of token servers."""

from __future__ import annotations

import base64
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.registry.challenges import (
    MAX_LIFETIME,
    Challenge,
    TokenProblem,
    choose_challenge,
    parse_challenges,
    parse_token,
    token_request,
    token_scopes,
)
from stokerd.registry.credentials import Credential

SECRET = "Hunter2-s3cret"
HUB = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/x:pull"'


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], []),
        ([""], []),
        (["Basic"], [("basic", {})]),
        (['Basic realm="x"'], [("basic", {"realm": "x"})]),
        (['BASIC Realm = "x"'], [("basic", {"realm": "x"})]),
        (["Basic realm=x"], [("basic", {"realm": "x"})]),
        (
            [HUB],
            [
                (
                    "bearer",
                    {
                        "realm": "https://auth.docker.io/token",
                        "service": "registry.docker.io",
                        "scope": "repository:library/x:pull",
                    },
                )
            ],
        ),
        (['Bearer realm="a, \\"b\\" \\\\", scope="x:y,z"'], [("bearer", {"realm": 'a, "b" \\', "scope": "x:y,z"})]),
        (['Bearer realm="a", Basic realm="b"'], [("bearer", {"realm": "a"}), ("basic", {"realm": "b"})]),
        (['Bearer realm="a"', 'Basic realm="b"'], [("bearer", {"realm": "a"}), ("basic", {"realm": "b"})]),
        (["Negotiate, Basic realm=b"], [("negotiate", {}), ("basic", {"realm": "b"})]),
        (["Negotiate a87421000492aa874209af8bc028==, Basic realm=b"], [("negotiate", {}), ("basic", {"realm": "b"})]),
        (['Bearer realm="a",, ,service="s",'], [("bearer", {"realm": "a", "service": "s"})]),
        (['Bearer realm=""'], [("bearer", {"realm": ""})]),
        # Malformed: what stands before is kept.
        (['Bearer realm="a", service="unclosed'], [("bearer", {"realm": "a"})]),
        (['Bearer realm="a" service="s"'], [("bearer", {})]),
        (['realm="a"'], []),
        (["\x00"], []),
    ],
)
def test_challenges_are_read(headers: list[str], expected: list[tuple[str, dict[str, str]]]) -> None:
    assert [(item.scheme, dict(item.parameters)) for item in parse_challenges(headers)] == expected


@given(
    st.lists(st.text(alphabet=st.one_of(st.sampled_from('Bearer Basic realm="x\\",= '), st.characters()), max_size=80))
)
def test_no_header_raises(headers: list[str]) -> None:
    choose_challenge(parse_challenges(headers))


@given(st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True),
    st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126)),
    min_size=1,
))  # fmt: skip
def test_quoted_values_come_back(parameters: dict[str, str]) -> None:
    quoted = ", ".join(f'{k}="{v.translate({34: chr(92) + chr(34), 92: chr(92) * 2})}"' for k, v in parameters.items())
    (challenge,) = parse_challenges([f"Bearer {quoted}"])
    assert challenge == Challenge("bearer", parameters)


def test_a_long_header_is_read_quickly() -> None:
    assert parse_challenges(['Bearer realm="' + "\\" * 99_999]) == (Challenge("bearer"),)
    assert len(parse_challenges(["a," * 30_000])) == 30_000


def test_a_token_is_preferred_to_a_password() -> None:
    def choose(*headers: str) -> str | None:
        challenge = choose_challenge(parse_challenges(headers))
        return challenge.scheme if challenge else None

    assert choose("Basic realm=x", HUB) == "bearer"
    assert choose("Digest realm=x, Basic realm=x") == "basic"
    assert choose("Negotiate") is None
    assert choose() is None


def test_scopes_are_the_challenges_else_our_own() -> None:
    assert token_scopes(Challenge("bearer", {"scope": "b:c a:b b:c"}), "own") == ("a:b", "b:c")
    assert token_scopes(Challenge("bearer"), "own") == ("own",)


def bearer(realm: str = "https://auth.example.com/token", **parameters: str) -> Challenge:
    return Challenge("bearer", {"realm": realm, "service": "reg.example.com", **parameters})


def test_a_password_goes_with_a_get() -> None:
    request = token_request(bearer(), Credential("me", SECRET), ("repository:a/b:pull", "x"), plain_http=False)
    parts = urlsplit(request.url)
    assert parse_qsl(parts.query) == [("service", "reg.example.com"), ("scope", "repository:a/b:pull"), ("scope", "x")]
    assert request.authorization == "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()
    assert request.form is None
    assert SECRET not in repr(request)


def test_nobody_asks_without_authorization() -> None:
    request = token_request(bearer("https://a.io/token?x=1"), None, ("s",), plain_http=False)
    assert request.url == "https://a.io/token?x=1&service=reg.example.com&scope=s"
    assert request.authorization is None


def test_an_identity_token_is_posted() -> None:
    request = token_request(bearer(), Credential(identity_token=SECRET), ("s1", "s2"), plain_http=False)
    assert request.url == "https://auth.example.com/token"
    assert request.form is not None
    assert parse_qs(request.form.decode()) == {
        "grant_type": ["refresh_token"],
        "service": ["reg.example.com"],
        "client_id": ["stoker"],
        "scope": ["s1 s2"],
        "refresh_token": [SECRET],
    }
    assert request.authorization is None
    assert SECRET not in repr(request)


@pytest.mark.parametrize(
    "realm",
    [
        "",
        "token",
        "/token",
        "ftp://a.io/token",
        "https://",
        "https://me:pw@a.io/token",
        "https://a.io/token#x",
        "https://a.io:port/token",
        "https://a.io:0/token",
        "https://a.io/to ken",
        "https://a.io/to\nken",
        "https://ä.io/token",
        "https://[::1/token",
        "http://a.io/token",
    ],
)
def test_other_realms_are_refused(realm: str) -> None:
    with pytest.raises(TokenProblem) as caught:
        token_request(bearer(realm), Credential("me", SECRET), ("s",), plain_http=False)
    assert SECRET not in str(caught.value)
    assert "pw" not in str(caught.value)


def test_a_registry_without_tls_may_have_a_token_server_without() -> None:
    request = token_request(bearer("http://a.io/token"), None, ("s",), plain_http=True)
    assert request.url.startswith("http://a.io/token?")


@pytest.mark.parametrize(
    ("body", "value", "lifetime"),
    [
        (b'{"token":"t"}', "t", 60.0),
        (b'{"access_token":"t","expires_in":300}', "t", 300.0),
        (b'{"token":"t","access_token":"u","expires_in":"300","issued_at":"1999-01-01T00:00:00Z"}', "t", 300.0),
        (b'{"token":"","access_token":"u"}', "u", 60.0),
        (b'{"token":"t","expires_in":-5}', "t", 0.0),
        (b'{"token":"t","expires_in":1e18}', "t", MAX_LIFETIME),
        (b'{"token":"t","expires_in":null,"x":[1]}', "t", 60.0),
    ],
)
def test_tokens_are_read(body: bytes, value: str, lifetime: float) -> None:
    token = parse_token(body)
    assert (token.value, token.lifetime) == (value, lifetime)
    assert repr(token.value) not in repr(token)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"token":null}',
        b'{"token":"a b"}',
        b'{"token":"a\\r\\nX: y"}',
        b'{"token":{"Hunter2":1}}',
        b"[" * 99_999,
    ],
    ids=range(8),
)
def test_other_answers_have_no_token(body: bytes) -> None:
    with pytest.raises(TokenProblem) as caught:
        parse_token(body)
    assert "Hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None
