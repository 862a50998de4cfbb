"""Commands of ``stoker-coordinator`` that serve nobody: tokens of the API, copies of the store."""

from __future__ import annotations

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from stoker.units import parse_duration
from stoker_coordinator.auth import ROLES, Tokens
from stoker_coordinator.configuration import Settings
from stoker_coordinator.errors import Invalid
from stoker_coordinator.store import database

# ruff: noqa: T201 - what people run by hand


def add(parser: argparse.ArgumentParser) -> None:
    """Add the commands to a parser."""
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    token = commands.add_parser("token", help="tokens for the API")
    actions = token.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = actions.add_parser("create", help="make a token and print it, this once")
    create.add_argument("name", help="whose it is, for the audit log")
    create.add_argument("--role", choices=[role for role in ROLES if role != "node"], required=True)
    create.add_argument("--lifetime", metavar="TIME", help="such as 24h or 30d; without it, until it is revoked")
    create.set_defaults(run=_create)
    listed = actions.add_parser("list", help="show all tokens, without their secrets")
    listed.set_defaults(run=_list)
    revoke = actions.add_parser("revoke", help="take a token away; it holds no more with the next request")
    revoke.add_argument("token", help="its id, or its name")
    revoke.set_defaults(run=_revoke)
    backup = commands.add_parser("backup", help="write a copy of the store, while it is in use or not")
    backup.add_argument("file", type=Path)
    backup.set_defaults(run=_backup)


def _tokens(settings: Settings) -> Tokens:
    _become_owner(settings.coordinator.state_dir)
    return Tokens(settings.coordinator.state_dir / "tokens.json")


def _become_owner(directory: Path) -> None:
    """As root, go on as the user to whom the directory belongs: what root writes the coordinator could not read."""
    if os.geteuid() != 0:
        return
    try:
        found = directory.stat()
    except FileNotFoundError:
        return  # made now, and given to the coordinator by systemd
    if found.st_uid:
        os.setgroups([])
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)


def _create(settings: Settings, arguments: argparse.Namespace) -> None:
    lifetime = None
    if arguments.lifetime is not None:
        try:
            lifetime = parse_duration(arguments.lifetime)
        except ValueError as error:
            raise Invalid(f"--lifetime: {error}") from None
    _, text = _tokens(settings).create(arguments.name, arguments.role, lifetime)
    print(text)


def _list(settings: Settings, _arguments: argparse.Namespace) -> None:
    now = datetime.now(UTC)
    rows = [("ID", "NAME", "ROLE", "CREATED", "EXPIRES")]
    for token in _tokens(settings).all():
        expires = "never" if token.expires_at is None else f"{token.expires_at:%Y-%m-%d %H:%M}"
        if token.expires_at is not None and token.expires_at <= now:
            expires += " (over)"
        rows.append((token.id, token.name, token.role, f"{token.created_at:%Y-%m-%d %H:%M}", expires))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _revoke(settings: Settings, arguments: argparse.Namespace) -> None:
    token = _tokens(settings).revoke(arguments.token)
    print(f"revoked {token.id} ({token.name}, {token.role})")


def _backup(settings: Settings, arguments: argparse.Namespace) -> None:
    directory = settings.coordinator.state_dir
    database.copy(directory, arguments.file)
    print(f"written to {arguments.file}; keep a copy of {directory / 'seal.key'} elsewhere: secrets need it")
