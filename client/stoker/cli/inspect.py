"""``stoker inspect``: one pod or container looked at closely."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_objects
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.pods import age, full_name, image_name, newest, short_id
from stoker.cli.text import Style, clean, pad, table
from stoker.errors import ClientError, DaemonUnreachable
from stoker.units import format_age

if TYPE_CHECKING:
    from datetime import datetime

    from stoker.client import Client
    from stoker.objects.containers import ContainerDetail, PodDetail

_LABEL = 13
_LONGEST_VALUE = 120


@click.command("inspect", epilog=exits.HELP, short_help="Look closely at pods and containers.")
@click.argument("names", nargs=-1, required=True, metavar="POD|CONTAINER...", shell_complete=known_objects)
@click.option("--pod", "kind", flag_value="pod", help="Only a pod is meant.")
@click.option("--container", "kind", flag_value="container", help="Only a container is meant.")
@global_options
@pass_console
def inspect(console: Console, names: tuple[str, ...], kind: str | None) -> int:
    """Show pods and containers closely; with --json everything that stokerd says of them.

    A name is NAMESPACE/POD, POD/CONTAINER, NAMESPACE/POD/CONTAINER, an id or the beginning of one. Environment
    variables are shown by name, without their values.
    """

    async def find(client: Client, name: str) -> PodDetail | ContainerDetail:
        return await _find(console, client, name, kind)

    shown = 0

    def show(found: PodDetail | ContainerDetail) -> None:
        nonlocal shown
        if shown:
            console.say()
        shown += 1
        for line in detail_lines(found, console.now, console.style()):
            console.say(line)

    return console.each(names, find, show)


async def _find(console: Console, client: Client, name: str, kind: str | None) -> PodDetail | ContainerDetail:
    """Return the pod of that name, else the container; ClientError when there is neither, or several."""
    found: list[PodDetail | ContainerDetail] = []
    refusals: list[ClientError] = []
    for wanted in (kind,) if kind else ("pod", "container"):
        try:
            found.append(await (client.pod(name) if wanted == "pod" else client.container(name)))
        except DaemonUnreachable:
            raise
        except ClientError as error:
            refusals.append(error)
    if len(found) > 1:
        console.note(f"{clean(name)} is the name of a container, too: stoker inspect --container {clean(name)}")
    if found:
        return found[0]
    several = [error for error in refusals if error.reason != "NotFound"]
    if several or kind:
        raise (several or refusals)[0]
    raise ClientError(
        "NotFound", f"there is no pod and no container {name!r}", "stoker pods and stoker ps list them", 404
    )


def detail_lines(found: PodDetail | ContainerDetail, now: datetime, style: Style) -> list[str]:
    """Return a pod or container as lines for people."""
    from stoker.objects.containers import PodDetail

    return _pod_lines(found, now, style) if isinstance(found, PodDetail) else _container_lines(found, now, style)


def _pod_lines(found: PodDetail, now: datetime, style: Style) -> list[str]:
    info = found.info
    lines = [style.paint(f"Pod {clean(full_name(info.namespace, info.name))}", "bold")]
    lines += _fields(
        ("state", [info.phase]),
        ("id", [info.id]),
        ("uid", [info.uid]),
        ("attempt", [str(info.attempt)]),
        ("owner", [info.owner]),
        ("created", [_moment(info.created_at, now)]),
        ("address", found.ips),
        ("hostname", [found.hostname]),
        ("pid", [str(found.pid or "")]),
        ("network", [found.netns]),
        ("logs", [found.log_directory]),
        ("runtime", [info.runtime_handler]),
        ("labels", _pairs(info.labels)),
        ("annotations", _pairs(info.annotations)),
    )
    if not info.containers:
        return [*lines, "  it has no containers"]
    former = len(info.containers) - len(newest(info.containers))
    rows = [
        (one.name, one.phase, str(one.attempt), age(one.created_at, now), image_name(one), short_id(one.id))
        for one in newest(info.containers)
    ]
    headers = ("CONTAINER", "STATE", "ATTEMPT", "AGE", "IMAGE", "ID")
    lines += ["", *(f"  {line}" for line in table(headers, rows, style, right=frozenset({2})))]
    if former:
        lines.append(style.paint(f"  and {former} former {'attempt' if former == 1 else 'attempts'}", "dim"))
    return lines


def _container_lines(found: ContainerDetail, now: datetime, style: Style) -> list[str]:
    from msgspec import UnsetType

    info = found.info
    state: list[str] = [info.phase]
    if not isinstance(found.exit_code, UnsetType):
        state.append(f"exit code {found.exit_code}")
    state += [text for text in (found.reason, found.message) if text]
    lines = [style.paint(f"Container {clean(full_name(info.namespace, info.pod, info.name))}", "bold")]
    return lines + _fields(
        ("state", [", ".join(state)]),
        ("id", [info.id]),
        ("pod id", [info.pod_id]),
        ("attempt", [str(info.attempt)]),
        ("owner", [info.owner]),
        ("image", [info.image]),
        ("image id", [info.image_ref if info.image_ref != info.image else ""]),
        ("created", [_moment(info.created_at, now)]),
        ("started", [_moment(found.started_at, now)]),
        ("finished", [_moment(found.finished_at, now)]),
        ("pid", [str(found.pid or "")]),
        ("command", [" ".join(_quoted(word) for word in found.command)]),
        ("environment", found.env_names),
        ("mounts", [_mount(one.container_path, one.host_path, readonly=one.readonly) for one in found.mounts]),
        ("devices", found.devices),
        ("log", [found.log_path]),
        ("labels", _pairs(info.labels)),
        ("annotations", _pairs(info.annotations)),
    )


def _fields(*fields: tuple[str, list[str]]) -> list[str]:
    """Return a line for each value that is there, with the field's name before the first one."""
    lines = []
    for name, values in fields:
        for number, value in enumerate(filter(None, values)):
            lines.append(f"  {pad('' if number else name, _LABEL)}{clean(value)}")
    return lines


def _pairs(pairs: dict[str, str]) -> list[str]:
    """Long values are left out: they are whole manifests more often than not."""
    return [
        f"{key}={value}" if len(value) <= _LONGEST_VALUE else f"{key} ({len(value)} characters, see --json)"
        for key, value in sorted(pairs.items())
    ]


def _moment(moment: datetime | None, now: datetime) -> str:
    return f"{format_age(moment, now)} ({moment.astimezone():%Y-%m-%d %H:%M:%S %z})" if moment else ""


def _mount(inside: str, outside: str, *, readonly: bool) -> str:
    return f"{inside} from {outside or 'the runtime'}" + (", read-only" if readonly else "")


def _quoted(word: str) -> str:
    """Return a word as a shell would take it, in double quotes where that reads better."""
    import shlex

    if "'" in word and not any(char in word for char in '"\\$`!'):
        return f'"{word}"'
    return shlex.quote(word)
