"""What of a changed file holds at once, and what a wrong one changes."""

from __future__ import annotations

import asyncio
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.service.notify import Notifier
from stokerd.errors import ConfigError
from stokerd.life.reload import Reloader, compare, plain
from stokerd.settings import Settings, is_live
from stokerd.settings_file import load

ALL = [(part.name, field.name) for part in fields(Settings) for field in fields(getattr(Settings(), part.name))]


class Ears(Notifier):
    """A notifier that remembers what it was told to say."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def ready(self) -> None:
        self.said.append("ready")

    def reloading(self) -> None:
        self.said.append("reloading")


def other(value: Any) -> Any:
    """Return another value of the same type."""
    if isinstance(value, Path):
        return value / "other"
    if isinstance(value, str):
        return value + "x"
    return (*value, Path("/other")) if isinstance(value, tuple) else value + 1


def changed(names: set[tuple[str, str]]) -> Settings:
    settings = Settings()
    for part, field in names:
        table = getattr(settings, part)
        settings = replace(settings, **{part: replace(table, **{field: other(getattr(table, field))})})
    return settings


@given(st.sets(st.sampled_from(ALL)))
def test_every_change_is_named_once_and_holds_or_waits_for_a_restart(names: set[tuple[str, str]]) -> None:
    held, read = Settings(), changed(names)
    change = compare(held, read)
    assert sorted((*change.applied, *change.restart_needed)) == sorted(f"{part}.{field}" for part, field in names)
    for part, field in ALL:
        live = is_live(type(getattr(held, part)), field)
        source = read if live else held
        assert getattr(getattr(change.settings, part), field) == getattr(getattr(source, part), field)
        assert (f"{part}.{field}" in change.applied) == (live and (part, field) in names)
    again = compare(change.settings, read)
    assert again.applied == ()
    assert again.restart_needed == change.restart_needed


def test_what_needs_a_restart() -> None:
    fixed = {f"{part}.{field}" for part, field in ALL if not is_live(type(getattr(Settings(), part)), field)}
    assert {"daemon.state_dir", "api.socket", "api.group", "runtime.endpoint"} <= fixed
    live = {f"{part}.{field}" for part, field in ALL} - fixed
    assert {"daemon.log_level", "images.max_parallel", "images.pin_limit", "containers.max_parallel"} <= live


def make(path: Path, text: str = "") -> tuple[Reloader, Ears, list[Settings]]:
    path.write_text(text)
    ears, got = Ears(), list[Settings]()
    reloader = Reloader(path, load(path), ears)
    reloader.add(got.append)
    return reloader, ears, got


async def test_a_reload(tmp_path: Path) -> None:
    path = tmp_path / "stokerd.toml"
    reloader, ears, got = make(path, "images.max_parallel = 3\n")
    path.write_text('images.max_parallel = 5\napi.socket = "/other"\n')
    result = await reloader.reload()
    assert result.applied == ["images.max_parallel"]
    assert result.restart_needed == ["api.socket"]
    assert [settings.images.max_parallel for settings in got] == [5]
    assert got[0].api.socket == Settings().api.socket
    assert reloader.settings == got[0]
    assert ears.said == ["reloading", "ready"]
    result = await reloader.reload()  # nothing new, but the restart is still needed
    assert (result.applied, result.restart_needed) == ([], ["api.socket"])
    assert len(got) == 1


@pytest.mark.parametrize("text", ["images.max_parallel = 0\n", "colour = 3", "images = ", "images.disk_floor = '2TiB'"])
async def test_a_wrong_file_changes_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stokerd.toml"
    reloader, ears, got = make(path, "images.max_parallel = 3\n")
    path.write_text(text + "\n")
    with pytest.raises(ConfigError):
        await reloader.reload()
    assert got == []
    assert reloader.settings.images.max_parallel == 3
    assert "error(s)" in reloader.problem
    assert ears.said == ["reloading", "ready"]
    path.write_text("images.max_parallel = 4\n")
    await reloader.reload()
    assert reloader.problem == ""
    assert got[0].images.max_parallel == 4


async def test_a_file_that_has_gone_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "stokerd.toml"
    reloader, _, got = make(path)
    path.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        await reloader.reload()
    assert got == []


async def test_reloads_run_one_after_another(tmp_path: Path) -> None:
    path = tmp_path / "stokerd.toml"
    reloader, ears, _ = make(path)
    await asyncio.gather(*(reloader.reload() for _ in range(5)))
    assert ears.said == ["reloading", "ready"] * 5


async def test_without_a_file_there_is_nothing_to_reload() -> None:
    result = await Reloader(None, Settings(), Ears()).reload()
    assert (result.applied, result.restart_needed) == ([], [])


def test_settings_as_plain_values() -> None:
    found = plain(Settings())
    assert found["daemon"]["state_dir"] == "/var/lib/stoker"
    assert found["images"]["max_parallel"] == 2
    assert found["credentials"]["docker_configs"] == ["/root/.docker/config.json", "/var/lib/kubelet/config.json"]
    assert {(part, field) for part, table in found.items() for field in table} == set(ALL)
