"""``Checkpoint`` and ``Commit`` objects, as ``stoker apply`` reads them."""

from __future__ import annotations

import pytest

from stoker.errors import ManifestError
from stoker.manifests import parse_objects
from stoker.objects.checkpoints import CheckpointRequest, CommitRequest

KRUISE = """\
apiVersion: agents.kruise.io/v1alpha1
kind: Checkpoint
metadata: {name: nightly, namespace: prod}
spec:
  podName: agent-0
  keepRunning: false
  persistentContents: [memory]
  ttlAfterFinished: 1h
  frobnicate: 1
---
apiVersion: agents.kruise.io/v1alpha1
kind: Commit
metadata: {name: golden, namespace: prod}
spec:
  podName: agent-0
  containerName: app
  image: registry.example/agent:v2
  squashLayer: true
  registryAuth: {secrets: [{name: a}]}
"""
OURS = """\
apiVersion: stoker.dev/v1
kind: Checkpoint
metadata: {generateName: x-}
spec:
  podName: prod/agent-0
  containers: [{name: app}, {name: tool}]
  tcp: close
  timeoutSeconds: 20
  fileLocks: false
  externalUnixSockets: true
---
apiVersion: stoker.dev/v1
kind: Commit
spec:
  podName: agent-0
  image: agent:v2
  changes: ["ENV A=b", 'CMD ["serve"]']
  author: me
  message: why
  compression: zstd
  push: true
"""


def test_objects_of_openkruise() -> None:
    found = parse_objects(KRUISE.encode(), "f.yaml")
    assert [wish.request for wish in found.wishes] == [
        CheckpointRequest(pod="prod/agent-0", name="nightly", request="checkpoint.prod.nightly", stop=True),
        CommitRequest(
            container="prod/agent-0/app",
            image="registry.example/agent:v2",
            request="commit.prod.golden",
            squash=True,
            push=True,
        ),
    ]
    assert [wish.label for wish in found.wishes] == ["Checkpoint 'nightly'", "Commit 'golden'"]
    told = "\n".join(found.warnings)
    for word in ("persistentContents", "ttlAfterFinished", "frobnicate", "registryAuth"):
        assert f"spec.{word}" in told


def test_objects_of_ours() -> None:
    found = parse_objects(OURS.encode(), "f.yaml")
    assert found.warnings == ()
    assert [wish.request for wish in found.wishes] == [
        CheckpointRequest(
            pod="prod/agent-0",
            containers=["app", "tool"],
            tcp="close",
            file_locks=False,
            external_unix_sockets=True,
            timeout_seconds=20,
        ),
        CommitRequest(
            container="agent-0",
            image="agent:v2",
            changes=["ENV A=b", 'CMD ["serve"]'],
            author="me",
            message="why",
            compression="zstd",
            push=True,
        ),
    ]


def test_running_on_is_the_default() -> None:
    (wish,) = parse_objects(b"apiVersion: stoker.dev/v1\nkind: Checkpoint\nspec: {podName: a}", "f").wishes
    assert wish.request == CheckpointRequest(pod="a")


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("podName: agent-0", "sandboxName: a", "f:5:16: spec.sandboxName is not known here"),
        ("keepRunning: false", "tcp: close", "f:6:8: spec.tcp is not a field of agents.kruise.io/v1alpha1"),
        ("keepRunning: false", "keepRunning: 3", "f:6:16: spec.keepRunning must be true or false"),
        ("image: registry.example/agent:v2", "changes: [a]", "f:15:3: spec.image is missing"),
        (
            "agents.kruise.io/v1alpha1",
            "apps.kruise.io/v1alpha1",
            "f:1:13: apiVersion is 'apps.kruise.io/v1alpha1', not",
        ),
    ],
)
def test_faults_have_their_place(old: str, new: str, fault: str) -> None:
    with pytest.raises(ManifestError) as caught:
        parse_objects(KRUISE.replace(old, new, 1).encode(), "f")
    assert str(caught.value).startswith(fault)
