"""Docker configuration files, and the kubelet's way of finding the credentials of an image."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.registry.credentials import (
    HUB_SERVER,
    Credential,
    DockerConfig,
    HelperCall,
    parse_docker_config,
    parse_pull_secret,
    select,
    select_credentials,
    server_key,
    server_matches,
)
from stokerd.registry.globs import glob_matches
from stokerd.registry.references import parse_reference

SECRET = "Hunter2-s3cret"


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def parse(document: object) -> DockerConfig:
    return parse_docker_config(msgspec.json.encode(document), "file /c.json")


def found(auths: dict[str, Any], reference: str) -> list[str]:
    """Return the user names that apply, in order; each entry's user name is its key."""
    config = parse(
        {"auths": {key: {"username": key, "password": "p", **(value or {})} for key, value in auths.items()}}
    )
    assert config.problems == ()
    return [item.username for item in select([config], parse_reference(reference)) if isinstance(item, Credential)]


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": encode("me:pass:word")}, Credential("me", "pass:word")),
        ({"auth": encode("me:p").rstrip("=")}, Credential("me", "p")),
        ({"auth": encode("me:pass\0\0")}, Credential("me", "pass")),
        ({"username": "me", "password": "p", "email": "x"}, Credential("me", "p")),
        # As in the kubelet, auth is the one that counts.
        ({"username": "you", "password": "q", "auth": encode("me:p")}, Credential("me", "p")),
        ({"auth": encode("0-0:"), "identitytoken": "it"}, Credential("0-0", "", "it")),
        ({"registrytoken": "rt"}, Credential(registry_token="rt")),
    ],
)
def test_an_entry_gives_a_credential(entry: dict[str, str], expected: Credential) -> None:
    (credential,) = parse({"auths": {"quay.io": entry}}).credentials
    assert credential.secret == expected.secret
    assert (credential.source, credential.server) == ("file /c.json", "quay.io")


def test_the_three_forms_of_a_file() -> None:
    entry = {"quay.io": {"auth": encode("me:p")}}
    modern, legacy = parse({"auths": entry}), parse(entry)
    assert modern.credentials == legacy.credentials
    assert len(modern.credentials) == 1
    content = msgspec.json.encode({"auths": entry})
    for secret in (
        {"data": {".dockerconfigjson": base64.b64encode(content).decode()}},
        {"stringData": {".dockerconfigjson": content.decode()}},
        {"data": {".dockercfg": encode(msgspec.json.encode(entry).decode())}},
    ):
        assert parse_pull_secret(secret, "file /c.json").credentials == modern.credentials


@pytest.mark.parametrize("secret", [{}, {"data": None}, {"data": {".dockerconfigjson": "%%%"}}, {"data": {"x": "y"}}])
def test_a_secret_without_configuration_is_a_problem(secret: dict[str, Any]) -> None:
    config = parse_pull_secret(secret, "secret ns/name")
    assert config.credentials == ()
    assert config.problems[0].startswith("secret ns/name: ")


def test_empty_entries_and_other_settings_are_no_problem() -> None:
    config = parse({"auths": {HUB_SERVER: {}}, "HttpHeaders": {"User-Agent": "x"}, "credsStore": "desktop"})
    assert (config.credentials, config.problems, config.store) == ((), (), "desktop")
    assert parse({}) == parse({"HttpHeaders": {}}) == DockerConfig("file /c.json")


def test_wrong_entries_are_named_and_the_others_work() -> None:
    config = parse(
        {
            "auths": {
                "a.io": {"auth": "!" + SECRET},
                "b.io": {"auth": encode(SECRET)},
                "c.io": {"password": [SECRET]},
                "d.io": SECRET,
                "e .io": {"auth": encode("me:p")},
                "f.io": {"auth": base64.b64encode(b"\xff:" + SECRET.encode()).decode()},
                "g\x1b[1m.io:x": {"auth": encode("me:p")},
                "https://me:" + SECRET + "@h.io:x": {"auth": encode("me:p")},
                "good.io": {"auth": encode("me:p")},
            },
            "credHelpers": {"i.io": "../" + SECRET, "j.io": 3, "k k": "ok", "l.io": "ecr-login"},
            "credsStore": "a/b",
        }
    )
    assert [item.server for item in config.credentials] == ["good.io"]
    assert config.helpers == (HelperCall("ecr-login", "l.io"),)
    assert config.store == ""
    assert len(config.problems) == 12
    text = "\n".join(config.problems)
    for key in ("a.io", "b.io", "c.io", "d.io", "e .io", "f.io", r"g\x1b[1m.io", "h.io", "i.io", "j.io", "k k"):
        assert f'"{key}' in text or f"{key}" in text
    assert all(line.startswith("file /c.json: ") and line.isprintable() for line in config.problems)
    assert SECRET not in text
    assert SECRET not in repr(config)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"null", b'{"auths": 3, "credHelpers": []}', b"[" * 100_000, b'{"auths":{"a":'],
    ids=repr,
)
def test_a_file_that_is_no_configuration_is_a_problem(data: bytes) -> None:
    config = parse_docker_config(data, "file /c.json")
    assert config.credentials == ()
    assert config.problems


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(
        ["auths", "credHelpers", "credsStore", "auth", "username", "password", "quay.io", "", "[", "https://"]
    ) | st.text(), inner),
    max_leaves=12,
))  # fmt: skip
def test_no_document_raises(document: object) -> None:
    try:
        data = msgspec.json.encode(document)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return
    config = parse_docker_config(data, "file /c.json")
    select([config], parse_reference("quay.io/app"))


