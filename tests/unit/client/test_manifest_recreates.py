"""What ``stoker apply`` reads."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.errors import ManifestError
from stoker.manifests import parse_manifest, parse_objects
from stoker.objects.containers import EnvVar, Probe, RecreateRequest, RecreateStrategy, RecreateTarget
from stoker.objects.images import WarmRequest

KRUISE = """\
apiVersion: apps.kruise.io/v1alpha1
kind: ContainerRecreateRequest
metadata:
  name: restart
  namespace: prod
  labels: {crr.apps.kruise.io/active: "true"}
spec:
  podName: web-0
  containers:
  - name: app
    preStop: {exec: {command: [a]}}
    ports: [{containerPort: 80}]
    statusContext: {containerID: "containerd://x", restartCount: 1}
  - name: sidecar
  strategy:
    failurePolicy: Ignore
    orderedRecreate: true
    forceRecreate: true
    terminationGracePeriodSeconds: 30
    unreadyGracePeriodSeconds: 3
    minStartedSeconds: 10
    frobnicate: 1
  activeDeadlineSeconds: 300
  ttlSecondsAfterFinished: 1800
  selector: {}
status:
  phase: Completed
"""

OURS = """\
apiVersion: stoker.dev/v1
kind: ContainerRecreateRequest
metadata: {generateName: update-}
spec:
  podName: web-0
  containers:
  - name: app
    image: nginx:1.28
    env:
    - {name: MODE, value: fast}
    - {name: EMPTY, value: ""}
    - {name: PADDED, value: " x "}
    - {name: OLD, unset: true}
    probe: {exec: [sh, -c, " true"], periodSeconds: 0.5, timeoutSeconds: 2, failureThreshold: 3}
  - name: sidecar
    probe: {tcpPort: 8080}
  strategy: {minStartedSeconds: 0.5}
  activeDeadlineSeconds: 1.5
