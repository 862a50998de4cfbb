from __future__ import annotations

import os

import pytest

from stoker.cli.terminal import Screen
from tests.unit.client.emulator import Emulator


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    columns_and_lines = [80, 24]
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size(columns_and_lines))
    return columns_and_lines


def test_the_block_is_redrawn_in_place_and_lines_scroll_away_above(size: list[int]) -> None:
    emulator = Emulator()
    screen = Screen(emulator.feed, 1)
    screen.draw([], ["a 10%", "b 20%", "summary"])
    assert emulator.text == "a 10%\nb 20%\nsummary"
    assert not emulator.cursor_visible
    screen.draw(["done: a"], ["b 90%", "summary, longer"])
    assert emulator.text == "done: a\nb 90%\nsummary, longer"
    screen.draw(["done: b"], ["s"])
    assert emulator.text == "done: a\ndone: b\ns"
    screen.draw(["all done"], [])
    assert emulator.text == "done: a\ndone: b\nall done"
    screen.close()
    assert emulator.cursor_visible
    assert emulator.column == 0


def test_close_leaves_the_block_and_gives_the_cursor_back(size: list[int]) -> None:
    emulator = Emulator()
    screen = Screen(emulator.feed, 1)
    screen.close()
    screen.draw([], ["a"])
    screen.close()
    screen.close()
    assert emulator.cursor_visible
    emulator.feed("$ ")
    assert emulator.text == "a\n$"


def test_lines_that_a_narrower_terminal_has_broken_are_cleared_as_well(size: list[int]) -> None:
    emulator = Emulator()
    screen = Screen(emulator.feed, 1)
    screen.draw(["above"], ["x" * 70, "y" * 30])
    size[0] = 30
    emulator.resize(30)
    screen.draw([], ["x" * 20, "y" * 20])
    assert emulator.text == f"above\n{'x' * 20}\n{'y' * 20}"
    size[0] = 100
    emulator.resize(100)
    screen.draw([], ["x" * 90])
    assert emulator.text == f"above\n{'x' * 90}"


def test_size_of_what_is_no_terminal() -> None:
    reading, writing = os.pipe()
    try:
        assert Screen(lambda text: None, writing).size() == (80, 24)
    finally:
        os.close(reading)
        os.close(writing)
