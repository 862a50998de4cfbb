"""What objects must be like, beyond the types of their fields, and what of them may change. Pure.

One function for each kind; each yields problems, path first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from stoker.objects.cluster_clones import Clone, CloneSpec
from stoker.objects.cluster_images import (
    AdvancedCronJob,
    ImageListPullJob,
    ImageListPullJobSpec,
    ImagePullJob,
    NodeImage,
    NodeSelector,
    PullSecret,
    PullTemplate,
)
from stoker.objects.cluster_nodes import HyperNode, MemberSelector
from stoker.objects.cluster_requests import (
    Checkpoint,
    Commit,
    ContainerRecreateRequest,
    RecreateContainer,
    RegistryAuth,
)
from stoker.objects.meta import Object
from stoker.units import parse_duration
from stoker_coordinator.objects import schedules, words

OURS = "stoker.dev/v1"
MOST_IMAGES = 255
MOST_NODE_IMAGES = 256
MOST_CLONES = 1000
_SHORTEST_DEADLINE = 3
_PRIORITY = 1000
_LONGEST_PATTERN = 1024
_HOSTNAME = re.compile(r"[A-Za-z0-9.-]{1,59}")


def common(obj: Object) -> Iterator[str]:
    """Yield what is wrong with an object's metadata."""
    meta = obj.metadata
    if meta.name or not meta.generate_name:
        yield from words.name(meta.name, "metadata.name")
    elif meta.generate_name:
        yield from words.name(f"{meta.generate_name[:247]}x", "metadata.generateName")
    yield from words.labels(meta.labels, "metadata.labels")
    yield from words.notes(meta.annotations, "metadata.annotations")
    for finalizer in meta.finalizers:
        yield from words.qualified(finalizer, "metadata.finalizers")
    yield from words.twice(meta.finalizers, "metadata.finalizers")
    for index, owner in enumerate(meta.owner_references):
        if not (owner.uid and owner.name and owner.kind):
            yield f"metadata.ownerReferences[{index}]: needs kind, name and uid"


def _template(spec: PullTemplate, path: str) -> Iterator[str]:
    if spec.selector is not None:
        yield from _node_selector(spec.selector, f"{path}.selector")
    if spec.pod_selector is not None:
        if spec.selector is not None:
            yield f"{path}.podSelector: and {path}.selector exclude each other"
        yield from words.selector(spec.pod_selector, f"{path}.podSelector")
    if spec.parallelism is not None:
        yield from words.number_or_percent(spec.parallelism, f"{path}.parallelism")
    for index, name in enumerate(spec.pull_secrets):
        yield from words.name(name, f"{path}.pullSecrets[{index}]")
    yield from words.at_least(spec.pull_policy.timeout_seconds, 1, f"{path}.pullPolicy.timeoutSeconds")
    yield from words.at_least(spec.pull_policy.backoff_limit, 0, f"{path}.pullPolicy.backoffLimit")
    if not -_PRIORITY <= spec.priority <= _PRIORITY:
        yield f"{path}.priority: is {spec.priority}, not from -{_PRIORITY} to {_PRIORITY}"
    yield from _completion(spec, f"{path}.completionPolicy")


def _node_selector(chosen: NodeSelector, path: str) -> Iterator[str]:
    if chosen.names and (chosen.match_labels or chosen.match_expressions):
        yield f"{path}: has both names and labels; only one of them can choose"
    yield from words.twice(chosen.names, f"{path}.names")
    yield from words.labels(chosen.match_labels, f"{path}.matchLabels")
    yield from words.requirements(chosen.match_expressions, f"{path}.matchExpressions")


def _completion(spec: PullTemplate, path: str) -> Iterator[str]:
    policy = spec.completion_policy
    deadline = policy.active_deadline_seconds
    yield from words.at_least(deadline, 1, f"{path}.activeDeadlineSeconds")
    yield from words.at_least(policy.ttl_seconds_after_finished, 0, f"{path}.ttlSecondsAfterFinished")
    if policy.type == "Never":
        for name, value in (
            ("activeDeadlineSeconds", deadline),
            ("ttlSecondsAfterFinished", policy.ttl_seconds_after_finished),
        ):
            if value is not None:
                yield f"{path}.{name}: has no meaning for a job that never ends (type: Never)"
    elif deadline is not None and deadline < spec.pull_policy.timeout_seconds:
        yield (
            f"{path}.activeDeadlineSeconds: is {deadline}, less than the {spec.pull_policy.timeout_seconds} seconds"
            " that one pull may take (pullPolicy.timeoutSeconds)"
        )


