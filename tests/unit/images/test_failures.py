from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd import errors
from stokerd.errors import RuntimeFailure, RuntimeNoSpace, RuntimeNotFound, RuntimeTimeout, RuntimeUnavailable
from stokerd.images.failures import Failure, classify, no_credential_left
from stokerd.images.manifests import NoMatchingPlatform
from stokerd.images.space import DiskTooSmall

# What containerd 1.6.20, 1.7.24 and 2.1.9 said when a registry was made to fail in many ways. "kind" is the class that
# the runtime room makes of the gRPC status; the reason is what a person who knows the fault would call it.
REAL: list[dict[str, str]] = json.loads((Path(__file__).parent / "pull_failures.json").read_text())

RETRYABLE = {
    "RateLimited",
    "RegistryUnavailable",
    "WrongDigest",
    "Truncated",
    "UnknownHost",
    "ConnectionRefused",
    "ConnectionBroken",
    "Stalled",
    "ContentBusy",
    "ContentLost",
    "UnpackFailed",
    "PullFailed",
}
FINAL = {
    "DiskFull",
    "NoMatchingPlatform",
    "Unauthorized",
    "Denied",
    "NotFound",
    "RegistryRefused",
    "TlsFailed",
    "UnsupportedMediaType",
    "BadLayer",
    "BadManifest",
    "InvalidReference",
}


def real_error(record: dict[str, str], message: str | None = None) -> RuntimeFailure:
    kind: type[RuntimeFailure] = getattr(errors, record["kind"])
    return kind(message or record["message"], status=record["status"], call="cri.PullImage")


def pull_error(cause: str, name: str, status: str = "UNKNOWN") -> RuntimeFailure:
    return RuntimeFailure(f'failed to pull and unpack image "{name}": {cause}', status=status, call="cri.PullImage")


def check(failure: Failure, reason: str) -> None:
    assert failure.reason == reason, failure.message
    assert failure.retryable == (reason in RETRYABLE)
    assert failure.auth == (reason in {"Unauthorized", "Denied"})
    assert failure.rate_limited == (reason == "RateLimited")
    if reason != "PullFailed":
        assert failure.hint


def label(record: dict[str, str]) -> str:
    return f"{record['generation']}-{record['name'][:50]}"


@pytest.mark.parametrize("record", REAL, ids=label)
def test_real_messages(record: dict[str, str]) -> None:
    failure = classify(real_error(record), record["name"])
    check(failure, record["reason"])
    assert "failed to pull and unpack" not in failure.message
    assert "failed to resolve" not in failure.message
    assert "\n" not in failure.message
    assert "deadbeef" not in failure.message  # the signature of a presigned URL


def test_every_reason_is_either_worth_another_try_or_not() -> None:
    assert not RETRYABLE & FINAL
    assert {record["reason"] for record in REAL} <= RETRYABLE | FINAL


def test_three_generations_of_containerd_were_asked() -> None:
    assert {record["generation"] for record in REAL} == {"1.6", "1.7", "2.1"}


WORDS = st.sampled_from(
    (
        "unauthorized",
        "not-found",
        "denied",
        "forbidden",
        "toomanyrequests",
        "429",
        "401",
        "503",
        "x509",
        "tls",
        "eof",
        "connection-refused",
        "no-such-host",
        "context-canceled",
        "gzip",
        "checksum",
        "schema1",
        "snapshotter",
        "status",
        "manifest-unknown",
        "insufficient_scope",
        "archive/tar",
    )
)
HOSTS = st.lists(WORDS, min_size=1, max_size=2).map(lambda words: "-".join(words).replace("/", ".") + ".example")
PORTS = st.sampled_from(("", ":401", ":404", ":429", ":503"))
PATHS = st.lists(WORDS, min_size=1, max_size=3).map("/".join)
TAGS = st.sampled_from(("429", "unauthorized", "eof", "v401", "x509", "denied"))


