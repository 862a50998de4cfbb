"""The program: its command line. What serves is loaded when it is wanted; the other commands are quick."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version
from pathlib import Path

from stoker_coordinator import commands, configuration
from stoker_coordinator.configuration import Settings
from stoker_coordinator.errors import ConfigError, CoordinatorError

EXIT_FAILED, EXIT_CONFIG = 1, 2


def run(argv: Sequence[str] | None = None) -> None:
    """Entry point of ``stoker-coordinator``."""
    arguments = _parser().parse_args(argv)
    try:
        settings = configuration.load(arguments.config)
        if arguments.check_config:
            print(f"stoker-coordinator: {arguments.config or 'the defaults'}: no errors")  # noqa: T201
            return
        if arguments.command is not None:
            arguments.run(settings, arguments)
            return
        _serve(settings)
    except ConfigError as error:
        print(f"stoker-coordinator: {error}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_CONFIG)
    except CoordinatorError as error:
        print(f"stoker-coordinator: {error.message}", file=sys.stderr)  # noqa: T201
        if error.hint:
            print(f"  {error.hint}", file=sys.stderr)  # noqa: T201
        sys.exit(EXIT_FAILED)


def _serve(settings: Settings) -> None:
    import asyncio
    import faulthandler

    import structlog

    from stoker import logs
    from stoker_coordinator.garbage import put_aside
    from stoker_coordinator.serving import serve

    logs.configure(settings.coordinator)
    faulthandler.enable()
    put_aside()
    try:
        asyncio.run(serve(settings, _version()))
    except CoordinatorError as error:
        log = structlog.get_logger("coordinator")
        log.error("the coordinator cannot run", reason=error.reason, why=error.message, hint=error.hint)
        sys.exit(EXIT_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stoker-coordinator",
        description="Stoker's centre: keeps what people wish for, gives nodes their work, gathers what they report.",
        epilog="Without a command it serves. Exit status: 0 done, 1 failed, 2 errors in the configuration or the"
        " command line, 3 stopped, but something hung.",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file; all settings have defaults")
    parser.add_argument("--check-config", action="store_true", help="print every error of the configuration and exit")
    parser.add_argument("--version", action="version", version=f"stoker-coordinator {_version()}")
    commands.add(parser)
    return parser


def _version() -> str:
    try:
        return installed_version("stoker")
    except PackageNotFoundError:
        return "0"


if __name__ == "__main__":
    run()
