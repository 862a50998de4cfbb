"""``ImagePullJob`` and ``ImageListPullJob`` as requests to warm images."""

from __future__ import annotations

from stoker.manifest_fields import Fields
from stoker.objects.images import PullPolicy, WarmRequest

SINGLE, MANY = "ImagePullJob", "ImageListPullJob"
# What OpenKruise takes where a pullPolicy leaves it out.
DEFAULT_BACKOFF_LIMIT = 3

_NOT_ON_ONE_NODE = {
    "selector": "this node warms the image, whether it is selected or not",
    "podSelector": "this node warms the image, whether it has such pods or not",
    "parallelism": "it counts nodes, and this is one; stokerd's own settings limit concurrent pulls",
    "pullSecrets": "stokerd cannot read Kubernetes secrets; it uses the node's credentials and those given to `stoker`",
    "sandboxConfig": "stokerd chooses the labels and annotations of its pulls",
}


def warm_request(spec: Fields, kind: str, name: str, label: str) -> WarmRequest:
    """Return what a job's *spec* asks for; *label* names the job in warnings."""
    images = [spec.text("image")] if kind == SINGLE else spec.texts("images")
    if not images:
        spec.context.fail(spec.node("images"), "spec.images is empty")
    policy: PullPolicy = (
        "Always" if spec.choice("imagePullPolicy", "IfNotPresent", "Always") == "Always" else "IfNotPresent"
    )
    attempts, timeout = _pull_policy(spec, label)
    deadline = _completion_policy(spec, label)
    if deadline is not None:
        timeout = min(timeout, deadline) if timeout is not None else deadline
    _warn_of_cluster_fields(spec, label)
    spec.warn_unknown(label)
    return WarmRequest(images=images, name=name, policy=policy, attempts=attempts, timeout_seconds=timeout)


def _pull_policy(spec: Fields, label: str) -> tuple[int | None, float | None]:
    """Return attempts and the deadline of all of them; OpenKruise's timeout is the deadline of one."""
    policy = spec.optional_map("pullPolicy")
    if policy is None:
        return None, None
    backoff_limit = policy.optional_integer("backoffLimit", 0)
    timeout = policy.optional_integer("timeoutSeconds", 1)
    policy.warn_unknown(label)
    if backoff_limit is None and timeout is None:
        return None, None
    attempts = (DEFAULT_BACKOFF_LIMIT if backoff_limit is None else backoff_limit) + 1
    return attempts, None if timeout is None else float(timeout * attempts)


def _completion_policy(spec: Fields, label: str) -> float | None:
    policy = spec.optional_map("completionPolicy")
    if policy is None:
        return None
    if policy.choice("type", "Always", "Never") == "Never":
        policy.warn("type", label, "the job runs once; `stoker image keep` warms an image again whenever it is gone")
    deadline = policy.optional_integer("activeDeadlineSeconds", 1)
    if deadline is not None:
        policy.warn(
            "activeDeadlineSeconds", label, "it counts for each image from the start of its pull, not for the job"
        )
    if policy.optional_integer("ttlSecondsAfterFinished", 0) is not None:
        policy.warn("ttlSecondsAfterFinished", label, "stokerd forgets finished jobs by its own settings")
    policy.warn_unknown(label)
    return None if deadline is None else float(deadline)


def _warn_of_cluster_fields(spec: Fields, label: str) -> None:
    for name in ("selector", "podSelector", "sandboxConfig"):
        if spec.optional_map(name) is not None:
            spec.warn(name, label, _NOT_ON_ONE_NODE[name])
    if spec.optional_number_or_text("parallelism") is not None:
        spec.warn("parallelism", label, _NOT_ON_ONE_NODE["parallelism"])
    if spec.has("pullSecrets") and spec.texts("pullSecrets"):
        spec.warn("pullSecrets", label, _NOT_ON_ONE_NODE["pullSecrets"])
