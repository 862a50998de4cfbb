"""What a file asks for, and what is said about the rest of it."""

from __future__ import annotations

import io
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ManifestError
from stoker.manifests import parse_manifest, read_manifest
from stoker.objects.images import WarmRequest

FULL = """\
# what every node needs
apiVersion: apps.kruise.io/v1alpha1
kind: ImageListPullJob
metadata:
  name: base-images
  namespace: kruise-system
  labels: {team: platform}
spec:
  images:
  - docker.io/library/nginx:1.27
  - registry.example.com/ml/train:v3
  imagePullPolicy: Always
  parallelism: 10%
  selector:
    names: [node-1, node-2]
  pullSecrets:
  - regcred
  pullPolicy:
    backoffLimit: 2
    timeoutSeconds: 300
  completionPolicy:
    type: Always
    activeDeadlineSeconds: 1200
    ttlSecondsAfterFinished: 60
  sandboxConfig:
    labels: {a: b}
  frobnicate: 1
status:
  desired: 3
---
---
apiVersion: apps.kruise.io/v1beta1
kind: ImagePullJob
metadata:
  generateName: one-
spec:
  image: busybox@sha256:0000000000000000000000000000000000000000000000000000000000000000
  completionPolicy:
    type: Never
  podSelector: {matchLabels: {app: x}}
"""


def parse(text: str) -> tuple[list[WarmRequest], list[str]]:
    manifest = parse_manifest(text.encode(), "jobs.yaml")
    return list(manifest.requests), list(manifest.warnings)


def test_objects_of_both_kinds_and_versions() -> None:
    requests, warnings = parse(FULL)
    assert requests == [
        WarmRequest(
            images=["docker.io/library/nginx:1.27", "registry.example.com/ml/train:v3"],
            name="base-images",
            policy="Always",
            attempts=3,
            timeout_seconds=900,
        ),
        WarmRequest(images=["busybox@sha256:" + "0" * 64], name="one-"),
    ]
    places = [warning.partition(" is ")[0] for warning in warnings]
    assert places == [
        "jobs.yaml:13: ImageListPullJob 'base-images': spec.parallelism",
        "jobs.yaml:15: ImageListPullJob 'base-images': spec.selector",
        "jobs.yaml:17: ImageListPullJob 'base-images': spec.pullSecrets",
        "jobs.yaml:23: ImageListPullJob 'base-images': spec.completionPolicy.activeDeadlineSeconds",
        "jobs.yaml:24: ImageListPullJob 'base-images': spec.completionPolicy.ttlSecondsAfterFinished",
        "jobs.yaml:26: ImageListPullJob 'base-images': spec.sandboxConfig",
        "jobs.yaml:27: ImageListPullJob 'base-images': spec.frobnicate",
        "jobs.yaml:39: ImagePullJob 'one-': spec.completionPolicy.type",
        "jobs.yaml:40: ImagePullJob 'one-': spec.podSelector",
    ]
    assert warnings[6].endswith("spec.frobnicate is unknown and has no effect")


@pytest.mark.parametrize(
    ("policy", "attempts", "timeout"),
    [
        ("{}", None, None),
        ("{backoffLimit: 0}", 1, None),
        ("{backoffLimit: 5}", 6, None),
        ("{timeoutSeconds: 60}", 4, 240),
        ("{timeoutSeconds: 60, backoffLimit: 1}", 2, 120),
    ],
)
def test_pull_policy(policy: str, attempts: int | None, timeout: float | None) -> None:
    (request,), warnings = parse(one(f"pullPolicy: {policy}"))
    assert (request.attempts, request.timeout_seconds) == (attempts, timeout)
    assert warnings == []


@pytest.mark.parametrize(
    ("fields", "timeout"),
    [
        ("completionPolicy: {activeDeadlineSeconds: 30}", 30),
        ("pullPolicy: {timeoutSeconds: 600}, completionPolicy: {activeDeadlineSeconds: 30}", 30),
        ("pullPolicy: {timeoutSeconds: 5}, completionPolicy: {activeDeadlineSeconds: 3000}", 20),
    ],
)
def test_the_shorter_deadline_counts(fields: str, timeout: float) -> None:
    text = f"{{apiVersion: apps.kruise.io/v1beta1, kind: ImagePullJob, spec: {{image: a, {fields}}}}}"
    (request,), _ = parse(text)
    assert request.timeout_seconds == timeout


def one(field: str) -> str:
    return f"apiVersion: apps.kruise.io/v1beta1\nkind: ImagePullJob\nspec:\n  image: a\n  {field}\n"


