"""Rows of the journal as values: a table for each kind of row, its columns named like the fields."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec.structs import fields

Row = TypeVar("Row", bound=msgspec.Struct)


class Table(Generic[Row]):
    """One table. All statements are made once."""

    def __init__(self, kind: type[Row], name: str, key: str = "") -> None:
        """*key*: the columns of the primary key, with commas; a table that is only added to needs none."""
        self._kind = kind
        columns = [entry.name for entry in fields(kind)]
        self._booleans = [n for n, entry in enumerate(fields(kind)) if entry.type is bool]
        names = ", ".join(columns)
        self.insert = f"INSERT INTO {name} ({names}) VALUES ({', '.join('?' * len(columns))})"  # noqa: S608
        changes = ", ".join(f"{each} = excluded.{each}" for each in columns if each not in key.split(", "))
        # A real upsert: REPLACE would delete the row first, and with it what refers to it.
        self.upsert = f"{self.insert} ON CONFLICT ({key}) DO UPDATE SET {changes}" if key else ""
        self._select = f"SELECT {names} FROM {name}"  # noqa: S608

    def select(self, connection: sqlite3.Connection, tail: str = "", values: Sequence[Any] = ()) -> list[Row]:
        """Return rows; *tail* is what follows the table's name in SQL."""
        rows = []
        for found in connection.execute(f"{self._select} {tail}", values):
            row = list(found)
            for index in self._booleans:  # SQLite keeps them as numbers
                row[index] = bool(row[index])
            rows.append(self._kind(*row))
        return rows