def test_no_secret_is_shown() -> None:
    credential = Credential("me", SECRET, SECRET, SECRET, "request", f"https://x:{SECRET}@quay.io")
    config = DockerConfig("file /c", (credential,))
    for text in (repr(credential), str(credential), f"{credential}", repr(config), repr([credential])):
        assert SECRET not in text
        assert "quay.io" in text


# ------------------------------------------------------------------------------- pkg/credentialprovider/keyring_test.go


@pytest.mark.parametrize(
    ("glob", "target", "expected"),
    [
        ("*.kubernetes.io", "prefix.kubernetes.io", True),
        ("prefix.*.io", "prefix.kubernetes.io", True),
        ("prefix.kubernetes.*", "prefix.kubernetes.io", True),
        ("*-good.kubernetes.io", "prefix-good.kubernetes.io", True),
        ("*.kubernetes.io/blah", "prefix.kubernetes.io/blah", True),
        ("*.kubernetes.io/blah", "prefix.kubernetes.io/foo", False),
        ("*.kubernetes.io:1111/blah", "prefix.kubernetes.io/blah", False),
        ("*.kubernetes.io:1111/blah", "prefix.kubernetes.io:1111/blah", True),
        ("kubernetes.io", "kubernetes.com", False),
        ("k*.io", "quay.io", False),
        ("*.kubernetes.io", "kubernetes.io", False),
        ("*.kubernetes.io", "a.b.kubernetes.io", False),
        ("kubernetes.io", "kubernetes.io:8080", False),
        ("kubernetes.io:8080", "kubernetes.io", False),
        # A prefix of the path as text, as in the kubelet: it need not end at a slash.
        ("quay.io/core", "quay.io/coreos/etcd", True),
        ("quay.io/coreos/etcd", "quay.io/coreos/etcd", True),
        ("quay.io/coreos/etcd/", "quay.io/coreos/etcd", False),
        ("[::1]:5000", "[::1]:5000/app", True),
        ("[::1]:5000", "[::1]:5001/app", False),
        ("[::1]", "[::1]/app", False),
        ("[", "a/b", False),
    ],
)
def test_matching_is_the_kubelets(glob: str, target: str, expected: bool) -> None:
    key = server_key(glob)
    assert key is not None
    assert server_matches(key, target) is expected


@pytest.mark.parametrize(
    ("server", "key"),
    [
        ("quay.io", "quay.io"),
        ("https://quay.io", "quay.io"),
        ("http://quay.io/", "quay.io"),
        ("quay.io/v1/", "quay.io"),
        ("quay.io/v2/", "quay.io"),
        ("https://quay.io/v2/team/", "quay.io/team/"),
        ("https://quay.io/v1", "quay.io/v1"),
        ("quay.io:443/team", "quay.io:443/team"),
        ("quay.io/team?x=y#z", "quay.io/team"),
        ("https://me:pw@quay.io/x", "quay.io/x"),
        (HUB_SERVER, "index.docker.io"),
        ("quay.io:port", None),
        ("", None),
        ("https://", None),
        ("/path", None),
        ("a b", None),
        ("x" * 5000, None),
    ],
)
def test_the_key_under_which_a_server_is_filed(server: str, key: str | None) -> None:
    assert server_key(server) == key


