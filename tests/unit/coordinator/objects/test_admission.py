"""Documents as objects: what users of OpenKruise and Volcano have is taken as it is; the rest is named."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stoker.objects.cluster_clones import Clone
from stoker.objects.cluster_images import AdvancedCronJob, ImageListPullJob, ImagePullJob
from stoker.objects.cluster_nodes import HyperNode
from stoker.objects.cluster_requests import Checkpoint, Commit, ContainerRecreateRequest
from stoker.objects.kinds import ALL, KINDS, kind_of
from stoker_coordinator.errors import Invalid
from stoker_coordinator.objects import admission, rules
from stoker_coordinator.objects.admission import Admitted

PULL_JOB = """
apiVersion: apps.kruise.io/v1alpha1
kind: ImagePullJob
metadata: {name: job-with-always, namespace: team-a, creationTimestamp: null}
spec:
  image: nginx:1.9.1
  parallelism: 10
  selector:
    matchLabels: {node-type: gpu}
    matchExpressions: [{key: zone, operator: In, values: [a, b]}]
  podSelector: null
  pullSecrets: [registry-key]
  completionPolicy: {type: Always, activeDeadlineSeconds: 1200, ttlSecondsAfterFinished: 300}
  pullPolicy: {backoffLimit: 3, timeoutSeconds: 300}
  imagePullPolicy: Always
"""
LIST_JOB = """
apiVersion: apps.kruise.io/v1beta1
kind: ImageListPullJob
metadata: {generateName: list-}
spec:
  images: [nginx:1.9.1, busybox:1.29.2, httpd:2.4.38]
  parallelism: "10%"
  podSelector: {matchLabels: {app: web}}
  completionPolicy: {type: Never}
"""
CRON_JOB = """
apiVersion: apps.kruise.io/v1beta1
kind: AdvancedCronJob
metadata: {name: nightly}
spec:
  schedule: "30 2 * * *"
  timeZone: Europe/Berlin
  startingDeadlineSeconds: 60
  concurrencyPolicy: Forbid
  paused: true
  successfulJobsHistoryLimit: 5
  failedJobsHistoryLimit: 2
  template:
    imageListPullJobTemplate:
      metadata: {labels: {from: cron}}
      spec:
        images: [nginx:1.9.1]
        completionPolicy: {type: Always, ttlSecondsAfterFinished: 600}
"""
RECREATE = """
apiVersion: apps.kruise.io/v1alpha1
kind: ContainerRecreateRequest
metadata: {name: again, namespace: web}
spec:
  podName: pod-1
  containers: [{name: app}, {name: sidecar}]
  strategy: {failurePolicy: Ignore, orderedRecreate: true, terminationGracePeriodSeconds: 30,
             unreadyGracePeriodSeconds: 3, minStartedSeconds: 10}
  activeDeadlineSeconds: 300
  ttlSecondsAfterFinished: 1800
"""
CHECKPOINT = """
apiVersion: agents.kruise.io/v1alpha1
kind: Checkpoint
metadata: {name: snap}
spec: {podName: pod-1, keepRunning: false, persistentContents: [memory, filesystem], ttlAfterFinished: 24h0m0s}
"""
COMMIT = """
apiVersion: agents.kruise.io/v1alpha1
kind: Commit
metadata: {name: image}
spec:
  podName: pod-1
  containerName: app
  image: registry.example:5000/team/app:snap
  squashLayer: true
  timeoutSeconds: 600
  ttl: 1h
  registryAuth: {secrets: [{name: push}]}
"""
CLONE = """
apiVersion: stoker.dev/v1
kind: Clone
metadata: {name: copies}
spec: {checkpoint: snap, count: 3, nodeName: node-2, trust: true, hostname: agent, env: [{name: A, value: sesame}]}
"""
HYPER_NODE = """
apiVersion: topology.volcano.sh/v1alpha1
kind: HyperNode
metadata: {name: s4}
spec:
  tier: 2
  tierName: spine
  members:
  - {type: HyperNode, selector: {exactMatch: {name: s0}}}
  - {type: Node, selector: {regexMatch: {pattern: "^node-[01]$"}}}
  - {type: Node, selector: {labelMatch: {matchLabels: {rack: r1}}}}
