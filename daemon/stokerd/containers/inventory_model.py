"""Pods and containers of the node as one picture: who owns a pod, and what names mean. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TypeVar

from stoker.objects.containers import Owner
from stokerd.containers.model import REQUEST_LABEL, ROLE_LABEL, Seen
from stokerd.errors import Conflict, NotFound
from stokerd.runtime.pod_types import Container, Pod

_KUBELET_LABELS = ("io.kubernetes.pod.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.uid")
_KUBELET_SOURCE = "kubernetes.io/config.source"
_CONTAINER_LABEL = "io.kubernetes.container.name"
_CONTAINER_HASH = "io.kubernetes.container.hash"
_OURS = "stoker.dev/"
_SHOWN_ID = 13
_MOST_NAMED = 8
T = TypeVar("T", Pod, Container)


def owner_of(pod: Pod, containers: Iterable[Container] = ()) -> Owner:
    """Return who looks after a pod.

    Whoever makes pods for tests over CRI often borrows the kubelet's labels, so these alone do not make it the
    kubelet's: it must also say where it has the pod from, or its containers must carry what the kubelet writes on them.
    """
    if all(pod.labels.get(label) for label in _KUBELET_LABELS):
        if _KUBELET_SOURCE in pod.annotations:
            return "kubelet"
        if any(_CONTAINER_LABEL in each.labels and _CONTAINER_HASH in each.annotations for each in containers):
            return "kubelet"
    return "stoker" if any(label.startswith(_OURS) for label in pod.labels) else "other"


def seen(container: Container) -> Seen:
    """Return a container of a listing as the planner knows it."""
    role = container.labels.get(ROLE_LABEL, "")
    return Seen(
        id=container.id,
        name=container.name,
        attempt=container.attempt,
        state=container.state,
        created_at=container.created_at.timestamp() if container.created_at is not None else 0.0,
        request=container.labels.get(REQUEST_LABEL, ""),
        role="back" if role == "back" else "new" if role == "new" else "",
    )


class Picture:
    """All pods and containers at one moment."""

    def __init__(self, pods: Iterable[Pod] = (), containers: Iterable[Container] = ()) -> None:
        self._pods = {pod.id: pod for pod in pods}
        self._containers = {each.id: each for each in containers}

    @property
    def pods(self) -> tuple[Pod, ...]:
        """All pods, by namespace and name, the newest of a name first."""
        return tuple(sorted(self._pods.values(), key=lambda pod: (pod.namespace, pod.name, -pod.attempt, pod.id)))

    @property
    def containers(self) -> tuple[Container, ...]:
        """All containers, by their pod's place and their name, the newest of a name first."""
        order = {pod.id: place for place, pod in enumerate(self.pods)}
        last = len(order)
        return tuple(
            sorted(
                self._containers.values(),
                key=lambda each: (order.get(each.pod_id, last), each.name, -each.attempt, each.id),
            )
        )

    @cached_property
    def _by_pod(self) -> dict[str, tuple[Container, ...]]:
        found: dict[str, list[Container]] = {}
        for each in self.containers:
            found.setdefault(each.pod_id, []).append(each)
        return {pod: tuple(each) for pod, each in found.items()}

    def of(self, pod_id: str) -> tuple[Container, ...]:
        return self._by_pod.get(pod_id, ())

    def pod_of(self, container: Container) -> Pod | None:
        return self._pods.get(container.pod_id)

    def owner(self, pod: Pod) -> Owner:
        return owner_of(pod, self.of(pod.id))

    def with_pod(self, pod_id: str, containers: Iterable[Container]) -> Picture:
        """Return a picture in which the pod has these containers."""
        others = (each for each in self._containers.values() if each.pod_id != pod_id)
        return Picture(self._pods.values(), (*others, *containers))

    # ------------------------------------------------------------------------------------------ names

    def find_pod(self, name: str, namespace: str = "") -> Pod:
        """Return the pod meant by a name, ``namespace/name``, uid, id or beginning of an id; NotFound, Conflict."""
        pods = [pod for pod in self.pods if namespace in {"", pod.namespace}]
        ways: tuple[Callable[[Pod], bool], ...] = (
            lambda pod: pod.id == name,
            lambda pod: f"{pod.namespace}/{pod.name}" == name,
            lambda pod: pod.uid == name,
            lambda pod: pod.name == name,
            lambda pod: pod.id.startswith(name),
        )
        found = _first(pods, ways, name)
        if not found:
            where = f" in the namespace {namespace!r}" if namespace else ""
            raise NotFound(f"there is no pod {name!r}{where} on this node", hint="`stoker pods` lists them")
        return _only(_living(found), "pod", name, lambda pod: f"{pod.namespace}/{pod.name}")

    def find_container(self, name: str) -> Container:
        """Return the container meant by ``pod/name``, ``namespace/pod/name``, a name, an id or beginning of an id."""
        pods = self._pods

        def path(each: Container) -> str:
            pod = pods.get(each.pod_id)
            return f"{pod.namespace}/{pod.name}/{each.name}" if pod is not None else each.name

        ways: tuple[Callable[[Container], bool], ...] = (
            lambda each: each.id == name,
            lambda each: path(each) == name,
            lambda each: path(each).partition("/")[2] == name,
            lambda each: each.name == name,
            lambda each: each.id.startswith(name),
        )
        found = _first(list(self.containers), ways, name)
        if not found:
            raise NotFound(f"there is no container {name!r} on this node", hint="`stoker containers` lists them")
        return _only(self._current(found, name), "container", name, path)

    def _current(self, found: list[Container], name: str) -> list[Container]:
        """Of the attempts of one container, return the one that runs, else the newest."""
        if len(found) < 2 or any(each.id == name for each in found):
            return found
        best: dict[tuple[str, str, str], Container] = {}
        for each in found:
            pod = self._pods.get(each.pod_id)
            key = (pod.namespace, pod.name, each.name) if pod is not None else (each.pod_id, "", each.name)
            now = best.get(key)
            if now is None or self._rank(each) > self._rank(now):
                best[key] = each
        return list(best.values())

    def _rank(self, container: Container) -> tuple[bool, bool, int]:
        pod = self._pods.get(container.pod_id)
        return container.state == "running", pod is not None and pod.state == "ready", container.attempt


def _first(things: Sequence[T], ways: Iterable[Callable[[T], bool]], name: str) -> list[T]:
    """Return what the first of the ways finds that finds anything."""
    if not name:
        return []
    for way in ways:
        found = [each for each in things if way(each)]
        if found:
            return found
    return []


def _living(pods: list[Pod]) -> list[Pod]:
    """Of several sandboxes return those that are ready; of the sandboxes of one pod the newest."""
    ready = [pod for pod in pods if pod.state == "ready"] or pods
    best: dict[tuple[str, str, str], Pod] = {}
    for pod in ready:
        now = best.get((pod.namespace, pod.name, pod.uid))
        if now is None or pod.attempt > now.attempt:
            best[pod.namespace, pod.name, pod.uid] = pod
    return list(best.values())


def _only(found: list[T], what: str, name: str, path: Callable[[T], str]) -> T:
    if len(found) == 1:
        return found[0]
    shown = ", ".join(f"{path(each)} ({each.id[:_SHOWN_ID]})" for each in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    raise Conflict(
        f"{name!r} may be any of {len(found)} {what}s: {shown}{more}", hint="give more of the id or the name"
    )
