from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.text import Style, clean, pad, shorten_end, shorten_middle, table, width_of

PLAIN = Style()
COLOR = Style(color=True)
ASCII = Style(unicode=False)


@pytest.mark.parametrize(
    ("text", "width"),
    [("", 0), ("abc", 3), ("é", 1), ("e\u0301", 1), ("日本", 4), ("━╸…", 3), ("\x1b[31mred\x1b[0m", 3), ("✓ 日", 4)],
)
def test_width(text: str, width: int) -> None:
    assert width_of(text) == width


def test_clean_leaves_plain_text_alone() -> None:
    assert clean("docker.io/library/nginx:1.27") == "docker.io/library/nginx:1.27"
    assert clean("größer 日本") == "größer 日本"


def test_clean_disarms_what_a_terminal_would_obey() -> None:
    assert clean("a\x1b[2Jb\x07\x9bc\u202ed\ne\tf") == "a�[2Jb��c�d e f"
    assert clean("x\udcffy") == "x�y"


@given(st.text())
def test_cleaned_text_never_controls(text: str) -> None:
    assert not any(char < " " or char == "\x7f" for char in clean(text))


def test_pad() -> None:
    assert pad("日", 4) == "日  "
    assert pad("5", 3, right=True) == "  5"
    assert pad("toolong", 3) == "toolong"


def test_shorten_middle_keeps_both_ends() -> None:
    name = "registry.example.com/team/service:v1.2.3"
    assert shorten_middle(name, 40, PLAIN) == name
    assert shorten_middle(name, 21, PLAIN) == "registry…rvice:v1.2.3"
    assert shorten_middle(name, 11, ASCII) == "regi~v1.2.3"
    assert shorten_middle("日本日本日本", 7, PLAIN) == "日…日本"
    assert [shorten_middle(name, width, PLAIN) for width in (0, 1, 2)] == ["", "…", "…3"]


def test_shorten_end() -> None:
    assert shorten_end("abcdef", 6, PLAIN) == "abcdef"
    assert shorten_end("abcdef", 4, PLAIN) == "abc…"
    assert shorten_end("abcdef", 0, PLAIN) == ""


@given(st.text(), st.integers(0, 30))
def test_shortened_text_fits(text: str, width: int) -> None:
    text = clean(text)
    assert width_of(shorten_middle(text, width, PLAIN)) <= width
    assert width_of(shorten_end(text, width, PLAIN)) <= width


def test_table_is_aligned_by_columns_on_the_screen() -> None:
    rows = [("日本:1", "5 B", "x"), ("a", "100 KiB", "a\nb\x1b[m")]
    assert table(("IMAGE", "SIZE", "NOTE"), rows, PLAIN, right=frozenset({1})) == [
        "IMAGE      SIZE  NOTE",
        "日本:1      5 B  x",
        "a       100 KiB  a b�[m",
    ]
    assert table(("A",), [("x",)], COLOR, right=frozenset())[0] == "\x1b[1mA\x1b[0m"


@given(st.floats(-1, 2), st.integers(1, 40))
def test_bars_have_their_width(share: float, width: int) -> None:
    assert width_of(PLAIN.bar(share, width)) == width
    assert width_of(COLOR.bar(share, width)) == width
    assert len(ASCII.bar(share, width)) == width


def test_bars() -> None:
    assert PLAIN.bar(0, 4) == "────"
    assert PLAIN.bar(0.4, 4) == "━╸──"
    assert PLAIN.bar(1, 4) == "━━━━"
    assert ASCII.bar(0.5, 4) == "##.."


def test_marks() -> None:
    assert PLAIN.ok + PLAIN.bad + PLAIN.warning + PLAIN.none + PLAIN.dots == "✓✗!–…"
    assert ASCII.ok + ASCII.bad + ASCII.warning + ASCII.none + ASCII.dots == "+x!-~"
    assert COLOR.ok == "\x1b[32m✓\x1b[0m"
    assert COLOR.paint("", "red") == ""
