from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stokerd import errors
from stokerd.errors import ConfigError, RuntimeFailure, RuntimeUnavailable, StokerError, redact

# What a URL, a header or a form can hold without being encoded first.
PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~"
MARK = "s3cr3t"  # in every generated secret, so that finding it again is no accident


def secrets(alphabet: str) -> st.SearchStrategy[str]:
    return st.text(alphabet, min_size=0, max_size=30).map(lambda text: f"{MARK}{text}{MARK}")


plain = secrets(PLAIN)
base64 = secrets(PLAIN.replace("~", "") + "+/=")
anything = secrets(PLAIN + " \"'\\,;:{}[]()&=?#%/<>|\t€ü@")
prose = st.sampled_from(("", "failed to resolve: ", 'Get "https://r.example/v2/": ', "x=1 ", "(", "line one\n"))
names = st.sampled_from(
    ("password", "Secret", "identitytoken", "registryToken", "access_token", "refresh_token", "token", "auth", "Passwd")
)


@given(prose, st.sampled_from(("https", "http", "ftp", "redis+tls", "x9")), plain, secrets(PLAIN + "@:?#%&=+$,;!'()"))
def test_no_credential_of_a_url_survives(before: str, scheme: str, user: str, password: str) -> None:
    shown = redact(f"{before}{scheme}://{user}:{password}@registry.example:5000/v2/a/b: connection refused")
    assert MARK not in shown
    assert f"{scheme}://registry.example:5000/v2/a/b: connection refused" in shown


@given(prose, st.sampled_from(("sig", "X-Amz-Signature", "X-Amz-Security-Token", "Signature", "access_token")), plain)
def test_no_signature_in_a_url_survives(before: str, parameter: str, secret: str) -> None:
    shown = redact(
        f'{before}"https://s3.example/blob?scope=a%3Ab&{parameter}={secret}&service=r": dial tcp: i/o timeout'
    )
    assert MARK not in shown
    assert "https://s3.example/blob?scope=a%3Ab&" in shown
    assert '&service=r": dial tcp: i/o timeout' in shown


@given(
    prose,
    st.sampled_from(
        ("Authorization: ", "authorization: ", "Proxy-Authorization:", "Authorization:[", "authorization=")
    ),
    st.sampled_from(("Basic ", "Bearer ", "bearer ", "Token ", "Negotiate ", "")),
    base64,
    st.sampled_from(("", "\n", "\nHost: x", '"', "]", "'")),
)
def test_no_authorization_header_survives(before: str, header: str, scheme: str, secret: str, after: str) -> None:
    assert MARK not in redact(f"{before}{header}{scheme}{secret}{after}")


@given(plain)
def test_no_part_of_a_signed_authorization_header_survives(secret: str) -> None:
    header = f'Authorization: AWS4-HMAC-SHA256 Credential="{secret}"/eu/s3, SignedHeaders=host, Signature={secret}'
    assert MARK not in redact(header)
    assert MARK not in redact(f'Authorization: Digest username="u", nonce="n", response="{secret}"')


@given(prose, st.sampled_from(("X-Registry-Auth: ", "x-auth-token: ", "X-Amz-Security-Token:", "X-Api-Key: ")), plain)
def test_no_header_named_like_a_secret_survives(before: str, header: str, secret: str) -> None:
    assert MARK not in redact(f"{before}{header}{secret}")


@given(names, anything, st.booleans(), st.sampled_from((None, 2)))
@example("token", f'{MARK}"{MARK}', True, None)
@example("auth", f"{MARK}\\", True, None)
def test_no_json_field_named_like_a_secret_survives(
    name: str, secret: str, ascii_only: bool, indent: int | None
) -> None:
    body = json.dumps({"user": "ann", name: secret, "scope": "pull"}, ensure_ascii=ascii_only, indent=indent)
    shown = redact(body)
    assert MARK not in shown
    assert '"user": "ann"' in shown
    assert '"scope": "pull"' in shown


@given(names, anything)
def test_no_json_field_survives_being_quoted_once_more(name: str, secret: str) -> None:
    inner = json.dumps({"user": "ann", name: secret, "scope": "pull"})
    assert MARK not in redact(f"unexpected answer: {json.dumps(inner)}")


@given(names, plain, st.integers(1, 6))
def test_no_json_field_survives_being_cut_off(name: str, secret: str, missing: int) -> None:
    body = json.dumps({"user": "ann", name: secret})
    assert MARK not in redact(body[: len(body) - missing])


@given(names, anything)
def test_no_field_of_a_printed_python_dict_survives(name: str, secret: str) -> None:
    assert MARK not in redact("headers " + repr({name: secret, "x": 1}))


