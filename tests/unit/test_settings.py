from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd import settings
from stokerd.errors import ConfigError
from stokerd.settings import Settings
from stokerd.settings_file import MAX_FILE, consistency_problems, load, parse


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "stokerd.toml")
    assert all("\n" not in line for line in caught.value.problems)
    return caught.value.problems


def problem(text: str) -> str:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


# ---------------------------------------------------------------------------------------------- the settings themselves


def test_every_field_says_what_it_is_for() -> None:
    for part in ast.parse(inspect.getsource(settings)).body:
        if not isinstance(part, ast.ClassDef) or part.name in {"Unit", "Settings"}:
            continue
        assert ast.get_docstring(part), part.name
        for field, after in zip(part.body, [*part.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                documented = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert documented, f"{part.name}.{ast.unparse(field.target)} has no docstring"


def test_the_defaults_are_sound() -> None:
    assert consistency_problems(Settings()) == []
    assert parse("", "x") == Settings()
    assert load(None) == Settings()


def written(value: object) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(str(value)) if isinstance(value, Path) else json.dumps(value)


def test_the_defaults_can_be_written_down_and_read_again() -> None:
    lines: list[str] = []
    for part in fields(Settings):
        group = getattr(Settings(), part.name)
        lines.append(f"[{part.name}]")
        lines += [f"{field.name} = {written(getattr(group, field.name))}" for field in fields(group)]
    assert parse("\n".join(lines), "x") == Settings()


def test_a_whole_file() -> None:
    found = parse(
        """
        [daemon]
        state_dir = "/data/stoker"
        log_level = "debug"
        stop_timeout = "1m"
        [api]
        group = ""
        max_body = "1MiB"
        [runtime]
        endpoint = "unix:///run/k3s/containerd/containerd.sock"
        [images]
        max_parallel = 4
        backoff_jitter = 0
        stall_timeout = "2m30s"
        disk_reserve = "10GiB"
        io_pressure_limit = 12.5
        job_ttl = 0
        [credentials]
        docker_configs = ["/a/config.json"]
        """,
        "x",
    )
    default = Settings()
    assert found == Settings(
        replace(default.daemon, state_dir=Path("/data/stoker"), log_level="debug", stop_timeout=60.0),
        replace(default.api, group="", max_body=1 << 20),
        replace(default.runtime, endpoint="unix:///run/k3s/containerd/containerd.sock"),
        replace(
            default.images,
            max_parallel=4,
            backoff_jitter=0.0,
            stall_timeout=150.0,
            disk_reserve=10 << 30,
            io_pressure_limit=12.5,
            job_ttl=0.0,
        ),
        replace(default.credentials, docker_configs=(Path("/a/config.json"),)),
    )


def test_every_value_has_the_type_that_its_field_promises() -> None:
    found = parse("[images]\nbackoff_max = 60\ndisk_floor = 1e6\nmax_parallel = 3.0\npin_limit = 7\n", "x").images
    assert [type(value) for value in (found.backoff_max, found.disk_floor, found.max_parallel, found.pin_limit)] == [
        float,
        int,
        int,
        float,
    ]


# ---------------------------------------------------------------------------------------------- all errors at once


def test_five_errors_are_reported_in_one_go_each_with_its_place() -> None:
    found = problems(
        """
        colour = "red"
        api = 3
        [daemon]
        log_level = "loud"
        [images]
        max_paralel = 3
        disk_reserve = "lots"
        """
    )
    assert found == (
        "colour: there is no such setting (there are: daemon, api, runtime, images, credentials, containers, "
        "checkpoints, topology, uplink)",
        "daemon.log_level: 'loud' is not one of 'debug', 'info', 'warning', 'error'",
        "api: must be a table, [api]",
        "images.max_paralel: there is no such setting; did you mean 'max_parallel'?",
        'images.disk_reserve: \'lots\' is not a size such as "512MiB" or "2GiB"',
    )


def test_the_error_names_the_file_and_the_number_of_errors() -> None:
    with pytest.raises(ConfigError) as caught:
        parse("a = 1\nb = 2", "/etc/stoker/stokerd.toml")
    assert str(caught.value).startswith("/etc/stoker/stokerd.toml: 2 error(s):\n  a: ")
    assert caught.value.source == "/etc/stoker/stokerd.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("images.max_parallel = 0", "images.max_parallel: 0 must be at least 1"),
        ("images.max_parallel = -1", "images.max_parallel: -1 must be at least 1"),
        ("images.max_parallel = 2.5", "images.max_parallel: 2.5 is not a whole number"),
        ("images.max_parallel = true", "images.max_parallel: True is not a whole number"),
        ('images.max_parallel = "2"', "images.max_parallel: '2' is not a whole number"),
        ("images.max_parallel = nan", "images.max_parallel: nan is not a whole number"),
        ("images.max_parallel = 1e400", "images.max_parallel: inf is not a whole number"),
        ("images.max_parallel = 10000000000", "images.max_parallel: 10000000000 must be at most 1000000000"),
        ("images.disk_floor = -1", "images.disk_floor: -1 must be at least 0"),
        ("images.disk_floor = false", 'images.disk_floor: False is not a size such as "512MiB" or "2GiB"'),
        ("images.disk_floor = inf", 'images.disk_floor: inf is not a size such as "512MiB" or "2GiB"'),
        ("images.disk_floor = 1e300", None),
        ('images.disk_floor = "-1GiB"', 'images.disk_floor: \'-1GiB\' is not a size such as "512MiB" or "2GiB"'),
        ('images.disk_floor = "9999999999TiB"', None),
        ("api.max_body = 0", "api.max_body: 0 must be at least 1024"),
        ("api.heartbeat = 0", "api.heartbeat: 0 must be at least 0.001"),
        ("api.heartbeat = nan", 'api.heartbeat: nan is not a duration such as "90s", "10m" or "24h"'),
        ("api.heartbeat = inf", 'api.heartbeat: inf is not a duration such as "90s", "10m" or "24h"'),
        ("api.heartbeat = -inf", 'api.heartbeat: -inf is not a duration such as "90s", "10m" or "24h"'),
        ("api.heartbeat = 1e300", "api.heartbeat: 1e+300 must be at most 3153600000"),
        ("api.heartbeat = true", 'api.heartbeat: True is not a duration such as "90s", "10m" or "24h"'),
        ('api.heartbeat = "soon"', 'api.heartbeat: \'soon\' is not a duration such as "90s", "10m" or "24h"'),
        ('api.heartbeat = "15"', 'api.heartbeat: \'15\' is not a duration such as "90s", "10m" or "24h"'),
        ('api.heartbeat = "0s"', "api.heartbeat: '0s' must be at least 0.001"),
        ('api.heartbeat = "99999999d"', "api.heartbeat: '99999999d' must be at most 3153600000"),
        ("api.heartbeat = [15]", 'api.heartbeat: [15] is not a duration such as "90s", "10m" or "24h"'),
        ("images.pin_limit = 101", "images.pin_limit: 101 must be at most 100"),
        ("images.pin_limit = -0.1", "images.pin_limit: -0.1 must be at least 0"),
        ('images.pin_limit = "50%"', "images.pin_limit: '50%' is not a percentage from 0 to 100"),
        ("images.backoff_jitter = 1.01", "images.backoff_jitter: 1.01 must be at most 1"),
        ("images.backoff_jitter = nan", "images.backoff_jitter: nan is not a number from 0 to 1"),
        ("daemon.state_dir = 3", "daemon.state_dir: 3 is not a string"),
        ('daemon.state_dir = ""', "daemon.state_dir: '' is not a path"),
        ('daemon.state_dir = "/a\\u0000b"', "daemon.state_dir: '/a\\x00b' is not a path"),
        ('daemon.log_level = ["info"]', "daemon.log_level: ['info'] is not one of 'debug', 'info', 'warning', 'error'"),
        ("api.group = true", "api.group: True is not a string"),
        ("runtime.endpoint = 1979-05-27", "runtime.endpoint: datetime.date(1979, 5, 27) is not a string"),
        ('credentials.docker_configs = "/a"', "credentials.docker_configs: '/a' is not a list"),
        ('credentials.docker_configs = ["/a", 3]', "credentials.docker_configs: 3 is not a string"),
        ("[[images]]", "images: must be a table, [images]"),
        ('"a\\nb" = 1', None),
        (
            '[images]\n"max parallel" = 1',
            "images.'max parallel': there is no such setting; did you mean 'max_parallel'?",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place(text: str, expected: str | None) -> None:
    found = problem(text)
    assert expected is None or found == expected


@pytest.mark.parametrize(
    "text",
    [
        f"images.max_parallel = {10**400}",
        f"images.disk_floor = {10**400}",
        f"api.heartbeat = {10**400}",
        f"api.heartbeat = -{10**400}",
        f"images.max_parallel = 0x{'f' * 5000}",
        f'api.heartbeat = "{"9" * 5000}s"',
        f'images.disk_floor = "{"9" * 5000}.5GiB"',
        f'daemon.log_level = "{"x" * 100_000}"',
    ],
)
def test_enormous_values_are_refused_in_few_words(text: str) -> None:
    assert len(problem(text)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "images = ",
        "[images",
        "= 3",
        "a = 1\na = 2",
        "images.max_parallel = 3\n[images]\n",
        f"images.max_parallel = {'9' * 5000}",
        "x = " + "[" * 100_000,
        "x = " + "{a=" * 50_000,
        "\x00",
    ],
    ids=lambda text: repr(text[:30]),
)
def test_what_is_not_toml_is_said_to_be_none(text: str) -> None:
    assert problem(text).startswith("is not TOML: ")


def test_where_the_toml_breaks_is_said() -> None:
    assert "line 3" in problem("[images]\nmax_parallel = 2\nmax parallel = 3\n")


# ---------------------------------------------------------------------------------------------- consistency


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'images.disk_floor = "2GiB"\nimages.disk_reserve = "1GiB"',
            "images.disk_floor (2147483648) is above images.disk_reserve (1073741824): pulls that were let in would be "
            "stopped at once",
        ),
        ("images.inode_floor = 20000", "images.inode_floor is above images.inode_reserve"),
        ('images.backoff_initial = "2m"', "images.backoff_initial is above images.backoff_max"),
        ('daemon.state_dir = "stoker"', "daemon.state_dir: 'stoker' is not an absolute path"),
        ('api.socket = "~/stokerd.sock"', "api.socket: '~/stokerd.sock' is not an absolute path"),
        ('credentials.docker_configs = ["/a", "b"]', "credentials.docker_configs: 'b' is not an absolute path"),
        ('runtime.registry_config_path = "certs.d"', "runtime.registry_config_path: 'certs.d' is not an absolute path"),
        (
            'runtime.endpoint = "tcp://127.0.0.1:1"',
            "runtime.endpoint: 'tcp://127.0.0.1:1' is not the path of a unix socket",
        ),
        ('runtime.endpoint = "unix://run/x"', "runtime.endpoint: 'unix://run/x' is not the path of a unix socket"),
        (
            f'api.socket = "/{"x" * 100}"',
            "api.socket: a unix socket's path can have at most 107 bytes, and its lock needs a few",
        ),
        (
            f'api.socket = "/{"ä" * 50}"',
            "api.socket: a unix socket's path can have at most 107 bytes, and its lock needs a few",
        ),
    ],
)
def test_what_is_sound_alone_may_be_wrong_together(text: str, expected: str) -> None:
    assert problem(text) == expected