def _pull_job(obj: ImagePullJob) -> Iterator[str]:
    yield from words.reference(obj.spec.image, "spec.image")
    yield from _template(obj.spec, "spec")


def _images(spec: ImageListPullJobSpec, path: str) -> Iterator[str]:
    if not spec.images:
        yield f"{path}.images: is empty"
    if len(spec.images) > MOST_IMAGES:
        yield f"{path}.images: has {len(spec.images)} images, more than {MOST_IMAGES}"
    for index, image in enumerate(spec.images):
        yield from words.reference(image, f"{path}.images[{index}]")
    yield from words.twice(spec.images, f"{path}.images")
    yield from _template(spec, path)


def _list_job(obj: ImageListPullJob) -> Iterator[str]:
    yield from _images(obj.spec, "spec")


def _cron_job(obj: AdvancedCronJob) -> Iterator[str]:
    spec = obj.spec
    try:
        schedules.check(spec.schedule, spec.time_zone)
    except schedules.BadSchedule as error:
        yield f"spec.schedule: {error}"
    yield from words.at_least(spec.starting_deadline_seconds, 0, "spec.startingDeadlineSeconds")
    yield from words.at_least(spec.successful_jobs_history_limit, 0, "spec.successfulJobsHistoryLimit")
    yield from words.at_least(spec.failed_jobs_history_limit, 0, "spec.failedJobsHistoryLimit")
    path = "spec.template.imageListPullJobTemplate"
    job = spec.template.image_list_pull_job_template
    yield from words.labels(job.metadata.labels, f"{path}.metadata.labels")
    yield from words.notes(job.metadata.annotations, f"{path}.metadata.annotations")
    yield from _images(job.spec, f"{path}.spec")
    if job.spec.completion_policy.type == "Never":
        yield f"{path}.spec.completionPolicy.type: must be Always: a job that never ends would never make way"


def _recreate(obj: ContainerRecreateRequest) -> Iterator[str]:
    spec = obj.spec
    if not spec.pod_name.strip():
        yield "spec.podName: is empty"
    if spec.all and spec.containers:
        yield "spec.containers: and spec.all exclude each other"
    if not spec.all and not spec.containers:
        yield "spec.containers: is empty"
    yield from words.twice(tuple(each.name for each in spec.containers), "spec.containers")
    for index, container in enumerate(spec.containers):
        yield from _recreate_container(container, f"spec.containers[{index}]")
    rules = spec.strategy
    for name, value in (
        ("terminationGracePeriodSeconds", rules.termination_grace_period_seconds),
        ("unreadyGracePeriodSeconds", rules.unready_grace_period_seconds),
        ("minStartedSeconds", rules.min_started_seconds),
    ):
        yield from words.at_least(value, 0, f"spec.strategy.{name}")
    least = 0 if obj.api_version == OURS else _SHORTEST_DEADLINE
    yield from words.at_least(spec.active_deadline_seconds, least, "spec.activeDeadlineSeconds")
    yield from words.at_least(spec.ttl_seconds_after_finished, 0, "spec.ttlSecondsAfterFinished")


def _recreate_container(container: RecreateContainer, path: str) -> Iterator[str]:
    if not container.name.strip():
        yield f"{path}.name: is empty"
    if container.image:
        yield from words.reference(container.image, f"{path}.image")
    yield from words.twice(tuple(each.name for each in container.env), f"{path}.env")
    for index, variable in enumerate(container.env):
        place = f"{path}.env[{index}]"
        if not variable.name or "=" in variable.name or "\0" in variable.name:
            yield f"{place}.name: is no name of a variable"
        if variable.unset == (variable.value is not None):
            yield f"{place}: needs either value or unset: true"
    probe = container.probe
    if probe is None:
        return
    if bool(probe.exec) == bool(probe.tcp_port):
        yield f"{path}.probe: needs exactly one of exec and tcpPort"
    if not 0 <= probe.tcp_port <= 65535:
        yield f"{path}.probe.tcpPort: is {probe.tcp_port}, not a port"
    yield from words.at_least(probe.period_seconds, 0.01, f"{path}.probe.periodSeconds")
    yield from words.at_least(probe.timeout_seconds, 0.01, f"{path}.probe.timeoutSeconds")
    yield from words.at_least(probe.failure_threshold, 1, f"{path}.probe.failureThreshold")