@given(st.sampled_from(REAL), HOSTS, PORTS, PATHS, TAGS)
def test_a_hostile_name_confuses_nothing(record: dict[str, str], host: str, port: str, path: str, tag: str) -> None:
    old_host, _, old_path = record["name"].partition("/")
    digest = old_path.partition("@")[2]
    old_path, _, old_tag = old_path.partition("@")[0].partition(":")
    name = f"{host}{port}/{path}@{digest}" if digest else f"{host}{port}/{path}:{tag}"
    message = record["message"].replace(record["name"], name)
    message = re.sub(
        rf"\b{re.escape(old_host.partition(':')[0])}(?=[ :/]|$)", host, message.replace(old_host, host + port)
    )
    message = message.replace(old_path, path).replace(f"manifests/{old_tag}", f"manifests/{tag}")
    message = message.replace(old_path.replace("/", "%2F"), path.replace("/", "%2F"))
    check(classify(real_error(record, message), name), record["reason"])


NAME = "docker.io/library/app:v1"


# From containerd's sources and from its issues: what cannot be brought about on demand.
READ = {
    "ConnectionBroken": (
        "failed to copy: read tcp 10.0.0.5:50429->34.1.2.3:443: read: connection timed out",
        'failed to do request: Head "https://r/v2/": dial tcp 34.1.2.3:443: i/o timeout',
        'failed to do request: Head "https://r/v2/": net/http: request canceled (Client.Timeout exceeded while '
        "awaiting headers)",
        'failed to do request: Get "https://r/v2/": net/http: TLS handshake timeout',
        'failed to do request: Get "https://r/v2/": dial tcp 10.9.9.9:443: connect: no route to host',
        'failed to do request: Get "https://r/v2/": http2: server sent GOAWAY and closed the connection',
    ),
    "UnknownHost": (
        'failed to do request: Get "https://r/v2/": dial tcp: lookup r on 127.0.0.53:53: server misbehaving',
        'failed to do request: Get "https://r/v2/": dial tcp: lookup r: Temporary failure in name resolution',
    ),
    "TlsFailed": (
        'failed to do request: Head "https://r/v2/": remote error: tls: handshake failure',
        'failed to do request: Head "https://r/v2/": tls: first record does not look like a TLS handshake',
        'failed to do request: Head "https://r/v2/": x509: certificate is valid for eof.example, not denied.example',
    ),
    "Unauthorized": (
        "failed to authorize: failed to fetch oauth token: unexpected status from POST request to "
        "https://auth.docker.io/token: 400 Bad Request",
    ),
    "RateLimited": (
        "unexpected status from HEAD request to https://r/v2/a/manifests/v1: 403 Forbidden\ntoomanyrequests: slow down",
    ),
    "RegistryUnavailable": (
        "unexpected status from GET request to https://r/v2/a: 500 Internal Server Error\nunauthorized: not found",
    ),
    "ContentBusy": (
        'failed to copy: error writing "/x": ref "layer-sha256:aa" locked for 1.2s (since 2024-01-01): unavailable',
    ),
    "ContentLost": (
        "content digest sha256:1111: not found",
        f"content digest sha256:{'ab' * 32}: not found",
        'lease "stoker-1": not found',
    ),
    "UnpackFailed": (
        'failed to prepare extraction snapshot "extract-1-x sha256:11": failed to rename: file exists',
        "failed to extract layer sha256:11: failed to mount /tmp/x: operation not permitted: unknown",
    ),
    "BadLayer": ("failed to extract layer sha256:11: mount callback failed on /tmp/x: unexpected EOF: unknown",),
    "DiskFull": ("failed to extract layer sha256:11: mount callback failed on /tmp/x: write /x: disk quota exceeded",),
    "Stalled": ("failed to extract layer sha256:11: context canceled: unknown",),
    "PullFailed": (
        "open /var/lib/containerd/metadata.db: permission denied",
        "something that no version has said before",
    ),
}


@pytest.mark.parametrize(("reason", "cause"), [(reason, cause) for reason, causes in READ.items() for cause in causes])
def test_messages_known_from_elsewhere(reason: str, cause: str) -> None:
    check(classify(pull_error(cause, NAME), NAME), reason)