def test_equal_floors_and_reserves_are_sound() -> None:
    text = "images.disk_floor = 5\nimages.disk_reserve = 5\nimages.inode_floor = 5\nimages.inode_reserve = 5\n"
    assert parse(text + "images.backoff_initial = 5\nimages.backoff_max = 5", "x").images.disk_floor == 5


@pytest.mark.parametrize("endpoint", ["", "/run/c.sock", "unix:/run/c.sock", "unix:///run/c.sock"])
def test_endpoints(endpoint: str) -> None:
    assert parse(f'runtime.endpoint = "{endpoint}"', "x").runtime.endpoint == endpoint


def test_all_inconsistencies_are_reported_together() -> None:
    assert len(problems('images.inode_floor = 20000\ndaemon.state_dir = "x"\napi.socket = "y"')) == 3


# ---------------------------------------------------------------------------------------------- numbers


@given(st.lists(st.integers(0, 50), min_size=5, max_size=5))
def test_durations_mean_the_sum_of_their_parts(parts: list[int]) -> None:
    text = "".join(f"{count}{unit}" for count, unit in zip(parts, ("d", "h", "m", "s", "ms"), strict=True))
    seconds = sum(count * size for count, size in zip(parts, (86400, 3600, 60, 1, 0.001), strict=True))
    assert parse(f'images.job_ttl = "{text}"', "x").images.job_ttl == pytest.approx(seconds)


