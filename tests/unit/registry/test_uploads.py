"""Where an upload goes on, and what a refusal means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stokerd.registry.challenges import Challenge, token_scopes
from stokerd.registry.errors import RegistryDenied, RegistryProtocol, RegistryUnavailable, Subject
from stokerd.registry.uploads import Upload, pause, push_error, resumed, upload_url, went_on, with_digest

BASE = "https://r.example/v2/app/blobs/uploads/1?_state=x"
AT = Upload(BASE, 100)


@pytest.mark.parametrize(
    ("status", "text", "reached", "offset"),
    [
        (204, "0-149", 200, 150),
        (204, "bytes=0-149", 200, 150),
        (204, "0-0", 200, 100),  # docker-registry says so whatever it has
        (204, "", 200, 100),
        (204, "nonsense", 200, 100),
        (202, "0-49", 200, 50),  # it has lost some
        (204, "0-299", 200, None),  # more than was ever sent
        (404, "0-149", 200, None),
        (416, "", 200, None),
    ],
)
def test_the_state_of_an_upload(status: int, text: str, reached: int, offset: int | None) -> None:
    found = resumed(
        AT,
        reached,
        status,
        {"Range": text} if text else {},
    )
    assert (None if found is None else found.offset) == offset


@pytest.mark.parametrize(
    ("text", "offset"), [("0-149", 150), ("0-119", 120), ("0-0", 150), ("", 150), ("0-99", None), ("0-200", None)]
)
def test_a_chunk_that_was_accepted(text: str, offset: int | None) -> None:
    headers = {"Range": text} if text else {}
    if offset is None:
        with pytest.raises(ValueError, match="it was sent"):
            went_on(AT, 50, headers)
    else:
        assert went_on(AT, 50, headers) == Upload(BASE, offset)


@pytest.mark.parametrize(
    ("location", "url"),
    [
        ("/v2/app/blobs/uploads/2?s=%3D", "https://r.example/v2/app/blobs/uploads/2?s=%3D"),
        ("https://store.example/x?sig=a%2Fb", "https://store.example/x?sig=a%2Fb"),
        ("http://r.example/v2/x", "https://r.example/v2/x"),
        ("http://store.example/x", None),
        ("ftp://r.example/x", None),
        ("https://me:secret@r.example/x", None),
        ("https://r.example:0/x", None),
        ("", None),
        ("x" * 20000, None),
    ],
)
def test_where_the_next_piece_goes(location: str, url: str | None) -> None:
    if url is None:
        with pytest.raises(ValueError, match=r"^(it|the place)"):
            upload_url(BASE, location)
    else:
        assert upload_url(BASE, location) == url


@given(st.text(max_size=300), st.text(max_size=30))
def test_no_answer_does_harm(location: str, text: str) -> None:
    found = resumed(AT, 200, 204, {"Location": location, "Range": text})
    assert found is None or (0 <= found.offset <= 200 and found.url.startswith("https://"))


def test_the_digest_is_added() -> None:
    assert with_digest("https://r/x", "sha256:ab") == "https://r/x?digest=sha256:ab"
    assert with_digest("https://r/x?a=b", "sha256:ab") == "https://r/x?a=b&digest=sha256:ab"


def test_pauses_grow_up_to_a_limit_and_a_registry_may_ask_for_more() -> None:
    error = RegistryUnavailable("no", Subject("r"))
    assert [pause(attempt, error, 0.25) for attempt in (1, 2, 3, 20)] == [0.5, 1.0, 2.0, 60.0]
    assert pause(1, RegistryUnavailable("no", Subject("r"), retry_after=30.0), 0.25) == 30.0
    assert pause(1, RegistryUnavailable("no", Subject("r"), retry_after=600.0), 0.25) is None


def test_errors_of_pushes_speak_of_pushes() -> None:
    denied = push_error(RegistryDenied("no", Subject("r"), status=403), "r/app")
    assert denied.hint == "ask for permission to push to r/app"
    large = push_error(RegistryProtocol("no", Subject("r"), status=413), "r/app")
    assert "raise the limit" in (large.hint or "")
    other = RegistryProtocol("no", Subject("r"), status=418)
    assert push_error(other, "r/app") is other


@pytest.mark.parametrize(
    ("challenge", "own", "scopes"),
    [
        ("repository:a:pull", "repository:a:pull,push", ("repository:a:pull,push",)),
        ("repository:a:pull", "repository:a:pull", ("repository:a:pull",)),
        ("", "repository:a:pull,push", ("repository:a:pull,push",)),
        ("repository:mirror/a:pull", "repository:a:pull", ("repository:mirror/a:pull",)),
        (
            "repository:a:pull",
            "repository:a:pull,push repository:b:pull",
            ("repository:a:pull,push", "repository:b:pull"),
        ),
        ("registry:catalog:*", "repository:a:pull", ("registry:catalog:*",)),
        ("odd", "repository:a:pull", ("odd",)),
    ],
)
def test_one_token_serves_all_of_a_push(challenge: str, own: str, scopes: tuple[str, ...]) -> None:
    assert token_scopes(Challenge("bearer", {"scope": challenge}), own) == scopes
