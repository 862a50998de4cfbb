"""Pulls that fail, and that the image room understands why."""

from __future__ import annotations

import pytest

from stokerd.runtime.types import RegistryAuth
from tests.conformance.subject import Subject, failure_of, held, records_of, snapshots_of

LEASE = "stoker.dev/conformance"


class TestFailures:
    async def test_no_such_tag(self, subject: Subject) -> None:
        made = await subject.make_image("tagged")
        failure = await failure_of(subject, f"{made.reference}-none")
        assert (failure.reason, failure.retryable) == ("NotFound", False)

    async def test_no_such_repository(self, subject: Subject) -> None:
        failure = await failure_of(subject, subject.absent())
        assert (failure.reason, failure.retryable) == ("NotFound", False)

    async def test_no_such_digest(self, subject: Subject) -> None:
        made = await subject.make_image("digested")
        repository = made.by_digest.partition("@")[0]
        failure = await failure_of(subject, f"{repository}@sha256:{'0' * 64}")
        assert (failure.reason, failure.retryable) == ("NotFound", False)

    async def test_nobody_listens(self, subject: Subject) -> None:
        failure = await failure_of(subject, subject.refused)
        assert (failure.reason, failure.retryable) == ("ConnectionRefused", True)

    async def test_no_such_host(self, subject: Subject) -> None:
        failure = await failure_of(subject, subject.unknown_host)
        # Where no name server answers either, containerd says so and nothing else.
        assert failure.reason in {"UnknownHost", "ConnectionRefused", "ConnectionBroken"}
        assert failure.retryable

    @pytest.mark.parametrize(
        ("status", "reason", "retryable"),
        [
            (403, "Denied", False),
            (404, "NotFound", False),
            (429, "RateLimited", True),
            (500, "RegistryUnavailable", True),
            (502, "RegistryUnavailable", True),
            (503, "RegistryUnavailable", True),
        ],
    )
    async def test_the_registry_answers(self, subject: Subject, status: int, reason: str, retryable: bool) -> None:
        made = await subject.make_image("refusing")
        subject.answer(made, status)
        failure = await failure_of(subject, made.reference)
        assert (failure.reason, failure.retryable) == (reason, retryable)
        assert failure.rate_limited == (status == 429)
        assert failure.auth == (status == 403)
        subject.clear()
        assert await subject.runtime.cri.pull(made.reference) == made.id

    async def test_the_registry_answers_when_asked_for_a_layer(self, subject: Subject) -> None:
        made = await subject.make_image("half", [100_000, 400_000])
        runtime = subject.runtime
        await runtime.leases.create(LEASE, {})
        subject.answer(made, 502, layer=1)
        failure = await failure_of(subject, made.reference, lease=LEASE)
        assert (failure.reason, failure.retryable) == ("RegistryUnavailable", True)
        assert made.names.isdisjoint(await records_of(subject))
        assert {made.digest, made.id} <= (await held(subject, LEASE))["content"]
        await subject.quiet()
        subject.clear()
        assert await runtime.cri.pull(made.reference, lease=LEASE) == made.id
        left = {name for name in (await held(subject, LEASE))["snapshots/overlayfs"] if name.startswith("extract-")}
        # 1.6 does not clean up after a layer that did not come.
        assert len(left) == (1 if subject.generation == "1.6" else 0)
        await runtime.leases.delete(LEASE)
        assert (await snapshots_of(subject)).isdisjoint(left)
        assert await snapshots_of(subject) >= set(made.chain_ids)

    async def test_credentials(self, subject: Subject) -> None:
        made = await subject.make_image("private")
        subject.require_auth(made, "robot", "s3cret-word")
        failure = await failure_of(subject, made.reference)
        assert (failure.reason, failure.auth, failure.retryable) == ("Unauthorized", True, False)
        failure = await failure_of(subject, made.reference, RegistryAuth("robot", "wr0ng-word"))
        assert (failure.reason, failure.auth, failure.retryable) == ("Unauthorized", True, False)
        assert "wr0ng-word" not in failure.message
        auth = RegistryAuth("robot", "s3cret-word")
        assert await subject.runtime.cri.pull(made.reference, auth=auth) == made.id

    async def test_for_no_machine_of_this_kind(self, subject: Subject) -> None:
        made = await subject.make_image("foreign-index", index=True, foreign=True)
        failure = await failure_of(subject, made.reference)
        assert (failure.reason, failure.retryable) == ("NoMatchingPlatform", False)
        # 2.1 makes the record before it looks, and leaves it.
        left = {made.reference} if subject.generation == "2.1" else set()
        assert made.names & await records_of(subject) == left
        assert await subject.runtime.cri.status(made.reference) is None
