"""The rig from the command line: `python -m tests.rig up|down|shell|ctr|status|clean`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from tests.rig import bundled, cleanup, paths, records
from tests.rig.errors import RigError
from tests.rig.node import Node, NodeOptions
from tests.rig.registry import Registry, RegistryOptions

DEFAULT_NAME = "dev"


def registry_name(name: str) -> str:
    return f"{name}-registry"


def up(arguments: argparse.Namespace) -> int:
    """Start a registry and a node that outlive this command."""
    name = arguments.name
    if (paths.RUN / name / records.FILE).exists() and records.load(name).in_use:
        print(f"{name} runs already")
        return describe(name)
    cleanup.cleanup()
    with Registry(registry_name(name), options=RegistryOptions(delete=True)) as registry:
        pushed = registry.push("busybox", bundled.busybox(), tag="1")
        options = NodeOptions(network=arguments.network, disk_bytes=arguments.disk_bytes, expose=(registry.port,))
        with Node(name, arguments.suite, options=options) as node:
            node.hosts(registry.address)
            node.import_image(bundled.busybox_archive())
            registry.detach()
            node.detach()
    print(f"{pushed.reference} is in the registry, {bundled.BUSYBOX_REFERENCE} on the node")
    return describe(name)


def describe(name: str) -> int:
    record = records.load(name)
    details = record.details
    print(f"node      {name} ({details['suite']}), network {details['network']}")
    print(f"endpoint  unix://{details['endpoint']}")
    print(f"log       {details['log']}")
    if (paths.RUN / registry_name(name) / records.FILE).exists():
        address = records.load(registry_name(name)).details["address"]
        print(f"registry  {address}, at the same address inside the node")
    print(f"shell     make rig-shell NAME={name}")
    print(f"ctr       .venv/bin/python -m tests.rig ctr {name} images ls")
    print(f"stop      make rig-down NAME={name}")
    return 0


def down(arguments: argparse.Namespace) -> int:
    names = [arguments.name, registry_name(arguments.name)]
    stopped = [name for name in names if cleanup.stop(name)]
    print(f"stopped {', '.join(stopped)}" if stopped else f"there is no {arguments.name}")
    return 0 if stopped else 1


def shell(arguments: argparse.Namespace) -> int:
    return Node.attach(arguments.name).shell()


def ctr(arguments: argparse.Namespace) -> int:
    done = Node.attach(arguments.name).ctr(*arguments.words, check=False)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


def status(arguments: argparse.Namespace) -> int:
    for record, state in cleanup.status():
        print(f"{record.name:24} {record.kind:10} {state:22} owner {record.owner.pid}")
    return 0


def clean(arguments: argparse.Namespace) -> int:
    for name in cleanup.cleanup(everything=arguments.all):
        print(f"removed {name}")
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.rig", description="Real containerd nodes on this machine.")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    each = commands.add_parser("up", help="start a registry and a node and leave them running")
    each.add_argument("--name", default=DEFAULT_NAME)
    each.add_argument("--suite", default="forky")
    each.add_argument("--network", choices=["own", "host"], default="own")
    each.add_argument("--disk-bytes", type=int, default=None, help="a disk of this size for containerd's root")
    each.set_defaults(call=up)
    each = commands.add_parser("down", help="stop a node and its registry")
    each.add_argument("name", nargs="?", default=DEFAULT_NAME)
    each.set_defaults(call=down)
    each = commands.add_parser("shell", help="a shell in a node")
    each.add_argument("name", nargs="?", default=DEFAULT_NAME)
    each.set_defaults(call=shell)
    each = commands.add_parser("ctr", help="the node's ctr: ctr NAME WORD...")
    each.add_argument("name")
    each.add_argument("words", nargs=argparse.REMAINDER)
    each.set_defaults(call=ctr)
    each = commands.add_parser("status", help="list nodes and registries")
    each.set_defaults(call=status)
    each = commands.add_parser("clean", help="remove what dead runs left")
    each.add_argument("--all", action="store_true", help="what lives too")
    each.set_defaults(call=clean)
    return top


def _terminated(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    if os.geteuid() != 0:
        print("the rig needs root", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, _terminated)
    try:
        return int(arguments.call(arguments))
    except RigError as error:
        print(f"rig: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("rig: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