@given(st.floats(0, 3e9))
def test_seconds_may_be_plain_numbers(seconds: float) -> None:
    assert parse(f"images.job_ttl = {seconds!r}", "x").images.job_ttl == seconds


UNITS = {
    "": 1,
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("KMGT", 1)},
}


@given(st.integers(0, 1000), st.sampled_from(list(UNITS)), st.sampled_from(("", " ")))
def test_sizes_mean_the_number_times_the_unit(number: int, unit: str, gap: str) -> None:
    found = parse(f'images.disk_floor = 0\nimages.disk_reserve = "{number}{gap}{unit}"', "x").images.disk_reserve
    assert found == number * UNITS[unit]
    assert isinstance(found, int)


@given(st.integers(0, 1 << 60))
def test_sizes_may_be_plain_numbers_and_lose_no_byte(size: int) -> None:
    for text in (str(size), f'"{size}"', f'"{size}B"'):
        assert parse(f"images.disk_floor = 0\nimages.disk_reserve = {text}", "x").images.disk_reserve == size


VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
)
PLACES = st.sampled_from(
    [
        f"{part.name}.{field.name}"
        for part in fields(Settings)
        for field in fields(getattr(Settings(), part.name))
        if is_dataclass(getattr(Settings(), part.name))
    ]
)


def toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    if isinstance(value, float):
        return re.sub(r"^(-?\d+)e", r"\1.0e", repr(value))
    return json.dumps(value) if isinstance(value, str | bool) else str(value)


@given(PLACES, VALUES)
def test_any_value_anywhere_is_either_taken_or_named(place: str, value: Any) -> None:
    try:
        assert isinstance(parse(f"{place} = {toml(value)}", "x"), Settings)
    except ConfigError as error:
        assert all(place.rpartition(".")[2] in line or "TOML" in line for line in error.problems)  # noqa: PT017


# ---------------------------------------------------------------------------------------------- the file


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "stokerd.toml"
    path.write_text("images.max_parallel = 7\n")
    assert load(path).images.max_parallel == 7
    path.write_bytes("images.max_parallel = 8\r\n".encode("utf-8-sig"))
    assert load(path).images.max_parallel == 8
    path.write_bytes(b"")
    assert load(path) == Settings()


def failing(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert caught.value.source == str(path)
    return caught.value.problems[0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert failing(tmp_path / "missing.toml") == "cannot be read: No such file or directory"


def test_a_file_that_is_a_directory(tmp_path: Path) -> None:
    assert failing(tmp_path) == "cannot be read: Is a directory"


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "stokerd.toml"
    path.write_bytes(b"# caf\xe9\n")
    assert failing(path) == "is not UTF-8: byte 5"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "stokerd.toml"
    path.write_bytes(b"#" * MAX_FILE)
    assert load(path) == Settings()
    path.write_bytes(b"#" * (MAX_FILE + 1))
    assert failing(path) == f"the file is larger than {MAX_FILE} bytes"


def test_a_file_without_an_end_is_not_read_to_its_end() -> None:
    assert failing(Path("/dev/zero")) == f"the file is larger than {MAX_FILE} bytes"


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    assert failing(tmp_path / "stokerd.toml") == "cannot be read: Permission denied"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('coordinator = "10.1.2.3:7420"', "uplink.ca: missing"),
        ('coordinator = "coordinator:7420"', "uplink.ca: missing"),
        ('coordinator = "10.1.2.3"\nca = "/etc/ca.crt"', "neither host:port nor unix:/path"),
        ('coordinator = "127.0.0.1:7422"\nnode = "Big Node"', "no name for a node"),
        ('ca = "ca.crt"', "not an absolute path"),
    ],
)
def test_an_uplink_is_without_tls_on_this_machine_alone(text: str, problem: str) -> None:
    assert problem in " ".join(problems(f"[uplink]\n{text}"))


@pytest.mark.parametrize("address", ["127.0.0.1:7422", "localhost:1", "[::1]:7422", "unix:/run/stoker/link.sock"])
def test_local_addresses_of_a_coordinator_need_no_certificate(address: str) -> None:
    assert parse(f'[uplink]\ncoordinator = "{address}"', "x").uplink.coordinator == address
