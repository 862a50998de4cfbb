"""preStop hooks and graces out of annotations that anybody may have written."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.containers.hooks import (
    GRACE,
    PORTS,
    PRE_STOP,
    ExecHook,
    HookError,
    HttpHook,
    SleepHook,
    TcpHook,
    grace_of,
    pre_stop,
)

IP = "10.88.0.2"


def parse(handler: Any, **annotations: str) -> Any:
    return pre_stop({PRE_STOP: json.dumps(handler), **annotations}, (IP,))


def test_no_annotation_is_no_hook() -> None:
    assert pre_stop({}) is None


def test_what_kubernetes_has() -> None:
    assert parse({"exec": {"command": ["sh", "-c", "drain"]}}) == ExecHook(("sh", "-c", "drain"))
    assert parse({"sleep": {"seconds": 5}}) == SleepHook(5.0)
    assert parse({"tcpSocket": {"port": "8080"}}) == TcpHook(8080)
    assert parse({"httpGet": {"port": 80}, "exec": None}) == HttpHook(80, "/", False, ())
    full = {
        "path": "/stop?now=1",
        "port": 443,
        "scheme": "HTTPS",
        "host": IP,
        "httpHeaders": [{"name": "X", "value": "y z"}],
    }
    assert parse({"httpGet": full}) == HttpHook(443, "/stop?now=1", True, (("X", "y z"),))
    assert parse({"httpGet": {"path": "stop", "port": 1}}) == HttpHook(1, "/stop", False, ())


def test_ports_by_name() -> None:
    ports = json.dumps([{"name": "web", "containerPort": 8080}, "odd"])
    annotations = {PRE_STOP: json.dumps({"httpGet": {"port": "web"}}), PORTS: ports}
    assert pre_stop(annotations) == HttpHook(8080, "/", False, ())
    with pytest.raises(HookError, match="port"):
        pre_stop({**annotations, PORTS: "[]"})


@pytest.mark.parametrize(
    "handler",
    [
        None, [], "exec", 3, {}, {"exec": {"command": ["a"]}, "sleep": {"seconds": 1}}, {"exec": []}, {"exec": {}},
        {"exec": {"command": []}}, {"exec": {"command": "ls"}}, {"exec": {"command": [1]}},
        {"exec": {"command": ["a\0b"]}}, {"sleep": {"seconds": -1}}, {"sleep": {"seconds": True}},
        {"sleep": {"seconds": 1e9}}, {"sleep": {}}, {"tcpSocket": {"port": 0}}, {"tcpSocket": {"port": 70000}},
        {"tcpSocket": {"port": True}}, {"tcpSocket": {"port": 80, "host": "169.254.169.254"}},
        {"httpGet": {"port": 80, "host": "metadata.internal"}}, {"httpGet": {"port": 80, "path": "/a b"}},
        {"httpGet": {"port": 80, "path": "/a\r\nX: y"}}, {"httpGet": {"port": 80, "scheme": "FTP"}},
        {"httpGet": {"port": 80, "httpHeaders": "x"}}, {"httpGet": {"port": 80, "httpHeaders": [{"name": "a\nb"}]}},
        {"httpGet": {"port": 80, "httpHeaders": [{"name": "a", "value": "b\r\nc: d"}]}},
        {"httpGet": {"port": 80, "httpHeaders": [{"name": "", "value": "b"}]}}, {"grpc": {"port": 1}},
    ],
)  # fmt: skip
def test_what_is_not_sound_is_refused(handler: Any) -> None:
    with pytest.raises(HookError):
        parse(handler)


WORDS = ["exec", "httpGet", "tcpSocket", "sleep", "command", "port", "path", "seconds", "httpHeaders", "name", "value"]
LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@given(st.text(max_size=200) | VALUES.map(json.dumps))
def test_anything_is_a_hook_or_is_refused(text: str) -> None:
    with contextlib.suppress(HookError):
        assert isinstance(pre_stop({PRE_STOP: text}, (IP,)), ExecHook | HttpHook | TcpHook | SleepHook)


def test_deep_and_long_texts_are_refused() -> None:
    for text in ("[" * 60_000, '{"exec":' * 5000, "x" * 100_000):
        with pytest.raises(HookError):
            pre_stop({PRE_STOP: text})


@pytest.mark.parametrize(
    ("text", "grace"),
    [("20", 20.0), ("0", 0.0), ("", 30.0), ("-1", 30.0), ("1e3", 30.0), ("999999999", 604_800.0), ("\u0663", 30.0)],
)
def test_the_grace_of_a_pod(text: str, grace: float) -> None:
    assert grace_of({GRACE: text}, 30.0) == grace
    assert grace_of({}, 7.0) == 7.0