def test_a_registry_whose_disk_is_full_is_not_our_disk() -> None:
    cause = "unexpected status from GET request to https://r/v2/a: 500 Internal Server Error\nno space left on device"
    error = RuntimeNoSpace(pull_error(cause, NAME).message, status="UNKNOWN", call="cri.PullImage")
    check(classify(error, NAME), "RegistryUnavailable")


def test_a_containerd_that_is_away_is_no_fault_of_the_image() -> None:
    failure = classify(RuntimeUnavailable("containerd cannot be reached", hint="is it running?"), NAME)
    assert failure == Failure("RuntimeUnavailable", "containerd cannot be reached", "is it running?", retryable=True)


def test_a_containerd_that_does_not_answer_in_time_is_worth_another_try() -> None:
    failure = classify(RuntimeTimeout("containerd did not answer leases.Create in time", call="leases.Create"), NAME)
    assert (failure.reason, failure.retryable) == ("RuntimeTimeout", True)


def test_what_another_call_does_not_find_is_not_the_image() -> None:
    failure = classify(RuntimeNotFound('lease "x": not found', status="NOT_FOUND", call="leases.ListResources"), NAME)
    assert failure.reason == "RuntimeNotFound"
    assert not failure.hint


def test_a_full_disk_is_one_in_every_call() -> None:
    error = RuntimeNoSpace("write /var/lib/containerd/meta.db: no space left on device", call="leases.Create")
    check(classify(error, NAME), "DiskFull")


@pytest.mark.parametrize(
    "error", [DiskTooSmall("too big", hint="free some"), NoMatchingPlatform("none", hint="push one")]
)
def test_our_own_errors_keep_their_words(error: errors.StokerError) -> None:
    assert classify(error, NAME) == Failure(error.reason, error.message, error.hint or "", error.retryable)


def test_no_secret_gets_into_a_failure() -> None:
    cause = 'failed to do request: Get "https://ann:s3cr3t@r.example/v2/?token=s3cr3t": {"password":"s3cr3t"}: EOF'
    assert "s3cr3t" not in classify(pull_error(cause, NAME), NAME).message
    assert "s3cr3t" not in classify(errors.NotFound(cause), NAME).message


def test_a_long_message_is_cut_and_takes_no_time() -> None:
    for piece in (
        "unexpected status ",
        '"',
        "status [",
        "lookup ",
        "/x/y:",
        "https://",
        "failed to extract layer pigz ",
    ):
        started = time.process_time()
        failure = classify(pull_error(piece * (200_000 // len(piece)), NAME), NAME)
        assert len(failure.message) <= 2000
        assert time.process_time() - started < 2.0


@given(
    st.text(max_size=200), st.text(max_size=30), st.sampled_from(("UNKNOWN", "UNAVAILABLE", "INTERNAL", "CANCELLED"))
)
def test_anything_can_be_said_about_anything(cause: str, name: str, status: str) -> None:
    failure = classify(pull_error(cause, name, status), name)
    assert failure.reason in RETRYABLE | FINAL


def test_the_final_word_names_what_was_tried_and_nothing_secret() -> None:
    last = Failure("Unauthorized", "401 Unauthorized", "log in", auth=True)
    failure = no_credential_left(last, NAME, "docker.io", ("/root/.docker/config.json", "anonymous"))
    assert failure.reason == "Unauthorized"
    assert failure.message == (
        f"docker.io refused to give {NAME} with: /root/.docker/config.json, anonymous; last answer: 401 Unauthorized"
    )
    assert not failure.retryable
    assert "no credentials found" in no_credential_left(last, NAME, "docker.io", ()).message


def test_the_table_of_real_messages_is_sorted_and_holds_no_line_twice() -> None:
    def key(record: dict[str, Any]) -> tuple[str, str, str]:
        return record["reason"], record["name"], record["generation"]

    assert [key(record) for record in REAL] == sorted({key(record) for record in REAL})
