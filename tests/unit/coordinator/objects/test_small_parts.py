"""Selectors, merge patches, secrets of Kubernetes, sealing, kinds."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.cluster_images import PullSecret, PullSecretSpec, SecretAuth
from stoker.objects.kinds import ALL, BY_ROUTE, KINDS, find
from stoker.objects.meta import LabelSelector, ObjectMeta, Requirement
from stoker_coordinator.errors import CoordinatorError, Invalid
from stoker_coordinator.objects import pull_secrets
from stoker_coordinator.objects.merging import merge
from stoker_coordinator.objects.selectors import of_labels, parse_fields, parse_labels
from stoker_coordinator.sealing import SealBroken, Sealer
from tests.unit.coordinator.store.things import job

# ---------------------------------------------------------------------------------------------- selectors


@pytest.mark.parametrize(
    ("text", "labels", "matches"),
    [
        ("", {}, True),
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "1"}, True),
        ("a=1", {"a": "2"}, False),
        ("a=1", {}, False),
        ("a!=1", {}, True),
        ("a!=1", {"a": "1"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("!a", {}, True),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a in (1,2)", {"a": "3"}, False),
        ("a notin (1,2)", {"a": "3"}, True),
        ("a notin (1,2)", {"a": "1"}, False),
        ("example.com/a=b.c_d,x in (1),!y , z", {"example.com/a": "b.c_d", "x": "1", "z": ""}, True),
        ("a=", {"a": ""}, True),
    ],
)
def test_label_selectors(text: str, labels: dict[str, str], matches: bool) -> None:
    assert parse_labels(text).matches(labels) is matches


@pytest.mark.parametrize("text", ["a=b=c", "a in", "a in (", "=", "a,,b", "a b", "(a)", "a" * 5000])
def test_selectors_that_cannot_be_read(text: str) -> None:
    with pytest.raises(Invalid, match="label selector"):
        parse_labels(text)


def test_selectors_of_objects() -> None:
    selector = of_labels(
        LabelSelector(match_labels={"a": "1"}, match_expressions=(Requirement(key="b", operator="Exists"),))
    )
    assert selector.matches({"a": "1", "b": ""})
    assert not selector.matches({"a": "1"})
    assert of_labels(LabelSelector()).matches({})


def test_field_selectors() -> None:
    kind = KINDS["ImagePullJob"]
    obj = job("a", "x:1")

    assert parse_fields("metadata.name=a,spec.image!=y:1", kind).matches(obj)
    assert not parse_fields("metadata.namespace=other", kind).matches(obj)
    with pytest.raises(Invalid, match=r"cannot be selected by spec\.priority"):
        parse_fields("spec.priority=1", kind)
    with pytest.raises(Invalid, match="not like"):
        parse_fields("!metadata.name", kind)


def test_every_selectable_field_is_there() -> None:
    for kind in ALL:
        for path in kind.selectable:
            parse_fields(f"{path}=x", kind)


# ---------------------------------------------------------------------------------------------- kinds


def test_kinds_are_found_by_all_their_names() -> None:
    assert find("IPJ") is find("imagepulljob") is find("ImagePullJobs") is KINDS["ImagePullJob"]
    assert find("pods") is None
    words = [name for kind in ALL for name in kind.names]
    assert len(words) == len(set(words))
    assert len(BY_ROUTE) == sum(len(kind.versions) for kind in ALL)


# ---------------------------------------------------------------------------------------------- merging


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a"], {"a": 1}, {"a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches(target: Any, patch: Any, result: Any) -> None:
    before = repr(target)
    assert merge(target, patch) == result
    assert repr(target) == before


# ---------------------------------------------------------------------------------------------- secrets


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _secret(
    config: str, *, kind: str = "kubernetes.io/dockerconfigjson", key: str = ".dockerconfigjson"
) -> dict[str, Any]:
    meta = {"name": "s"}
    return {"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": meta, "data": {key: _encoded(config)}}


def test_secrets_of_kubernetes_become_pull_secrets() -> None:
    config = (
        '{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cDp3"}, "r.example:5000/team":'
        ' {"username": "u", "password": "p", "email": "x"}, "t.example": {"identitytoken": "T"}}}'
    )
    found = pull_secrets.converted(_secret(config))

    assert found["kind"] == "PullSecret"
    assert found["spec"]["auths"] == [
        {"registry": "docker.io", "username": "me", "password": "p:w"},
        {"registry": "r.example:5000/team", "username": "u", "password": "p"},
        {"registry": "t.example", "identityToken": "T"},
    ]
    old = pull_secrets.converted(_secret('{"r": {"auth": "YTpi"}}', kind="kubernetes.io/dockercfg", key=".dockercfg"))
    assert old["spec"]["auths"] == [{"registry": "r", "username": "a", "password": "b"}]


@pytest.mark.parametrize(
    "secret",
    [
        _secret("hunter2"),
        _secret('{"auths": "hunter2"}'),
        _secret('{"auths": {"r": "hunter2"}}'),
        _secret('{"auths": {"r": {"auth": "hunter2"}}}'),
        _secret('["hunter2"]'),
        _secret("{}", kind="Opaque"),
        {**_secret("{}"), "data": "hunter2"},
        {**_secret("{}"), "data": {".dockerconfigjson": "hunter2!"}},
        {**_secret("{}"), "data": {}},
    ],
)
def test_secrets_that_cannot_be_read_are_refused_and_not_quoted(secret: dict[str, Any]) -> None:
    with pytest.raises(Invalid) as caught:
        pull_secrets.converted(secret)
    assert "hunter2" not in str(caught.value)


# ---------------------------------------------------------------------------------------------- sealing


def _pull_secret(name: str, password: str) -> PullSecret:
    auth = SecretAuth(registry="r", username="u", password=password)
    return PullSecret(metadata=ObjectMeta(name=name, namespace="default"), spec=PullSecretSpec(auths=(auth,)))


def test_what_is_sealed_can_be_opened_in_its_place_alone(tmp_path: Path) -> None:
    sealer = Sealer.load(tmp_path / "seal.key")
    sealed = sealer.sealed(_pull_secret("a", "hunter2"))

    assert "hunter2" not in repr(sealed.spec.auths[0].password)
    assert sealer.opened(sealed) == _pull_secret("a", "hunter2")
    assert Sealer.load(tmp_path / "seal.key").opened(sealed) == _pull_secret("a", "hunter2")
    moved = PullSecret(metadata=ObjectMeta(name="b", namespace="default"), spec=sealed.spec)
    with pytest.raises(SealBroken, match="another place"):
        sealer.opened(moved)


def test_the_same_secret_is_sealed_alike_and_others_are_not(tmp_path: Path) -> None:
    sealer = Sealer.load(tmp_path / "seal.key")

    assert sealer.seal("a", "x") == sealer.seal("a", "x")
    assert len({sealer.seal("a", "x"), sealer.seal("b", "x"), sealer.seal("a", "y")}) == 3


@given(text=st.text(min_size=1), place=st.text())
def test_everything_can_be_sealed(text: str, place: str) -> None:
    sealer = Sealer({"k": b"1" * 64})
    try:
        text.encode()
        place.encode()
    except UnicodeEncodeError:
        return
    assert sealer.open(place, sealer.seal(place, text)) == text


def test_keys_can_be_changed(tmp_path: Path) -> None:
    old = Sealer({"old": b"1" * 64})
    both = Sealer({"new": b"2" * 64, "old": b"1" * 64})

    assert both.open("a", old.seal("a", "x")) == "x"
    with pytest.raises(SealBroken, match="no key"):
        old.open("a", both.seal("a", "x"))
    for broken in ("", "x", "sealed:old:", "sealed:old:AAAA", "sealed:old:é"):
        with pytest.raises(SealBroken):
            old.open("a", broken)


def test_the_key_file_is_private_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "state" / "seal.key"
    Sealer.load(path)
    assert path.stat().st_mode & 0o777 == 0o600

    path.chmod(0o640)
    with pytest.raises(CoordinatorError, match="read by others"):
        Sealer.load(path)
    path.chmod(0o600)
    path.write_text("nonsense\n")
    with pytest.raises(CoordinatorError, match="restore it"):
        Sealer.load(path)
    path.write_text("")
    with pytest.raises(CoordinatorError, match="empty"):
        Sealer.load(path)
