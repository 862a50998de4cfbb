"""``stoker pods``, ``containers``: what runs on this node."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_pods
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.text import clean
from stoker.units import brief_duration

if TYPE_CHECKING:
    from datetime import datetime

    from stoker.objects.containers import ContainerInfo, PodInfo

ID_LENGTH = 13
"""As crictl shortens them; beginnings of ids are accepted everywhere."""


def short_id(identity: str) -> str:
    """Return the beginning of an id; ``-`` for none."""
    return clean(identity[:ID_LENGTH]) or "-"


def age(moment: datetime | None, now: datetime) -> str:
    """Return how old something is: ``3m5s``; ``-`` for what has no birthday."""
    return brief_duration((now - moment).total_seconds()) if moment else "-"


def full_name(*parts: str) -> str:
    """Return the parts of a name that are there, with slashes between."""
    return "/".join(part for part in parts if part)


def newest(containers: Iterable[ContainerInfo]) -> list[ContainerInfo]:
    """Return the last attempt of each container of a pod, in their order."""
    found: dict[tuple[str, str], ContainerInfo] = {}
    for one in containers:
        key = (one.pod_id, one.name)
        if key not in found or found[key].attempt <= one.attempt:
            found[key] = one
    return list(found.values())


@click.command()
@global_options
@pass_console
def pods(console: Console) -> int:
    """List the pods on this node."""
    found = console.call(lambda client: client.pods())
    if console.json:
        console.document(found)
        return exits.OK
    headers = ("POD", "STATE", "OWNER", "CONTAINERS", "AGE", "ID")
    rows = [_pod_row(console, pod) for pod in found]
    console.table(headers, rows, empty="there are no pods on this node", right=frozenset({3}))
    return exits.OK


def _pod_row(console: Console, pod: PodInfo) -> tuple[str, ...]:
    containers = newest(pod.containers)
    running = sum(one.phase == "Running" for one in containers)
    return (
        full_name(pod.namespace, pod.name),
        pod.phase,
        pod.owner,
        f"{running}/{len(containers)}",
        age(pod.created_at, console.now),
        short_id(pod.id),
    )


@click.command(short_help="List the containers on this node; `ps` is the same.")
@click.option("--pod", metavar="POD", help="Of this pod alone.", shell_complete=known_pods)
@click.option("-a", "--all", "every", is_flag=True, help="Former attempts that are still there as well.")
@global_options
@pass_console
def containers(console: Console, pod: str | None, every: bool) -> int:
    """List the containers on this node: of each the last attempt, whether it runs or not. `ps` is the same."""
    if pod:
        found = console.call(lambda client: client.pod(pod)).info.containers
    else:
        found = console.call(lambda client: client.containers())
    shown = found if every else newest(found)
    if console.json:
        console.document(shown)
        return exits.OK
    console.table(
        CONTAINER_HEADERS,
        [container_row(console, one) for one in sorted(shown, key=_place)],
        empty=f"the pod {clean(pod)} has no containers" if pod else "there are no containers on this node",
        right=frozenset({3}),
    )
    return exits.OK


ps = copy.copy(containers)
ps.name, ps.hidden = "ps", True


CONTAINER_HEADERS = ("CONTAINER", "POD", "STATE", "ATTEMPT", "AGE", "IMAGE", "ID")


def _place(one: ContainerInfo) -> tuple[str, str, str, int]:
    return one.namespace, one.pod, one.name, -one.attempt


def container_row(console: Console, one: ContainerInfo) -> tuple[str, ...]:
    """Return the row of a container."""
    return (
        one.name,
        full_name(one.namespace, one.pod) or short_id(one.pod_id),
        one.phase,
        str(one.attempt),
        age(one.created_at, console.now),
        image_name(one),
        short_id(one.id),
    )


def image_name(one: ContainerInfo) -> str:
    """Return a container's image as people know it; one that has an id and no name is shortened."""
    image = one.image or one.image_ref or "-"
    return image[: len("sha256:") + ID_LENGTH] if image.startswith("sha256:") else image