@pytest.mark.parametrize(
    ("keys", "reference", "expected"),
    [
        (["quay.io", "quay.io/coreos"], "quay.io/coreos/etcd", ["quay.io/coreos", "quay.io"]),
        (["quay.io", "quay.io/coreos"], "quay.io/other/etcd", ["quay.io"]),
        (["*.io", "quay.io"], "quay.io/x", ["quay.io", "*.io"]),
        (["https://quay.io/v2/", "http://quay.io"], "quay.io/x", ["https://quay.io/v2/", "http://quay.io"]),
        (["quay.io"], "quay.io:5000/x", []),
        ([HUB_SERVER], "ubuntu", [HUB_SERVER]),
        (["index.docker.io"], "team/app", ["index.docker.io"]),
        (["https://index.docker.io/v1"], "ubuntu", []),
        (["docker.io"], "ubuntu", ["docker.io"]),
        # Only what Docker Hub's own names do not match falls back to the index.
        (["docker.io", HUB_SERVER], "ubuntu", ["docker.io"]),
        (["docker.io/library", "docker.io"], "ubuntu", ["docker.io/library", "docker.io"]),
        (["docker.io/team", HUB_SERVER], "ubuntu", [HUB_SERVER]),
        ([HUB_SERVER], "quay.io/x", []),
        (["registry-1.docker.io"], "ubuntu", []),
    ],
)
def test_the_most_specific_credentials_come_first(keys: list[str], reference: str, expected: list[str]) -> None:
    assert found(dict.fromkeys(keys), reference) == expected


def test_earlier_files_come_first_where_the_key_is_the_same() -> None:
    one = parse({"auths": {"quay.io": {"auth": encode("one:p")}}})
    two = parse({"auths": {"quay.io": {"auth": encode("two:p")}, "quay.io/x": {"auth": encode("three:p")}}})
    items = select([one, two], parse_reference("quay.io/x"))
    assert [item.username for item in items if isinstance(item, Credential)] == ["three", "one", "two"]


def test_helpers_are_asked_for_the_server_of_their_entry_and_the_store_for_the_rest() -> None:
    document = {
        "credHelpers": {"quay.io": "q", HUB_SERVER: "hub", "*.ecr.aws": "ecr"},
        "credsStore": "store",
        "auths": {"quay.io/team": {"auth": encode("me:p")}},
    }
    config = parse(document)

    def ask(reference: str) -> list[str | HelperCall]:
        items = select([config], parse_reference(reference))
        return [item if isinstance(item, HelperCall) else item.username for item in items]

    assert ask("quay.io/team/app") == ["me", HelperCall("q", "quay.io")]
    assert ask("ubuntu") == [HelperCall("hub", HUB_SERVER)]
    assert ask("public.ecr.aws/x") == [HelperCall("ecr", "public.ecr.aws")]
    assert ask("other.io:5000/x") == [HelperCall("store", "other.io:5000")]
    assert select([parse({"credsStore": "s"})], parse_reference("ubuntu")) == (HelperCall("s", HUB_SERVER),)


def test_credentials_of_a_request_apply_anywhere_or_where_their_server_says() -> None:
    items = [
        Credential("a", server="quay.io"),
        Credential("b"),
        Credential("c", server="quay.io/x"),
        Credential("d", server="z.io"),
    ]
    assert [item.username for item in select_credentials(items, parse_reference("quay.io/x/y"))] == ["b", "c", "a"]


# ------------------------------------------------------------------------------- Go's path/match_test.go


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("abc", "abc", True),
        ("*", "abc", True),
        ("*", "", True),
        ("*c", "abc", True),
        ("a*", "a", True),
        ("a*", "abc", True),
        ("a*b*c*d*e*", "axbxcxdxe", True),
        ("a*b?c*x", "abxbbxdbxebxczzx", True),
        ("a*b?c*x", "abxbbxdbxebxczzy", False),
        ("ab[c]", "abc", True),
        ("ab[b-d]", "abc", True),
        ("ab[e-g]", "abc", False),
        ("ab[^c]", "abc", False),
        ("ab[^b-d]", "abc", False),
        ("ab[^e-g]", "abc", True),
        ("a\\*b", "a*b", True),
        ("a\\*b", "ab", False),
        ("a?b", "a☺b", True),
        ("a[^a]b", "a☺b", True),
        ("a???b", "a☺b", False),
        ("[a-ζ]*", "α", True),
        ("*[a-ζ]", "A", False),
        ("[\\]a]", "]", True),
        ("[\\-]", "-", True),
        ("[x\\-]", "x", True),
        ("[x\\-]", "z", False),
        ("[\\-x]", "-", True),
        ("[]a]", "]", False),
        ("[-]", "-", False),
        ("[x-]", "x", False),
        ("[-x]", "x", False),
        ("\\", "a", False),
        ("[a-b-c]", "a", False),
        ("[", "a", False),
        ("[^", "a", False),
        ("[^bc", "a", False),
        ("a[", "a", False),
        ("*x", "xxx", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_globs_are_gos(pattern: str, text: str, expected: bool) -> None:
    assert glob_matches(pattern, text) is expected


def test_a_hostile_glob_takes_no_longer_than_its_length() -> None:
    assert not glob_matches("*a" * 300 + "b", "a" * 1000)
