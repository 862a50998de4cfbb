"""Which proxy is used, as Go's net/http says."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stokerd.registry.proxies import proxy_for

PROXIES = {"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "p:2"}


def test_the_scheme_decides() -> None:
    assert proxy_for("http://quay.io/x", PROXIES) == "http://p:1"
    assert proxy_for("https://quay.io/x", PROXIES) == "http://p:2"
    assert proxy_for("https://quay.io/x", {"https_proxy": "http://low", "ALL_PROXY": "http://all"}) == "http://low"
    assert proxy_for("https://quay.io/x", {"HTTP_PROXY": "http://p:1"}) is None
    assert proxy_for("https://quay.io/x", {}) is None


@pytest.mark.parametrize("host", ["localhost", "localhost:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:5000"])
def test_loopback_is_asked_directly(host: str) -> None:
    assert proxy_for(f"http://{host}/x", PROXIES) is None


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("*", "quay.io", True),
        ("quay.io", "quay.io", True),
        ("quay.io", "a.quay.io", True),
        ("quay.io", "aquay.io", False),
        (".quay.io", "a.quay.io", True),
        (".quay.io", "quay.io", False),
        ("*.quay.io", "a.quay.io", True),
        ("a, QUAY.io ,b", "quay.io", True),
        ("quay.io:443", "quay.io", True),
        ("quay.io:5000", "quay.io", False),
        ("quay.io:5000", "quay.io:5000", True),
        ("10.0.0.0/8", "10.1.2.3:5000", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.1.2.3", "10.1.2.3", True),
        ("fd00::/8", "[fd00::1]:5000", True),
        ("[fd00::1]:5000", "[fd00::1]:5000", True),
        ("fd00::/8", "10.1.2.3", False),
        ("10.0.0.0/8", "quay.io", False),
        ("", "quay.io", False),
        (",,", "quay.io", False),
    ],
)
def test_exceptions(no_proxy: str, host: str, direct: bool) -> None:
    assert (proxy_for(f"https://{host}/x", {**PROXIES, "NO_PROXY": no_proxy}) is None) is direct


@given(st.text())
@example(":²")
@example(":" + "9" * 5000)
def test_no_setting_raises(text: str) -> None:
    proxy_for("https://quay.io/x", {**PROXIES, "NO_PROXY": text})
