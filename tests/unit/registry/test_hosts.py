"""containerd's hosts.toml: what containerd makes of it, and what a broken one is told."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.errors import ConfigError
from stokerd.registry.hosts import (
    ALL_CAPABILITIES,
    RegistryEndpoint,
    default_endpoint,
    host_directories,
    is_loopback,
    load_endpoints,
    parse_hosts,
    under_root,
)

DIRECTORY = PurePosixPath("/etc/containerd/certs.d/quay.io")


def parse(text: str, host: str = "quay.io") -> tuple[RegistryEndpoint, ...]:
    return parse_hosts(text, host, directory=DIRECTORY, source=f"{DIRECTORY}/hosts.toml")


# containerd's own test, core/remotes/docker/config/hosts_test.go, has the same cases.
EXAMPLE = """
server = "https://test-default.registry"
ca = "/etc/path/default"
[header]
  x-custom-1 = "custom header"

[host."https://mirror.registry"]
  capabilities = ["pull"]
  ca = "/etc/certs/mirror.pem"
  skip_verify = false
  [host."https://mirror.registry".header]
    x-custom-2 = ["value1", "value2"]

[host."https://mirror-bak.registry/us"]
  capabilities = ["pull"]
  skip_verify = true

[host."http://mirror.registry"]
  capabilities = ["pull"]

[host."https://test-1.registry"]
  capabilities = ["PULL", "resolve", "push", "referrers"]
  ca = ["/etc/certs/test-1-ca.pem", "special.pem"]
  client = [["/etc/certs/client.cert", "/etc/certs/client.key"],["client.pem", ""]]

[host."https://test-2.registry"]
  client = "/etc/certs/client.pem"

[host."https://test-3.registry"]
  client = ["/etc/certs/client-1.pem", "/etc/certs/client-2.pem"]

[host."https://noncompliantmirror.registry/v2/namespaceprefix"]
  capabilities = ["pull"]
  override_path = true

[host."https://noprefixnoncompliant.registry"]
  override_path = true

[host."dial-timeout.registry:5000/v2/"]
  dial_timeout = "1m3.5s"
  unknown_key = 1
