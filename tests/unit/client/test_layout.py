"""The lines of the live picture, as they are on terminals of several sizes."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from stoker.cli.layout import closing_line, finished_lines, frame, outcome, short_name, state_text, summary_line
from stoker.cli.progress import Board
from stoker.cli.text import Style, width_of
from stoker.objects.images import ItemStatus, JobEvent, JobStatus
from tests.unit.api.fakes import GIB, MIB, NOW, failed, pulling, succeeded, waiting

PLAIN = Style()
ASCII = Style(unicode=False)
LONG = "registry.example.com/platform/ml/training-base:v2026.03.01-cuda12"


def board_of(*items: ItemStatus, at: float = 100.0) -> Board:
    board = Board(0.0)
    board.apply(JobEvent(job=JobStatus(id="j1", state="Active", items=list(items))), at)
    return board


def busy() -> Board:
    """Twelve images in every state; at second 10 the first two have been loading at 20 MiB/s for ten seconds."""
    board = Board(0.0)
    retry = replace(
        pulling("flaky", 0, 0), phase="Waiting", reason="ConnectionReset", next_attempt_at=NOW + timedelta(seconds=8)
    )
    rest = [
        pulling("done:3", 300 * MIB, 300 * MIB, unpacked=3),
        pulling("fresh", 0, 0),
        retry,
        *[waiting(f"w{number}") for number in range(5)],
        succeeded("s"),
        failed("f"),
    ]
    for second in range(11):
        done = second * 20 * MIB
        board.apply(
            JobEvent(
                job=JobStatus(
                    id="j1",
                    state="Active",
                    items=[pulling("nginx:1.27", done, 500 * MIB), pulling(LONG, 3 * GIB + done, 7 * GIB), *rest],
                )
            ),
            float(second),
        )
    return board


def draw(board: Board, width: int, height: int = 24, style: Style = PLAIN) -> list[str]:
    return frame(board, now=10.0, wall=NOW, width=width, height=height, style=style)


def test_eighty_columns() -> None:
    assert draw(busy(), 80) == [
        "  docker.io/library/nginx:1.27 ━━━━━────────  40%    200/500 MiB 20.0 MiB/s",
        "  registry.e…2026.03.01-cuda12 ━━━━━╸───────  46%    3.2/7.0 GiB 20.0 MiB/s",
        "  docker.io/library/done:3     ━━━━━━━━━━━━━ 100%    300/300 MiB unpacking 3/7",
        "  fresh:latest                 ─────────────   0%                no data 10s",
        "  flaky:latest                 retry in 8s: ConnectionReset",
        "2/12 images · 1 failed · 4.7/8.8 GiB · 40.0 MiB/s · 6 waiting · 10s",
    ]


def test_forty_columns() -> None:
    assert draw(busy(), 40) == [
        "  nginx:1.27          40% pulling",
        "  regist…3.01-cuda12  46% pulling",
        "  done:3             100% unpacking 3/7",
        "  fresh:latest         0% no data 10s",
        "  flaky:latest       retry in 8s",
        "2/12 images · 1 failed · 4.7/8.8 GiB",
    ]


def test_wide() -> None:
    assert draw(busy(), 110)[:3] == [
        "  docker.io/library/nginx:1.27           ━━━━━━━━╸─────────────  40%    200/500 MiB 20.0 MiB/s pulling",
        "  registry.examp…base:v2026.03.01-cuda12 ━━━━━━━━━━────────────  46%    3.2/7.0 GiB 20.0 MiB/s pulling",
        "  docker.io/library/done:3               ━━━━━━━━━━━━━━━━━━━━━━ 100%    300/300 MiB            unpacking 3/7",
    ]


def test_without_unicode() -> None:
    lines = draw(busy(), 80, style=ASCII)
    assert all(line.isascii() for line in lines)
    assert lines[0] == "  docker.io/library/nginx:1.27 #####........  40%    200/500 MiB 20.0 MiB/s"


def test_colours_take_no_room() -> None:
    painted = draw(busy(), 80, style=Style(color=True))
    assert "\x1b[36m" in painted[0]
    assert [width_of(line) for line in painted] == [width_of(line) for line in draw(busy(), 80)]


def test_no_more_lines_than_the_terminal_has_less_two() -> None:
    board = board_of(*[pulling(f"image-{number:02d}", 1, 2) for number in range(30)])
    lines = draw(board, 80, height=10)
    assert len(lines) == 8
    assert lines[-2] == "  … and 24 more"
    assert lines[-1].startswith("0/30 images")
    assert len(draw(board, 80, height=33)) == 31
    assert len(draw(board, 80, height=32)) == 30


@given(st.integers(1, 300), st.integers(1, 60))
def test_nothing_is_wider_or_higher_than_the_terminal(width: int, height: int) -> None:
    for style in (PLAIN, ASCII, Style(color=True)):
        lines = draw(busy(), width, height, style)
        assert len(lines) <= max(1, height - 2)
        for line in lines:
            assert width_of(line) <= max(1, width - 1)


@given(st.integers(25, 300))
def test_columns_stand_below_each_other(width: int) -> None:
    lines = draw(busy(), width)[:4]
    assert len({line.index("%") for line in lines}) == 1


def test_hostile_names_and_reasons_are_disarmed() -> None:
    board = board_of(
        replace(pulling("a\x1b[2J\n", 1, 2), reference="a\x1b[2J\nb"),
        replace(pulling("r", 0, 0), phase="Waiting", reason="x\x1b]0;title\x07"),
        replace(failed("f"), message="m\x1b[1A\r", hint="h\x9b2J"),
    )
    text = "".join([*draw(board, 120), *finished_lines(failed("f", message="m\x1b[1A\r", hint="h\x9b2J"), PLAIN)])
    assert not any(char < " " or "\x7f" <= char < "\xa0" for char in text)


def test_names() -> None:
    assert short_name("docker.io/library/nginx:1", 25, PLAIN) == "docker.io/library/nginx:1"
    assert short_name("docker.io/library/nginx:1", 24, PLAIN) == "nginx:1"
    assert short_name("docker.io/grafana/loki:1", 20, PLAIN) == "grafana/loki:1"
    assert short_name("docker.io/library/nginx:1", 5, PLAIN) == "n…x:1"
    assert short_name("quay.io/a/bcdef:v1", 10, PLAIN) == "qua…def:v1"


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (waiting("a"), "waiting"),
        (pulling("a", 0, 0), "resolving"),
        (pulling("a", 1, 2), "pulling"),
        (pulling("a", 2, 2, unpacked=3), "unpacking 3/7"),
        (replace(pulling("a", 0, 0), phase="Waiting"), "retry soon"),
        (replace(pulling("a", 0, 0), phase="Waiting", reason="Timeout"), "retry soon: Timeout"),
        (replace(pulling("a", 0, 0), phase="Waiting", next_attempt_at=NOW + timedelta(minutes=2)), "retry in 2m"),
        (replace(pulling("a", 0, 0), phase="Waiting", next_attempt_at=NOW - timedelta(minutes=2)), "retry soon"),
        (succeeded("a"), "succeeded"),
    ],
)
def test_states(item: ItemStatus, text: str) -> None:
    (tracked,) = board_of(item).items.values()
    assert state_text(tracked, now=100.0, wall=NOW) == text


def test_silence_is_told() -> None:
    (tracked,) = board_of(pulling("a", 1, 2)).items.values()
    assert state_text(tracked, now=109.0, wall=NOW) == "pulling"
    assert state_text(tracked, now=112.0, wall=NOW) == "no data 12s"
    (tracked,) = board_of(pulling("a", 2, 2, unpacked=1)).items.values()
    assert state_text(tracked, now=200.0, wall=NOW) == "unpacking 1/7"


def test_summary_has_the_time_left_only_when_it_can_be_known() -> None:
    board = Board(0.0)
    for second in range(11):
        item = pulling("a", second * 10 * MIB, 200 * MIB)
        board.apply(JobEvent(job=JobStatus(id="j1", state="Active", items=[item])), float(second))
    assert (
        summary_line(board, now=10.0, width=80, style=PLAIN) == "0/1 images · 100/200 MiB · 10.0 MiB/s · 10s left · 10s"
    )
    board.trouble = "there is no socket /run/stoker/stokerd.sock"
    line = summary_line(board, now=10.0, width=120, style=PLAIN)
    assert line.startswith("0/1 images · no connection: there is no socket /run/stoker/stokerd.sock · 100/200 MiB")
    assert summary_line(board, now=10.0, width=5, style=PLAIN) == "0/1…"


def test_finished_lines() -> None:
    took = replace(succeeded("nginx", 67 * MIB), finished_at=NOW + timedelta(seconds=72))
    moved = replace(took, previous_digest="sha256:0123456789abcdef", digest="sha256:other")
    assert finished_lines(took, PLAIN) == ["✓ docker.io/library/nginx:latest  pulled 67.0 MiB in 1m12s"]
    assert outcome(moved) == "pulled 67.0 MiB in 1m12s, the tag moved from sha256:0123456789ab"
    assert finished_lines(succeeded("nginx", 0, "AlreadyPresent"), ASCII) == [
        "+ docker.io/library/nginx:latest  already present"
    ]
    assert outcome(replace(took, pulled_bytes=0)) == "ready in 1m12s"
    assert finished_lines(failed("nginx", hint="look at the tag"), PLAIN) == [
        "✗ docker.io/library/nginx:latest  NotFound: no such image (3 attempts)",
        "    hint: look at the tag",
    ]
    bare = ItemStatus(image="a", reference="a", phase="Failed", attempt=1)
    assert finished_lines(bare, PLAIN) == ["✗ a  Failed: no message"]
    cancelled = ItemStatus(image="a", reference="a", phase="Cancelled")
    assert finished_lines(cancelled, PLAIN) == ["– a  cancelled"]
    assert outcome(cancelled) == "cancelled"


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([succeeded("a")], "1 image ready in 1m40s"),
        ([succeeded("a"), succeeded("b")], "2 images ready in 1m40s"),
        ([succeeded("a"), failed("b")], "1 of 2 images ready, 1 failed, after 1m40s"),
        (
            [ItemStatus(image="a", reference="a", phase="Cancelled"), failed("b"), pulling("c", 1, 2)],
            "0 of 3 images ready, 1 failed, 1 cancelled, 1 not finished, after 1m40s",
        ),
    ],
)
def test_closing_line(items: list[ItemStatus], text: str) -> None:
    assert closing_line(board_of(*items), now=100.0) == text