def test_lists_of_objects() -> None:
    item = "{apiVersion: apps.kruise.io/v1beta1, kind: ImagePullJob, spec: {image: %s}}"
    for kind in ("List", "ImagePullJobList", "ImageListPullJobList"):
        requests, warnings = parse(f"kind: {kind}\nitems:\n- {item % 'a'}\n- {item % 'b'}\nextra: 1\n")
        assert [request.images for request in requests] == [["a"], ["b"]]
        assert warnings == [f"jobs.yaml:5: {kind}: extra is unknown and has no effect"]


def test_null_is_the_same_as_missing() -> None:
    (request,), warnings = parse(one("selector: null\n  pullPolicy:\n  imagePullPolicy: ~\n  pullSecrets: []"))
    assert request == WarmRequest(images=["a"])
    assert warnings == []


WRONG = [
    (one("imagePullPolicy: Never"), "5:20: spec.imagePullPolicy is 'Never', not IfNotPresent or Always"),
    (one("imagePullPolicy: yes"), "5:20: spec.imagePullPolicy must be text, not true or false"),
    (one("pullPolicy: 3"), "5:15: spec.pullPolicy must be a map, not a whole number"),
    (one("pullPolicy: {timeoutSeconds: 1.5}"), "5:32: spec.pullPolicy.timeoutSeconds must be a whole number"),
    (one("pullPolicy: {timeoutSeconds: true}"), "5:32: spec.pullPolicy.timeoutSeconds must be a whole number"),
    (one("pullPolicy: {timeoutSeconds: '5'}"), "5:32: spec.pullPolicy.timeoutSeconds must be a whole number, not text"),
    (one("pullPolicy: {timeoutSeconds: 0}"), "5:32: spec.pullPolicy.timeoutSeconds is 0, less than 1"),
    (one("pullPolicy: {backoffLimit: -1}"), "5:30: spec.pullPolicy.backoffLimit is -1, less than 0"),
    (
        one("completionPolicy: {type: Sometimes}"),
        "5:28: spec.completionPolicy.type is 'Sometimes', not Always",
    ),
    (one("selector: [a]"), "5:13: spec.selector must be a map, not a list"),
    (one("parallelism: [1]"), "5:16: spec.parallelism must be a whole number, not a list"),
    (one("pullSecrets: {a: b}"), "5:16: spec.pullSecrets must be a list, not a map"),
    (one("pullSecrets: [{name: regcred}]"), "5:17: spec.pullSecrets[0] must be text, not a map"),
    (one("image: b"), "5:3: the key 'image' is there twice, first in line 4"),
    (one("pullPolicy: !!python/object:os.system {}"), "the tag tag:yaml.org,2002:python/object:os.system"),
    (one("image2: !secret x"), "5:11: the tag !secret is not supported"),
    (one("<<: {a: b}"), "5:3: merge keys"),
    (one("? [a]\n  : b"), "a key must be plain text"),
    ("kind: Deployment\n", "1:7: kind is 'Deployment'; only ImagePullJob and ImageListPullJob can be warmed"),
    ("apiVersion: v1\nkind: ImagePullJob\n", "1:13: apiVersion is 'v1', not apps.kruise.io/v1alpha1 or"),
    ("kind: ImagePullJob\n", "1:1: apiVersion is missing"),
    ("apiVersion: apps.kruise.io/v1beta1\nkind: ImagePullJob\n", "1:1: spec is missing"),
    ("apiVersion: apps.kruise.io/v1beta1\nkind: ImagePullJob\nspec: {}\n", "3:7: spec.image is missing"),
    ("apiVersion: apps.kruise.io/v1beta1\nkind: ImagePullJob\nspec: {image: ' '}\n", "spec.image is empty"),
    ("apiVersion: apps.kruise.io/v1beta1\nkind: ImageListPullJob\nspec: {images: []}\n", "spec.images is empty"),
    (
        "apiVersion: apps.kruise.io/v1beta1\nkind: ImageListPullJob\nspec: {images: [a, 5]}\n",
        "3:20: spec.images[1]",
    ),
    (
        "apiVersion: apps.kruise.io/v1beta1\nkind: ImageListPullJob\nspec: {images: a}\n",
        "spec.images must be a list",
    ),
    ("metadata: {name: x}\n", "1:1: kind is missing"),
    ("---\n- a\n- b\n", "2:1: the document must be a map, not a list"),
    ("---\njust text\n", "2:1: the document must be a map, not text"),
    ("kind: ImagePullJob\n bad: indent\n", "2:5: mapping values are not allowed"),
    ("kind: 'open\n", "found unexpected end of stream"),
    ("kind: [a, b\nfoo: c\n", "2:4: did not find expected"),
    ("kind: *nowhere\n", "1:7: found undefined alias"),
    ("kind: \x01\n", "jobs.yaml"),
    ("---\n---\n", "names no images"),
    ("kind: List\nitems: []\n", "names no images"),
    ("kind: List\nitems: &a\n- *a\n", "nested more than 50 levels deep"),
    ("a: &a {b: *a}\n", "nested more than 50 levels deep"),
    ("a: 1" + "0" * 5000 + "\n", "cannot be read"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_faults_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert str(caught.value).startswith("jobs.yaml")
    assert message in str(caught.value)


def test_a_bomb_of_aliases() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    with pytest.raises(ManifestError, match="more than 200000 values"):
        parse("\n".join(lines))


@pytest.mark.parametrize("text", ["a: " + "[" * 100_000, "{a: " * 60 + "}" * 60, "a: " + "[" * 51 + "]" * 51])
def test_deep_nesting(text: str) -> None:
    with pytest.raises(ManifestError, match=r"nested more than 50 levels deep|maximum nesting depth"):
        parse(text)


def test_aliases_within_reason_are_fine() -> None:
    text = "apiVersion: apps.kruise.io/v1beta1\nkind: ImageListPullJob\nspec:\n  images: [&i nginx, *i]\n"
    (request,), _ = parse(text)
    assert request.images == ["nginx", "nginx"]


def test_size_limit() -> None:
    with pytest.raises(ManifestError, match="larger than 4 MiB"):
        parse("x" * (4 * 1024 * 1024 + 1))
    with pytest.raises(ManifestError, match="larger than 4 MiB"):
        parse("# é\n" + "ä" * (2 * 1024 * 1024))


# ---------------------------------------------------------------------------------------------- plain lists


def test_plain_list() -> None:
    text = (
        "\ufeff# base\n\nnginx:1.27   # web\r\n  localhost:5000/a/b@sha256:abc\n\t\nregistry:5000/x:y#not-a-comment\n"
    )
    requests, warnings = parse(text)
    assert requests == [
        WarmRequest(images=["nginx:1.27", "localhost:5000/a/b@sha256:abc", "registry:5000/x:y#not-a-comment"])
    ]
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nginx\nbusybox latest\n", "jobs.yaml:2: one reference a line, and 'busybox latest' has spaces"),
        ("nginx\n- busybox\n", "jobs.yaml:2: write one reference a line, without a dash"),
        ("- nginx\n", "jobs.yaml:1: write one reference a line, without a dash"),
        ("ngi\x07nx\n", "jobs.yaml:1: 'ngi\\x07nx' has characters that no reference has"),
        ("", "jobs.yaml: the file names no images"),
        ("# nothing\n\n", "jobs.yaml: the file names no images"),
    ],
)
def test_faulty_lists(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert str(caught.value).startswith(message)


def test_what_is_not_text() -> None:
    with pytest.raises(ManifestError, match=r"jobs\.yaml:2: this is not UTF-8 text"):
        parse_manifest(b"nginx\n\xff\xfe\n", "jobs.yaml")


@given(
    st.lists(st.from_regex(r"[a-z0-9]+(:[0-9]{2,4}/[a-z]+)?(:[a-z0-9.]+)?", fullmatch=True), min_size=1, max_size=20)
)
def test_every_list_of_references_is_read_back(references: list[str]) -> None:
    (request,), _ = parse("\n".join(references))
    assert request.images == references


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with suppress(ManifestError):
        assert parse_manifest(text.encode("utf-8", "replace"), "f").requests


@given(st.text(alphabet="abk:-[]{}&*!'\"#|>% \n", max_size=60))
def test_any_yaml_like_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(b"kind: ImagePullJob\n" + text.encode(), "f")


def test_files_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "images.txt"
    file.write_text("nginx\n")
    assert read_manifest(str(file)).requests[0].images == ["nginx"]
    with pytest.raises(ManifestError, match=r"missing\.txt: No such file"):
        read_manifest(str(tmp_path / "missing.txt"))
    with pytest.raises(ManifestError, match="Is a directory"):
        read_manifest(str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"busybox\nno way\n")))
    with pytest.raises(ManifestError, match="<stdin>:2"):
        read_manifest("-")