"""


def parse(text: str) -> tuple[list[object], list[str]]:
    found = parse_objects(text.encode(), "f.yaml")
    return [wish.request for wish in found.wishes], list(found.warnings)


def test_a_request_as_openkruise_knows_it() -> None:
    (request,), warnings = parse(KRUISE)
    assert request == RecreateRequest(
        pod="web-0",
        name="restart",
        namespace="prod",
        containers=[RecreateTarget(name="app"), RecreateTarget(name="sidecar")],
        strategy=RecreateStrategy(
            failure_policy="Ignore",
            ordered_recreate=True,
            force_recreate=True,
            termination_grace_period_seconds=30,
            unready_grace_period_seconds=3,
            min_started_seconds=10,
        ),
        active_deadline_seconds=300,
        ttl_seconds_after_finished=1800,
    )
    label = "ContainerRecreateRequest 'restart': spec"
    assert [warning.partition(" is ")[0] for warning in warnings] == [
        f"f.yaml:11: {label}.containers[0].preStop",
        f"f.yaml:12: {label}.containers[0].ports",
        f"f.yaml:13: {label}.containers[0].statusContext",
        f"f.yaml:20: {label}.strategy.unreadyGracePeriodSeconds",
        f"f.yaml:22: {label}.strategy.frobnicate",
        f"f.yaml:25: {label}.selector",
    ]
    assert "is honoured in part: stokerd waits so long" in warnings[3]


def test_what_is_ours() -> None:
    (request,), warnings = parse(OURS)
    assert request == RecreateRequest(
        pod="web-0",
        containers=[
            RecreateTarget(
                name="app",
                image="nginx:1.28",
                env=[
                    EnvVar(name="MODE", value="fast"),
                    EnvVar(name="EMPTY", value=""),
                    EnvVar(name="PADDED", value=" x "),
                    EnvVar(name="OLD", value=None),
                ],
                probe=Probe(exec=["sh", "-c", " true"], period_seconds=0.5, timeout_seconds=2, failure_threshold=3),
            ),
            RecreateTarget(name="sidecar", probe=Probe(tcp_port=8080)),
        ],
        strategy=RecreateStrategy(min_started_seconds=0.5),
        active_deadline_seconds=1.5,
    )
    assert warnings == []


def test_json_and_several_documents() -> None:
    one = {
        "apiVersion": "stoker.dev/v1",
        "kind": "ContainerRecreateRequest",
        "metadata": {"name": "a"},
        "spec": {"podName": "p", "all": True},
    }
    assert parse(json.dumps(one))[0] == [RecreateRequest(pod="p", name="a", all=True)]
    job = "apiVersion: apps.kruise.io/v1beta1\nkind: ImagePullJob\nmetadata: {name: b}\nspec: {image: nginx}\n"
    found = parse_objects(f"# two\n---\n{json.dumps(one)}\n---\n{job}".encode(), "f.yaml")
    assert [(wish.label, wish.place) for wish in found.wishes] == [
        ("ContainerRecreateRequest 'a'", "f.yaml:3"),
        ("ImagePullJob 'b'", "f.yaml:6"),
    ]
    assert found.wishes[1].request == WarmRequest(images=["nginx"], name="b")
    for kind in ("List", "ContainerRecreateRequestList"):
        requests, _ = parse(json.dumps({"kind": kind, "items": [one, one]}))
        assert len(requests) == 2


def ours(container: str) -> str:
    return (
        "apiVersion: stoker.dev/v1\nkind: ContainerRecreateRequest\nspec:\n  podName: p\n  containers:\n"
        f"  - {{name: a, {container}}}\n"
    )


def kruise(spec: str) -> str:
    return f"apiVersion: apps.kruise.io/v1beta1\nkind: ContainerRecreateRequest\nspec: {{podName: p, {spec}}}\n"


OURS_HEAD = "apiVersion: stoker.dev/v1\nkind: ContainerRecreateRequest\n"
WRONG = [
    (kruise("containers: []"), "3:32: spec.containers is empty"),
    (kruise("strategy: {}"), "3:7: spec.containers is missing"),
    (kruise("containers: [a]"), "3:33: spec.containers[0] must be a map, not text"),
    (kruise("containers: [{}]"), "3:33: spec.containers[0].name is missing"),
    (kruise("containers: [{name: a}, {name: a}]"), "3:32: spec.containers has 'a' twice"),
    (kruise("containers: [{name: a, image: b}]"), "spec.containers[0].image is not a field of apps.kruise.io/v1beta1"),
    (kruise("containers: [{name: a, env: []}]"), "write apiVersion: stoker.dev/v1"),
    (kruise("all: true"), "spec.all is not a field of apps.kruise.io/v1beta1"),
    (
        kruise("containers: [{name: a}], activeDeadlineSeconds: 2"),
        "spec.activeDeadlineSeconds is 2, not a number from 3",
    ),
    (kruise("containers: [{name: a}], activeDeadlineSeconds: .nan"), "spec.activeDeadlineSeconds is nan"),
    (kruise("containers: [{name: a}], strategy: {orderedRecreate: 1}"), "must be true or false, not a whole number"),
    (kruise("containers: [{name: a}], strategy: {minStartedSeconds: '1'}"), "must be a number, not text"),
    (kruise("containers: [{name: a}], strategy: {failurePolicy: Retry}"), "is 'Retry', not Fail or Ignore"),
    (
        f"{OURS_HEAD}spec: {{podName: p, all: true, containers: [{{name: a}}]}}",
        "3:43: spec.containers and spec.all exclude each other",
    ),
    ("apiVersion: stoker.dev/v1\nkind: ContainerRecreateRequest\nspec: {all: true}", "3:7: spec.podName is missing"),
    ("apiVersion: stoker.dev/v2\nkind: ContainerRecreateRequest\n", "1:13: apiVersion is 'stoker.dev/v2', not apps."),
    (
        "apiVersion: stoker.dev/v1\nkind: ImagePullJob\n",
        "1:13: apiVersion is 'stoker.dev/v1', not apps.kruise.io/v1alpha1",
    ),
    (
        "kind: Pod\n",
        "1:7: kind is 'Pod'; only ContainerRecreateRequest, ImagePullJob, ImageListPullJob, Checkpoint and Commit can "
        "be applied",
    ),
    (ours("env: [{name: A}]"), "spec.containers[0].env[0].name 'A' has neither value nor unset: true"),
    (ours("env: [{name: A, value: null}]"), "'A' has neither value nor unset: true"),
    (ours("env: [{name: A, value: secret, unset: true}]"), "'A' has both value and unset"),
    (ours("env: [{name: A, value: 5}]"), "env[0].value must be text (in quotes), not a whole number"),
    (ours("env: [{name: A, valueFrom: {secretKeyRef: {}}}]"), "env[0].valueFrom is not supported: stokerd reads no"),
    (ours("env: [{name: A, vaule: secret}]"), "'A' has neither value nor unset: true"),
    (ours("env: [{name: A, value: secret, extra: 1}]"), "env[0].extra is unknown"),
    (ours("env: [{name: A=secret, value: x}]"), "env[0].name 'A' and more: a name has no = in it"),
    (ours("env: [{name: A, value: x}, {name: A, unset: true}]"), "spec.containers[0].env has 'A' twice"),
    (ours("probe: {}"), "spec.containers[0].probe needs exactly one of exec (a list of words) and tcpPort"),
    (ours("probe: {exec: [a], tcpPort: 1}"), "needs exactly one of exec"),
    (ours("probe: {exec: a}"), "probe.exec must be a list, not text"),
    (ours("probe: {tcpPort: 65536}"), "probe.tcpPort is 65536, not a port"),
    (ours("probe: {tcpPort: 80, periodSeconds: 0}"), "probe.periodSeconds is 0, not a number from 0.01"),
    (ours("probe: {tcpPort: 80, failureThreshold: 0}"), "probe.failureThreshold is 0, less than 1"),
    ("", "f.yaml: there is no object in the file"),
    ("---\n---\n", "f.yaml: there is no object in the file"),
    ("nginx:1.27\n", "1:1: the document must be a map, not text"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_faults_are_refused_with_their_place_and_no_value(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse(text)
    assert str(caught.value).startswith("f.yaml")
    assert message in str(caught.value)
    assert "secret" not in str(caught.value).replace("secretKeyRef", "")


def test_what_cannot_be_warmed() -> None:
    with pytest.raises(
        ManifestError, match="'ContainerRecreateRequest'; only ImagePullJob and ImageListPullJob can be"
    ):
        parse_manifest(KRUISE.encode(), "f.yaml")


@given(st.text(alphabet="abk:-[]{}&*!'\"#|>% \n", max_size=60))
def test_any_yaml_like_text_is_read_or_refused(text: str) -> None:
    with suppress(ManifestError):
        parse_objects(text.encode(), "f")
    with pytest.raises(ManifestError):
        parse_objects(b"kind: ContainerRecreateRequest\n" + text.encode(), "f")