"""


def test_containerds_example_is_read_as_containerd_reads_it() -> None:
    endpoints = parse(EXAMPLE)
    assert [endpoint.url for endpoint in endpoints] == [
        "https://mirror.registry/v2",
        "https://mirror-bak.registry/us/v2",
        "http://mirror.registry/v2",
        "https://test-1.registry/v2",
        "https://test-2.registry/v2",
        "https://test-3.registry/v2",
        "https://noncompliantmirror.registry/v2/namespaceprefix",
        "https://noprefixnoncompliant.registry",
        "https://dial-timeout.registry:5000/v2",
        "https://test-default.registry/v2",
    ]
    first, second, third, fourth, fifth, sixth, *_, ninth, last = endpoints
    assert first.capabilities == second.capabilities == {"pull"}
    assert first.ca == (Path("/etc/certs/mirror.pem"),)
    assert first.header == (("x-custom-2", "value1"), ("x-custom-2", "value2"))
    assert (first.skip_verify, second.skip_verify, third.skip_verify) == (False, True, False)
    assert not any(endpoint.plain_http_fallback for endpoint in endpoints)
    assert fourth.capabilities == {"pull", "resolve", "push", "referrers"}
    assert fourth.ca == (Path("/etc/certs/test-1-ca.pem"), Path(DIRECTORY / "special.pem"))
    assert fourth.client == (
        (Path("/etc/certs/client.cert"), Path("/etc/certs/client.key")),
        (Path(DIRECTORY / "client.pem"), None),
    )
    assert fifth.client == ((Path("/etc/certs/client.pem"), None),)
    assert [cert.name for cert, _ in sixth.client] == ["client-1.pem", "client-2.pem"]
    assert ninth.dial_timeout == 63.5
    assert last.capabilities == ALL_CAPABILITIES
    assert (last.ca, last.header) == ((Path("/etc/path/default"),), (("x-custom-1", "custom header"),))
    assert all(endpoint.namespace == "quay.io" for endpoint in endpoints)


def test_without_a_server_the_registry_itself_comes_last_with_the_root_settings() -> None:
    mirror, itself = parse('skip_verify = true\nca = "x.pem"\ncapabilities = ["pull"]\n[host."https://m.io"]')
    assert (mirror.host, mirror.namespace, mirror.skip_verify) == ("m.io", "quay.io", False)
    assert itself == RegistryEndpoint("https", "quay.io", skip_verify=True, ca=(Path(DIRECTORY / "x.pem"),))


def test_docker_hubs_own_server_is_no_mirror() -> None:
    hub, mirror, last = parse('[host."https://registry-1.docker.io"]\n[host."https://docker.example"]', "docker.io")
    assert (hub.namespace, mirror.namespace, last.namespace) == ("", "docker.io", "")
    assert last.url == "https://registry-1.docker.io/v2"


@pytest.mark.parametrize(
    ("table", "scheme", "fallback"),
    [
        ('[host."http://m.io:5000"]', "http", False),
        ('[host."http://m.io:5000"]\nskip_verify = true', "https", True),
        ('[host."http://m.io"]\nskip_verify = false', "https", True),
        ('[host."http://m.io:5000"]\nca = "x"', "https", True),
        ('[host."http://m.io:80"]\nskip_verify = true', "http", False),
        ('[host."https://m.io:5000"]\nskip_verify = true', "https", False),
    ],
)
def test_http_with_tls_settings_is_tried_with_tls_first(table: str, scheme: str, fallback: bool) -> None:
    endpoint = parse(table)[0]
    assert (endpoint.scheme, endpoint.plain_http_fallback) == (scheme, fallback)


# From TestHTTPFallback and ConfigureHosts of containerd.
@pytest.mark.parametrize(
    ("host", "url", "skip_verify", "fallback"),
    [
        ("docker.io", "https://registry-1.docker.io/v2", False, False),
        ("quay.io", "https://quay.io/v2", False, False),
        ("example.com:5000", "https://example.com:5000/v2", False, False),
        ("localhost", "https://localhost/v2", True, False),
        ("localhost:443", "https://localhost:443/v2", True, False),
        ("localhost:80", "http://localhost:80/v2", False, False),
        ("localhost:5000", "https://localhost:5000/v2", True, True),
        ("127.0.0.254", "https://127.0.0.254/v2", True, False),
        ("127.0.0.254:5000", "https://127.0.0.254:5000/v2", True, True),
        ("[::1]:5000", "https://[::1]:5000/v2", True, True),
        ("[2001:db8::1]:5000", "https://[2001:db8::1]:5000/v2", False, False),
    ],
)
def test_the_default_server_of_a_host(host: str, url: str, skip_verify: bool, fallback: bool) -> None:
    endpoint = default_endpoint(host)
    assert (endpoint.url, endpoint.skip_verify, endpoint.plain_http_fallback) == (url, skip_verify, fallback)
    assert endpoint.namespace == ""
    assert load_endpoints(host) == (endpoint,)


def test_a_file_for_a_loopback_registry_keeps_its_default() -> None:
    mirror, itself = parse('[host."https://m.io"]', "localhost:5000")
    assert itself == default_endpoint("localhost:5000")
    assert mirror.namespace == "localhost:5000"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('server = "https://a.io"\n\nca = [\n', "this is not TOML: "),
        ("a = 1\nb = ?", "at line 2"),
        ("server = 3", "server: this is not a string"),
        ('server = "https://me:pw@a.io"', "neither a host nor a plain http or https URL"),
        ('server = "ftp://a.io"', "neither a host"),
        ('server = "httpbin.org"', "neither a host"),
        ('[host."https://a.io:x"]', 'host."https://a.io:x": this is neither'),
        ('[host."https://[::1"]', "neither a host"),
        ('[host.""]', "has no name"),
        ("host = 3", "host: this is not a table"),
        ('[host]\n"https://a.io" = 3', 'host."https://a.io": this is not a table'),
        ('[host."https://a.io"]\ncapabilities = ["pul"]', 'host."https://a.io".capabilities: "pul" is none'),
        ('capabilities = "pull"', "capabilities: this is not a list of strings"),
        ('skip_verify = "yes"', "skip_verify: this is neither true nor false"),
        ('server = "https://a.io"\noverride_path = 1', "override_path: this is neither true nor false"),
        ("ca = 3", "ca: this is not a list"),
        ("client = 3", "client: this is neither"),
        ('client = [["a", "b", "c"]]', "client: this is neither"),
        ('dial_timeout = "3"', "dial_timeout: this is not a duration"),
        ("dial_timeout = 3", "dial_timeout: this is not a duration"),
        ("header = 3", "header: this is not a table"),
        ('[header]\n"x y" = "Hunter2"', 'header."x y": this is not a header'),
        ('[header]\nx = "Hunter2\\r\\ny"', "header"),
        ("[header]\nx = 3", "header"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"{DIRECTORY}/hosts.toml: ")
    assert "Hunter2" not in str(caught.value)
    assert "pw" not in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        parse('ca = 1\nskip_verify = 2\n[host."https://a.io"]\ncapabilities = 3')
    assert len(caught.value.problems) == 3


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers(0, 9) | st.text(alphabet='a":/.[]\\é', max_size=8).map(lambda t: t.replace('"', "")),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


def toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(toml(item) for item in value)}]"
    return str(value).lower() if isinstance(value, bool) else f"'{value}'" if isinstance(value, str) else str(value)


@given(
    st.dictionaries(
        st.sampled_from(
            ["server", "ca", "client", "header", "skip_verify", "capabilities", "override_path", "dial_timeout"]
        ),
        VALUES,
    )
)
def test_any_settings_are_read_or_refused(settings: dict[str, Any]) -> None:
    try:
        endpoints = parse("\n".join(f"{key} = {toml(value)}" for key, value in settings.items()))
    except ConfigError as error:
        assert error.problems  # noqa: PT017
        return
    assert endpoints[-1].host


def test_a_duration_has_an_end() -> None:
    assert parse(f'dial_timeout = "{"9" * 400}h"')[0].dial_timeout == 3600.0
    assert parse('dial_timeout = "1.5ms2us"')[0].dial_timeout == pytest.approx(0.001502)


def test_headers_are_not_shown() -> None:
    assert "Hunter2" not in repr(parse('[header]\nauthorization = "Basic Hunter2"'))


@pytest.mark.parametrize(
    ("host", "names"),
    [
        ("quay.io", ("quay.io", "_default")),
        ("127.0.0.1:5000", ("127.0.0.1_5000_", "127.0.0.1:5000", "_default")),
        ("[::1]:5000", ("[::1]_5000_", "[::1]:5000", "_default")),
        ("../etc", ("_default",)),
        ("..", ("_default",)),
        ("", ("_default",)),
    ],
)
def test_the_directories_of_a_host(host: str, names: tuple[str, ...]) -> None:
    assert host_directories(host) == names


def test_loopback() -> None:
    assert all(
        is_loopback(host) for host in ("localhost", "localhost:5000", "127.1.2.3:1", "[::1]", "[::1]:5000", "::1")
    )
    assert not any(is_loopback(host) for host in ("localhost.io", "128.0.0.1", "[::2]:5000", "", "127.0.0.1.io"))


# ---------------------------------------------------------------------------------------------- reading


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(host: str, config_path: str, root: Path | None = None) -> list[str]:
    return [endpoint.host for endpoint in load_endpoints(host, config_path, root)]


def test_the_first_directory_that_knows_the_host_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    paths = f"{first}:{second}:{tmp_path / 'none'}"
    assert names("quay.io:5000", paths) == ["quay.io:5000"]
    write(second / "_default/hosts.toml", '[host."https://d2"]')
    assert names("quay.io:5000", paths) == ["d2", "quay.io:5000"]
    write(first / "_default/hosts.toml", '[host."https://d1"]')
    assert names("quay.io:5000", paths) == ["d1", "quay.io:5000"]
    write(first / "quay.io:5000/hosts.toml", '[host."https://colon"]')
    assert names("quay.io:5000", paths) == ["colon", "quay.io:5000"]
    write(first / "quay.io_5000_/hosts.toml", '[host."https://under"]')
    assert names("quay.io:5000", paths) == ["under", "quay.io:5000"]
    assert names("other.io", paths) == ["d1", "other.io"]


def test_dockers_certificate_files_count_without_a_hosts_file(tmp_path: Path) -> None:
    for name in ("b.crt", "a.crt", "client.cert", "client.key", "both.cert", "other.txt"):
        write(tmp_path / "quay.io" / name)
    (endpoint,) = load_endpoints("quay.io", str(tmp_path))
    assert [path.name for path in endpoint.ca] == ["a.crt", "b.crt"]
    here = tmp_path / "quay.io"
    assert endpoint.client == ((here / "both.cert", None), (here / "client.cert", here / "client.key"))
    write(here / "hosts.toml", 'server = "https://quay.io"')
    assert load_endpoints("quay.io", str(tmp_path)) == (RegistryEndpoint("https", "quay.io"),)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "quay.io/hosts.toml"
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="Is a directory"):
        load_endpoints("quay.io", str(tmp_path))
    path.rmdir()
    path.write_bytes(b"a = 1\nb = '\xff'")
    with pytest.raises(ConfigError, match=r"hosts\.toml: .*\n.*not UTF-8 \(at line 2\)"):
        load_endpoints("quay.io", str(tmp_path))
    path.write_bytes(b"#" * (2 << 20))
    with pytest.raises(ConfigError, match="larger than"):
        load_endpoints("quay.io", str(tmp_path))
    path.write_text("server =\n")
    with pytest.raises(ConfigError, match="line 1"):
        load_endpoints("quay.io", str(tmp_path))


def test_a_node_root_holds_the_files_and_their_links(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root / "srv/registry/hosts.toml", '[host."https://m.io"]\nca = "/etc/ca.pem"\nclient = [["c.pem", "k.pem"]]')
    write(root / "srv/ca/real.pem")
    certs = root / "etc/containerd/certs.d"
    certs.mkdir(parents=True)
    (certs / "quay.io").symlink_to("/srv/registry")
    (root / "etc/ca.pem").symlink_to("../srv/ca/../../../../srv/ca/real.pem")
    mirror, itself = load_endpoints("quay.io", "/etc/containerd/certs.d", root)
    assert (mirror.host, itself.host) == ("m.io", "quay.io")
    assert mirror.ca == (root / "srv/ca/real.pem",)
    assert mirror.client == ((root / "srv/registry/c.pem", root / "srv/registry/k.pem"),)
    assert names("quay.io", "/etc/containerd/certs.d") == ["quay.io"]


def test_links_in_a_circle_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("/b")
    (tmp_path / "b").symlink_to("/a")
    assert names("quay.io", "/a", tmp_path) == ["quay.io"]
    assert under_root(tmp_path, PurePosixPath("/../../x/../y")) == tmp_path / "y"
