"""Lines for people and for programs, what is kept of them, and what never is in them."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
import structlog

from stoker import logs as log
from stokerd.settings import DaemonSettings

SECRET = "s3cr3t-0f-s0m3b0dy"


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Logging belongs to the process: put it back."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    monkeypatch.setattr(log, "recent", log.Recent())
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def configured(stream: TextIO | None = None, **settings: str) -> TextIO:
    out = stream if stream is not None else io.StringIO()
    log.configure(DaemonSettings(**settings), stream=out)  # type: ignore[arg-type]
    return out


def text(stream: TextIO) -> str:
    assert isinstance(stream, io.StringIO)
    return stream.getvalue()


def test_json_where_nobody_reads() -> None:
    out = configured()
    structlog.get_logger("images").info("image is warm", image="a:1", bytes=3)
    line = json.loads(text(out))
    assert (line["event"], line["level"], line["logger"], line["image"]) == ("image is warm", "info", "images", "a:1")
    assert line["timestamp"].endswith("Z")


def test_words_on_a_terminal_and_json_in_what_is_kept() -> None:
    out = configured(Terminal())
    structlog.get_logger("images").info("image is warm", image="a:1")
    assert "image is warm" in text(out)
    assert "{" not in text(out)
    assert json.loads(log.recent.lines()[0])["image"] == "a:1"


def test_under_systemd_each_line_has_its_severity_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    with path.open("w") as stream:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        configured(stream)
        structlog.get_logger("x").warning("careful")
        structlog.get_logger("x").error("broken")
    first, second = path.read_text().splitlines()
    assert first.startswith('<4>{"')
    assert second.startswith('<3>{"')
    assert not log.recent.lines()[0].startswith("<")


@pytest.mark.parametrize("told", ["", "8:1", "nonsense", "8"])
def test_another_stream_is_not_the_journal(told: str, tmp_path: Path) -> None:
    with (tmp_path / "x").open("w") as stream:
        assert not log.goes_to_journal(stream, {"JOURNAL_STREAM": told} if told else {})
    assert not log.goes_to_journal(io.StringIO(), {"JOURNAL_STREAM": "8:1"})


def test_level_and_format_change_at_a_reload_for_loggers_that_are_there() -> None:
    out = configured()
    logger = structlog.get_logger("images")
    logger.debug("unheard")
    assert text(out) == ""
    configured(out, log_level="debug")
    logger.debug("heard")
    assert json.loads(text(out))["event"] == "heard"
    configured(out, log_level="error", log_format="console")
    logger.info("unheard")
    logger.error("words")
    assert "unheard" not in text(out)
    assert text(out).splitlines()[-1].find('"words"') == -1


def test_what_libraries_log_becomes_a_line_of_ours() -> None:
    out = configured()
    logging.getLogger("asyncio").warning("slow: %d", 3)
    logging.getLogger("aiohttp").info("unheard")
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("asyncio").exception("it broke")
    first, second = map(json.loads, text(out).splitlines())
    assert (first["event"], first["logger"], first["level"]) == ("slow: 3", "asyncio", "warning")
    assert "ValueError: why" in second["exception"]


def test_no_secret_is_written_or_kept() -> None:
    out = configured()
    logger = structlog.get_logger("images")
    logger.info("pulling", why=f"https://user:{SECRET}@registry/v2", problems=[f"password={SECRET}"])
    try:
        raise ValueError(f"authorization: Bearer {SECRET}")
    except ValueError:
        logger.exception("failed")
    assert SECRET not in text(out)
    assert SECRET not in "".join(log.recent.lines())


def test_what_is_kept_is_bounded_in_lines_and_in_bytes() -> None:
    kept = log.Recent(lines=3, size=100)
    for number in range(10):
        kept.add(f"line {number}")
    assert kept.lines() == ["line 7", "line 8", "line 9"]
    kept.add("ä" * 45)
    assert kept.lines() == ["line 9", "ä" * 45]
    kept.add("x" * 101)
    assert kept.lines() == []
    kept.add("after")
    assert kept.lines() == ["after"]


def test_a_log_that_cannot_be_written_stops_nothing() -> None:
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise BrokenPipeError

    configured(Broken())
    structlog.get_logger("x").error("nobody hears it")
    assert len(log.recent.lines()) == 1