def _checkpoint(obj: Checkpoint) -> Iterator[str]:
    spec = obj.spec
    if not spec.pod_name.strip():
        yield "spec.podName: is missing"
    yield from words.twice(tuple(each.name for each in spec.containers), "spec.containers")
    yield from words.at_least(spec.timeout_seconds, 0.001, "spec.timeoutSeconds")
    yield from _duration(spec.ttl_after_finished, "spec.ttlAfterFinished")
    if spec.destination:
        yield from words.reference(spec.destination, "spec.destination")
        if "@" in spec.destination:
            yield "spec.destination: has a digest, which nobody knows yet; give it a tag"
    yield from _secrets(spec.registry_auth)


def _clone(obj: Clone) -> Iterator[str]:
    spec = obj.spec
    if bool(spec.checkpoint) == bool(spec.reference):
        yield "spec: needs exactly one of checkpoint and reference"
    if spec.checkpoint:
        yield from words.name(spec.checkpoint, "spec.checkpoint")
    if spec.reference:
        yield from words.reference(spec.reference, "spec.reference")
        if not spec.like and not spec.trust:
            yield "spec: needs like or trust: what clones of a checkpoint from a registry may do"
    if spec.like and spec.trust:
        yield "spec.like: and spec.trust exclude each other"
    yield from _clone_place(spec)
    yield from _clone_details(spec)
    yield from _secrets(spec.registry_auth)


def _clone_place(spec: CloneSpec) -> Iterator[str]:
    if spec.node_name and spec.selector is not None:
        yield "spec.selector: and spec.nodeName exclude each other"
    if spec.node_name:
        yield from words.name(spec.node_name, "spec.nodeName")
    if spec.selector is not None:
        yield from _node_selector(spec.selector, "spec.selector")


def _clone_details(spec: CloneSpec) -> Iterator[str]:
    if not 1 <= spec.count <= MOST_CLONES:
        yield f"spec.count: is {spec.count}, not from 1 to {MOST_CLONES}"
    if spec.hostname and not _HOSTNAME.fullmatch(spec.hostname):
        yield "spec.hostname: is no host name of up to 59 letters, digits, hyphens and dots"
    yield from words.twice(tuple(each.name for each in spec.env), "spec.env")
    for index, variable in enumerate(spec.env):
        if not variable.name or "=" in variable.name or not variable.name.isprintable():
            yield f"spec.env[{index}].name: is no name of a variable"
        if "\0" in variable.value:
            yield f"spec.env[{index}].value: has a zero byte"


def _secrets(auth: RegistryAuth) -> Iterator[str]:
    for index, secret in enumerate(auth.secrets):
        yield from words.name(secret.name, f"spec.registryAuth.secrets[{index}].name")


def _commit(obj: Commit) -> Iterator[str]:
    spec = obj.spec
    if not spec.pod_name.strip():
        yield "spec.podName: is empty"
    yield from words.reference(spec.image, "spec.image")
    yield from words.at_least(spec.timeout_seconds, 0, "spec.timeoutSeconds")
    yield from _duration(spec.ttl, "spec.ttl")
    yield from _secrets(spec.registry_auth)


def _duration(text: str, path: str) -> Iterator[str]:
    if not text:
        return
    try:
        parse_duration(text)
    except ValueError as error:
        yield f"{path}: {error}"