"""
SAMPLES: list[tuple[str, type[Any]]] = [
    (PULL_JOB, ImagePullJob),
    (LIST_JOB, ImageListPullJob),
    (CRON_JOB, AdvancedCronJob),
    (RECREATE, ContainerRecreateRequest),
    (CHECKPOINT, Checkpoint),
    (COMMIT, Commit),
    (CLONE, Clone),
    (HYPER_NODE, HyperNode),
]


def admit(text: str | dict[str, Any], namespace: str = "") -> Admitted:
    document = yaml.safe_load(text) if isinstance(text, str) else text
    kind, document = admission.identify(document)
    return admission.admit(document, kind, document["apiVersion"], namespace)


def refused(text: str | dict[str, Any]) -> tuple[str, ...]:
    with pytest.raises(Invalid) as caught:
        admit(text)
    return caught.value.problems or (caught.value.message,)


def changed(text: str, path: str, value: Any) -> dict[str, Any]:
    """The document with something else at a path."""
    document: dict[str, Any] = yaml.safe_load(text)
    *most, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    place: Any = document
    for step in most:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(("text", "kind"), SAMPLES)
def test_yaml_of_the_ecosystem_is_taken_as_it_is(text: str, kind: type[Any]) -> None:
    admitted = admit(text)

    assert isinstance(admitted.object, kind)
    assert admitted.warnings == ()


def test_what_it_says_is_what_is_kept() -> None:
    job = admit(PULL_JOB).object
    assert isinstance(job, ImagePullJob)
    assert job.spec.selector is not None
    assert job.spec.selector.match_expressions[0].values == ("a", "b")
    assert (job.spec.parallelism, job.spec.pull_policy.timeout_seconds) == (10, 300)
    assert (job.metadata.namespace, job.spec.pod_selector) == ("team-a", None)
    cron = admit(CRON_JOB).object
    assert isinstance(cron, AdvancedCronJob)
    assert cron.spec.template.image_list_pull_job_template.metadata.labels == {"from": "cron"}
    assert cron.metadata.namespace == "default"


@pytest.mark.parametrize(
    ("text", "path", "value", "problem"),
    [
        (PULL_JOB, "spec/image", None, "spec.image: is missing"),
        (PULL_JOB, "spec/image", "", "spec.image: is empty"),
        (PULL_JOB, "spec/image", "a b", "spec.image: 'a b' is no image reference"),
        (PULL_JOB, "spec/image", ["x"], "spec.image: must be text, not a list"),
        (PULL_JOB, "spec/parallelism", -1, "spec.parallelism: is -1, less than 0"),
        (PULL_JOB, "spec/parallelism", "101%", "spec.parallelism: '101%' is neither a number nor a share"),
        (PULL_JOB, "spec/parallelism", 10**30, "spec.parallelism: has a number that is too large"),
        (PULL_JOB, "spec/parallelism", 1.5, "spec.parallelism: must be a whole number or text, not a number"),
        (PULL_JOB, "spec/selector/names", ["a"], "spec.selector: has both names and labels"),
        (PULL_JOB, "spec/podSelector", {}, "spec.podSelector: and spec.selector exclude each other"),
        (
            PULL_JOB,
            "spec/selector/matchExpressions/0/values",
            [],
            "spec.selector.matchExpressions[0].values: is missing",
        ),
        (PULL_JOB, "spec/selector/matchExpressions/0/operator", "Is", "operator: is 'Is', not 'In' or 'NotIn'"),
        (PULL_JOB, "spec/completionPolicy/activeDeadlineSeconds", 200, "is 200, less than the 300 seconds"),
        (PULL_JOB, "spec/completionPolicy/type", "Never", "activeDeadlineSeconds: has no meaning for a job that never"),
        (PULL_JOB, "spec/pullPolicy", "x", "spec.pullPolicy: must be a map, not text"),
        (PULL_JOB, "metadata/name", "Job", "metadata.name: 'Job' is no name"),
        (PULL_JOB, "metadata/namespace", "a.b", "metadata.namespace: 'a.b' is no namespace"),
        (PULL_JOB, "metadata/labels", {"a b": "c"}, "metadata.labels: 'a b' is no name"),
        (PULL_JOB, "metadata/labels", {"a": "b c"}, "metadata.labels[a]: 'b c' is no label's value"),
        (PULL_JOB, "metadata/labels", {"a": 1}, "metadata.labels[...]: must be text"),
        (PULL_JOB, "metadata/creationTimestamp", "soon", ""),
        (LIST_JOB, "spec/images", [], "spec.images: is empty"),
        (LIST_JOB, "spec/images", ["a", "a"], "spec.images: has 'a' twice"),
        (LIST_JOB, "spec/images", [f"a{n}" for n in range(256)], "has 256 images, more than 255"),
        (LIST_JOB, "spec/images", "a", "spec.images: must be a list, not text"),
        (CRON_JOB, "spec/schedule", "* * *", "spec.schedule: '* * *' has 3 fields instead of five"),
        (CRON_JOB, "spec/timeZone", "Moon/Sea", "no time zone 'Moon/Sea' is known"),
        (CRON_JOB, "spec/template", {"jobTemplate": {}}, "spec.template.jobTemplate: makes pods"),
        (CRON_JOB, "spec/template/broadcastJobTemplate", {"spec": {}}, "broadcastJobTemplate: makes pods"),
        (CRON_JOB, "spec/template/imageListPullJobTemplate/spec/completionPolicy/type", "Never", "must be Always"),
        (RECREATE, "spec/containers", [], "spec.containers: is empty"),
        (RECREATE, "spec/containers/1/name", "app", "spec.containers: has 'app' twice"),
        (
            RECREATE,
            "spec/containers/0/image",
            "x",
            "spec.containers[0].image: is not a field of apps.kruise.io/v1alpha1",
        ),
        (RECREATE, "spec/activeDeadlineSeconds", 2, "spec.activeDeadlineSeconds: is 2, not a number from 3"),
        (RECREATE, "spec/strategy/failurePolicy", "Retry", "failurePolicy: is 'Retry', not 'Fail' or 'Ignore'"),
        (CHECKPOINT, "spec/podName", None, "spec.podName: is missing"),
        (CHECKPOINT, "spec/tcp", "close", "spec.tcp: is not a field of agents.kruise.io/v1alpha1"),
        (CHECKPOINT, "spec/ttlAfterFinished", "soon", "spec.ttlAfterFinished: 'soon' is not a duration"),
        (COMMIT, "spec/image", None, "spec.image: is missing"),
        (CLONE, "spec/checkpoint", None, "spec: needs exactly one of checkpoint and reference"),
        (CLONE, "spec/reference", "reg/a:1", "spec: needs exactly one of checkpoint and reference"),
        (CLONE, "spec", {"reference": "reg/a:1"}, "spec: needs like or trust"),
        (CLONE, "spec/like", "a/b/c", "spec.like: and spec.trust exclude each other"),
        (CLONE, "spec/count", 0, "spec.count: is 0, not from 1 to 1000"),
        (CLONE, "spec/selector", {"names": ["a"]}, "spec.selector: and spec.nodeName exclude each other"),
        (CLONE, "spec/hostname", "a_b", "spec.hostname: is no host name"),
        (CLONE, "spec/env/0/name", "A=B", "spec.env[0].name: is no name of a variable"),
        (CLONE, "spec/env/0/value", "[sealed]", "spec.env[0].value: is what is shown instead of the secret"),
        (CLONE, "spec/mode", "slow", "spec.mode: is 'slow', not"),
        (HYPER_NODE, "spec/members", [], "spec.members: is empty"),
        (HYPER_NODE, "spec/tier", None, "spec.tier: is missing"),
        (HYPER_NODE, "spec/tier", -1, "spec.tier: is -1"),
        (HYPER_NODE, "spec/members/0/selector", {}, "spec.members[0].selector: needs exactly one of"),
        (HYPER_NODE, "spec/members/0/type", "Rack", "spec.members[0].type: is 'Rack', not 'Node' or 'HyperNode'"),
        (HYPER_NODE, "spec/members/1/selector/regexMatch/pattern", "(", "is no regular expression"),
        (HYPER_NODE, "spec/members/1/type", "HyperNode", "members that are HyperNodes are named by exactMatch"),
        (HYPER_NODE, "spec/members/0/selector/exactMatch/name", "S0", "'S0' is no name"),
    ],
)
def test_what_is_wrong_is_refused_with_its_path(text: str, path: str, value: Any, problem: str) -> None:
    document = changed(text, path, value)
    if not problem:
        admit(document)
        return

    assert any(problem in each for each in refused(document))


@pytest.mark.parametrize(
    ("text", "path", "value", "warning"),
    [
        (PULL_JOB, "spec/sandboxConfig", {"labels": {"a": "b"}}, "spec.sandboxConfig is not honoured here"),
        (PULL_JOB, "spec/nodeSelector", {}, "spec.nodeSelector is unknown and has no effect"),
        (PULL_JOB, "metadata/managedFields", [], "metadata.managedFields is unknown and has no effect"),
        (PULL_JOB, "extra", 1, "extra is unknown and has no effect"),
        (PULL_JOB, "status", {"desired": 1}, "status is not honoured here"),
        (RECREATE, "spec/containers/0/preStop", {"exec": {}}, "spec.containers[0].preStop is not honoured here"),
        (RECREATE, "spec/strategy/typo", 1, "spec.strategy.typo is unknown"),
        (CHECKPOINT, "spec/persistentContents", ["filesystem"], "spec.persistentContents is not honoured here"),
        (HYPER_NODE, "metadata/namespace", "x", "metadata.namespace is not honoured here: a HyperNode is in none"),
    ],
)
def test_what_has_no_effect_is_named(text: str, path: str, value: Any, warning: str) -> None:
    (found,) = admit(changed(text, path, value)).warnings

    assert warning in found


def test_what_is_empty_anyway_is_not_worth_a_word() -> None:
    assert admit(changed(PULL_JOB, "spec/sandboxConfig", {})).warnings == ()
    assert admit(changed(PULL_JOB, "status", {})).warnings == ()


def test_fields_of_ours_have_a_version_of_their_own() -> None:
    ours = changed(RECREATE, "apiVersion", "stoker.dev/v1")
    ours["spec"]["containers"] = [{"name": "app", "image": "new:2", "env": [{"name": "A", "unset": True}]}]

    admitted = admit(ours)

    assert admitted.warnings == ()
    assert (
        "needs either value or unset"
        in refused({**ours, "spec": {**ours["spec"], "containers": [{"name": "app", "env": [{"name": "A"}]}]}})[0]
    )


def test_a_destination_is_ours_and_has_no_digest_yet() -> None:
    ours = changed(CHECKPOINT, "apiVersion", "stoker.dev/v1")
    spec = {**ours["spec"], "destination": "reg/saved:1", "registryAuth": {"secrets": [{"name": "push"}]}}

    assert admit({**ours, "spec": spec}).warnings == ()
    digest = "sha256:" + "0" * 64
    assert "has a digest" in refused({**ours, "spec": {**spec, "destination": f"reg/saved@{digest}"}})[0]
    assert "is not a field of" in refused(changed(CHECKPOINT, "spec/destination", "reg/saved:1"))[0]


def test_kinds_and_versions_that_are_not_there_are_named() -> None:
    assert "there is no kind 'Pod' here" in refused({"apiVersion": "v1", "kind": "Pod"})[0]
    assert "ImagePullJob has no version 'v9'" in refused({"apiVersion": "v9", "kind": "ImagePullJob"})[0]
    assert "must be there" in refused({"kind": 3})[0]


def test_many_problems_are_cut() -> None:
    document = changed(LIST_JOB, "spec/images", [" "] * 100)

    problems = refused(document)
    assert len(problems) == 21
    assert problems[-1] == "and 80 more" or problems[-1].startswith("and ")


def test_what_may_change_of_an_object() -> None:
    recreate = admit(RECREATE).object
    other = admit(changed(RECREATE, "spec/podName", "pod-2")).object
    snap = admit(CHECKPOINT).object
    longer = admit(changed(CHECKPOINT, "spec/ttlAfterFinished", "48h")).object
    stopped = admit(changed(CHECKPOINT, "spec/keepRunning", True)).object
    job = admit(PULL_JOB).object

    assert rules.changes(recreate, other) == ["spec: cannot be changed; make another request"]
    assert rules.changes(snap, longer) == []
    clone = admit(CLONE).object
    assert rules.changes(clone, admit(changed(CLONE, "spec/count", 4)).object) == [
        "spec: cannot be changed; make another request"
    ]
    assert "but for ttlAfterFinished" in rules.changes(snap, stopped)[0]
    assert rules.changes(job, admit(changed(PULL_JOB, "spec/image", "other:1")).object) == []
    assert "pullSecrets" in rules.changes(job, admit(changed(PULL_JOB, "spec/pullSecrets", [])).object)[0]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["spec", "metadata", "name", "image", "containers", "members", "a", ""]), inner
        )
    ),
    max_leaves=12,
)


@given(st.sampled_from(ALL), JSON, JSON)
def test_nothing_that_comes_does_any_harm(kind: Any, meta: Any, spec: Any) -> None:
    document = {"apiVersion": kind.version, "kind": kind.name, "metadata": meta, "spec": spec}
    with suppress(Invalid):
        admitted = admission.admit(document, kind, kind.version, "")
        assert kind_of(admitted.object) is KINDS[kind.name]
        msgspec.json.encode(admitted.object)


@given(st.sampled_from(ALL), JSON)
def test_no_patch_does_any_harm(kind: Any, patch: Any) -> None:
    if isinstance(patch, dict):
        with suppress(Invalid):
            admission.remarks_on_patch(patch, kind, kind.version)
