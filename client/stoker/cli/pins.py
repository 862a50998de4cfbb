"""``stoker image pin``, ``unpin``, ``pins``, ``keep``, ``unkeep``, ``keeps``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stoker.cli import exits
from stoker.cli.completion import known_images
from stoker.cli.console import Console, global_options, pass_console
from stoker.cli.inputs import POLICY, PRIORITY, duration
from stoker.cli.text import clean
from stoker.units import format_age, format_size

if TYPE_CHECKING:
    from stoker.objects.images import KeepStatus, PinStatus


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="REF...", shell_complete=known_images)
@click.option("--for", "seconds", type=duration, help="How long: 24h, 7d; default: until it is unpinned.")
@global_options
@pass_console
def pin(console: Console, references: tuple[str, ...], seconds: float | None) -> int:
    """Protect images from garbage collection by the kubelet."""
    from stoker.objects.images import PinRequest

    def show(status: PinStatus) -> None:
        style = console.style()
        until = f"ends {format_age(status.expires_at, console.now)}" if status.expires_at else "until it is unpinned"
        console.say(f"{style.ok if status.verified else style.warning} {clean(status.reference)}  pinned, {until}")
        if not status.verified:
            console.warn(status.message or "the runtime does not report the image as pinned yet")

    return console.each(
        references, lambda client, image: client.pin(PinRequest(image=image, seconds=seconds or 0)), show
    )


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="REF...", shell_complete=known_images)
@global_options
@pass_console
def unpin(console: Console, references: tuple[str, ...]) -> int:
    """End pins. The images stay until something else removes them."""
    return console.each(
        references,
        lambda client, image: client.unpin(image),
        lambda status: console.say(f"{clean(status.reference)}  no longer pinned"),
    )


@click.command()
@global_options
@pass_console
def pins(console: Console) -> int:
    """List the pins."""
    found = console.call(lambda client: client.pins())
    if console.json:
        console.document(found)
        return exits.OK
    rows = [_pin_row(console, status) for status in found.pins]
    headers = ("IMAGE", "DIGEST", "SIZE", "SINCE", "ENDS", "VERIFIED")
    console.table(headers, rows, empty="nothing is pinned", right=frozenset({2}))
    if rows:
        limit = f" of at most {format_size(found.limit_bytes)}" if found.limit_bytes else ""
        console.say()
        console.say(f"{len(rows)} pinned, {format_size(found.total_bytes)}{limit}")
    return exits.OK


def _pin_row(console: Console, status: PinStatus) -> tuple[str, ...]:
    return (
        status.reference,
        status.digest.rpartition(":")[2][:12] or "-",
        format_size(status.size),
        format_age(status.created_at, console.now),
        format_age(status.expires_at, console.now) if status.expires_at else "never",
        "yes" if status.verified else f"no: {status.message}" if status.message else "no",
    )


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="REF...", shell_complete=known_images)
@click.option("--policy", type=POLICY, default="IfNotPresent", show_default=True, help="How it is warmed again.")
@click.option("--priority", type=PRIORITY, default=0, show_default=True, help="Higher goes first, -1000 to 1000.")
@global_options
@pass_console
def keep(console: Console, references: tuple[str, ...], policy: str, priority: int) -> int:
    """Warm images again whenever something removes them."""
    from stoker.objects.images import KeepRequest, PullPolicy

    chosen: PullPolicy = "Always" if policy == "Always" else "IfNotPresent"
    return console.each(
        references,
        lambda client, image: client.keep(KeepRequest(image=image, policy=chosen, priority=priority)),
        lambda status: console.say(f"{console.style().ok} {clean(status.reference)}  kept, {_presence(status)}"),
    )


def _presence(status: KeepStatus) -> str:
    return "it is here" if status.present else "it is being warmed"


@click.command()
@click.argument("references", nargs=-1, required=True, metavar="REF...", shell_complete=known_images)
@global_options
@pass_console
def unkeep(console: Console, references: tuple[str, ...]) -> int:
    """Stop warming images again. The images stay as they are."""
    return console.each(
        references,
        lambda client, image: client.unkeep(image),
        lambda status: console.say(f"{clean(status.reference)}  no longer kept"),
    )


@click.command()
@global_options
@pass_console
def keeps(console: Console) -> int:
    """List the images that are warmed again whenever they are gone."""
    found = console.call(lambda client: client.keeps())
    if console.json:
        console.document(found)
        return exits.OK
    rows = [_keep_row(console, status) for status in found]
    headers = ("IMAGE", "PRESENT", "POLICY", "PRIORITY", "SINCE", "WARMED AGAIN", "NOTE")
    console.table(headers, rows, empty="nothing is kept", right=frozenset({3, 5}))
    return exits.OK


def _keep_row(console: Console, status: KeepStatus) -> tuple[str, ...]:
    return (
        status.reference,
        "yes" if status.present else "no",
        status.policy,
        str(status.priority),
        format_age(status.created_at, console.now),
        str(status.rewarmed),
        status.message or "-",
    )