def _hyper_node(obj: HyperNode) -> Iterator[str]:
    yield from words.at_least(obj.spec.tier, 0, "spec.tier")
    if len(obj.spec.tier_name) > 253:
        yield "spec.tierName: is longer than 253 characters"
    if not obj.spec.members:
        yield "spec.members: is empty"
    for index, member in enumerate(obj.spec.members):
        path = f"spec.members[{index}].selector"
        yield from _member(member.selector, path)
        if member.type != "Node" and member.selector.exact_match is None:
            yield f"{path}: members that are HyperNodes are named by exactMatch"


def _member(selector: MemberSelector, path: str) -> Iterator[str]:
    given = [each for each in (selector.exact_match, selector.regex_match, selector.label_match) if each is not None]
    if len(given) != 1:
        yield f"{path}: needs exactly one of exactMatch, regexMatch and labelMatch"
    if selector.exact_match is not None:
        yield from words.name(selector.exact_match.name, f"{path}.exactMatch.name")
    if selector.label_match is not None:
        yield from words.selector(selector.label_match, f"{path}.labelMatch")
    if selector.regex_match is not None:
        pattern = selector.regex_match.pattern
        try:
            if not pattern or len(pattern) > _LONGEST_PATTERN:
                yield f"{path}.regexMatch.pattern: must have 1 to {_LONGEST_PATTERN} characters"
            else:
                re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            yield f"{path}.regexMatch.pattern: is no regular expression: {error}"


def _node_image(obj: NodeImage) -> Iterator[str]:
    if len(obj.spec.images) > MOST_NODE_IMAGES:
        yield f"spec.images: has {len(obj.spec.images)} images, more than {MOST_NODE_IMAGES}"
    for name, entry in obj.spec.images.items():
        path = f"spec.images[{name[:100]}]"
        yield from words.reference(name, path)
        yield from words.twice(tuple(each.tag for each in entry.tags), f"{path}.tags")
        for index, tag in enumerate(entry.tags):
            if not tag.tag:
                yield f"{path}.tags[{index}].tag: is empty"


def _pull_secret(obj: PullSecret) -> Iterator[str]:
    if not obj.spec.auths:
        yield "spec.auths: is empty"
    for index, auth in enumerate(obj.spec.auths):
        path = f"spec.auths[{index}]"
        if not auth.registry.strip():
            yield f"{path}.registry: is empty"
        if not (auth.password or auth.identity_token or auth.registry_token):
            yield f"{path}: has no password, identityToken or registryToken"
    yield from words.twice(tuple(each.registry for each in obj.spec.auths), "spec.auths")


_OF_KIND: Mapping[type[Object], Callable[[Any], Iterator[str]]] = {
    ImagePullJob: _pull_job,
    ImageListPullJob: _list_job,
    AdvancedCronJob: _cron_job,
    ContainerRecreateRequest: _recreate,
    Checkpoint: _checkpoint,
    Clone: _clone,
    Commit: _commit,
    HyperNode: _hyper_node,
    NodeImage: _node_image,
    PullSecret: _pull_secret,
}


def problems(obj: Object) -> list[str]:
    """Return everything that is wrong with an object."""
    rule = _OF_KIND.get(type(obj))
    return [*common(obj), *(rule(obj) if rule is not None else ())]


def remarks(obj: Object) -> list[str]:
    """Return what an object says and Stoker does otherwise."""
    if isinstance(obj, Checkpoint) and set(obj.spec.persistent_contents) != {"memory", "filesystem"}:
        return [
            "spec.persistentContents is not honoured here: a checkpoint has memory and filesystem, from one instant"
        ]
    return []


def changes(old: Object, new: Object) -> list[str]:
    """Return what of an object may not change as it does."""
    if isinstance(old, ImagePullJob | ImageListPullJob) and isinstance(new, ImagePullJob | ImageListPullJob):
        if old.spec.pull_secrets != new.spec.pull_secrets:
            return ["spec.pullSecrets: cannot be changed; make another job"]
    elif isinstance(old, Checkpoint) and isinstance(new, Checkpoint):
        if replace(new.spec, ttl_after_finished=old.spec.ttl_after_finished) != old.spec:
            return ["spec: cannot be changed, but for ttlAfterFinished; make another checkpoint"]
    elif isinstance(old, ContainerRecreateRequest | Commit | Clone) and old.spec != new.spec:
        return ["spec: cannot be changed; make another request"]
    return []