@given(prose, names, plain, st.sampled_from(("", "&service=x", "; path=/", ", y", '"', "\n")))
def test_no_form_field_survives(before: str, name: str, secret: str, after: str) -> None:
    assert redact(f"{before}{name}={secret}{after}").endswith(f"{name}=[redacted]{after}")


@given(prose, st.sampled_from(("password: ", "Password:", "passwd: ")), plain, st.sampled_from(("", "\n", ", x", "}")))
def test_no_password_of_a_yaml_line_survives(before: str, name: str, secret: str, after: str) -> None:
    assert MARK not in redact(f"{before}{name}{secret}{after}")


def test_a_json_web_token_does_not_survive_anywhere() -> None:
    token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJhdXRoLmRvY2tlci5pbyJ9.c2lnbmF0dXJl"
    assert redact(f"cannot use {token}: expired") == "cannot use [redacted]: expired"


@pytest.mark.parametrize(
    "text",
    [
        "failed to authorize: failed to fetch anonymous token: unexpected status: 401 Unauthorized",
        "failed to authorize: failed to fetch oauth token: unexpected status from POST request to "
        "https://auth.docker.io/token: 401 Unauthorized",
        "pull access denied, repository does not exist or may require authorization: server message: "
        "insufficient_scope: authorization failed",
        "pull access denied, repository does not exist or may require authorization: authorization failed: "
        "no basic auth credentials",
        "failed to fetch anonymous token: failed to decode token response: invalid character '<' looking for "
        "beginning of value",
        "failed to fetch anonymous token: authorization server did not include a token in the response",
        'Www-Authenticate: Bearer realm="https://auth.example/token",service="registry.example",'
        'scope="repository:team/app:pull"',
        "GET https://auth.example/token?scope=repository%3Ateam%2Fapp%3Apull&service=registry.example: 500",
        'Head "https://127.0.0.1:5000/v2/a/manifests/v1?ns=docker.io": dial tcp 127.0.0.1:5000: connect: refused',
        f"https://registry.example/team/app@sha256:{'ab' * 32}",
        f"registry.example:5000/team/app@sha256:{'0123456789abcdef' * 4}: not found",
        "unauthorized: incorrect username or password",
        "this registry offers basic authentication only",
        "Basic authentication is not enabled; bearer authentication is",
        "the secret is in /run/secrets/password and the token in /var/run/token",
        "credentials: none found in 2 files",
        "author=ann authority=x",
        "mail ann@example.org about https://registry.example/docs",
        '{"errors":[{"code":"UNAUTHORIZED","message":"authentication required","detail":null}]}',
        "",
    ],
)
def test_ordinary_text_stays_readable(text: str) -> None:
    assert redact(text) == text


@given(st.text(st.characters(codec="utf-8"), max_size=200))
@example('token="a" password=b https://u:p@h/?k=v Authorization: Bearer abc')
@example("x-token: [abc] authorization: [abcdef1] {'token': 'x'} password: y")
def test_redacting_twice_changes_nothing_more(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "://",
        "token",
        '"token":"',
        '\\"',
        "authorization:",
        "x-key",
        "eyJ",
        '"token":\\"',
        "?a=",
        "bearer ",
        "auth=",
    ],
)
def test_hostile_text_takes_linear_time(piece: str) -> None:
    started = time.process_time()
    redact(piece * (100_000 // len(piece)))
    assert time.process_time() - started < 2.0


# ---------------------------------------------------------------------------------------------- the error classes


def everything(root: type[StokerError]) -> list[type[StokerError]]:
    return [root, *(sub for child in root.__subclasses__() for sub in everything(child))]


def test_every_error_has_a_reason_of_its_own_in_camel_case() -> None:
    kinds = [kind for kind in everything(StokerError) if kind.__module__ == errors.__name__]
    reasons = [kind.reason for kind in kinds]
    assert len(set(reasons)) == len(reasons)
    for reason in reasons:
        assert reason.isalnum()
        assert reason[0].isupper()


def test_an_error_shows_its_message_and_its_hint() -> None:
    assert str(StokerError("it broke")) == "it broke"
    assert str(StokerError("it broke", hint="mend it")) == "it broke (mend it)"


def test_a_config_error_lists_every_problem_on_a_line_of_its_own() -> None:
    error = ConfigError("/etc/stoker/stokerd.toml", ["images.attempts: 'x' is no number", "api: must be a table"])
    assert error.problems == ("images.attempts: 'x' is no number", "api: must be a table")
    assert str(error).splitlines() == [
        "/etc/stoker/stokerd.toml: 2 error(s):",
        "  images.attempts: 'x' is no number",
        "  api: must be a table",
    ]


def test_only_a_runtime_that_is_away_is_worth_another_try() -> None:
    assert RuntimeUnavailable("gone", call="cri.PullImage").retryable
    assert not RuntimeFailure("broken", status="UNKNOWN").retryable
