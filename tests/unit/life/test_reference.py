"""The reference of the settings is whole, and the one in docs/ is fresh."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from stokerd.settings import Settings
from stokerd.settings_file import parse
from stokerd.settings_reference import main, render
from tests.rig.paths import REPOSITORY

ROWS = [line.split(" | ") for line in render().splitlines() if line.startswith("| `")]


def test_the_page_in_docs_is_fresh() -> None:
    assert main(["--check", str(REPOSITORY / "docs" / "configuration.md")]) == 0


def test_a_stale_page_is_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "configuration.md"
    page.write_text(render() + "more\n")
    assert main(["--check", str(page)]) == 1
    assert "is stale" in capsys.readouterr().err
    assert main(["--wrong"]) == 2


def test_every_setting_has_its_row_with_a_default_that_can_be_read() -> None:
    names = [field.name for part in fields(Settings) for field in fields(getattr(Settings(), part.name))]
    assert [row[0].strip("| `") for row in ROWS] == names
    text, rows = "", iter(ROWS)
    for part in fields(Settings):
        text += f"[{part.name}]\n"
        for field in fields(getattr(Settings(), part.name)):
            text += f"{field.name} = {next(rows)[1].strip('`')}\n"
    assert parse(text, "x") == Settings()


def test_every_row_says_whether_a_reload_will_do() -> None:
    assert {row[3] for row in ROWS} == {"yes", "restart"}
    assert all(len(row) == 5 and row[4].strip(" |") for row in ROWS)


def test_the_example_that_is_installed_is_sound_as_it_is_and_with_its_lines_in_force() -> None:
    text = (REPOSITORY / "systemd" / "stokerd.toml").read_text()
    assert parse(text, "x") == Settings()
    lines = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    found = parse("\n".join(lines), "x")
    assert tomllib.loads("\n".join(lines))
    assert found.images == Settings().images
    assert found.credentials == Settings().credentials
