"""A disk that is too small. The fixture `small` is a subject on a disk of SMALL_DISK bytes."""

from __future__ import annotations

import pytest

from stokerd.errors import RuntimeNoSpace
from stokerd.images.failures import classify
from tests.conformance.subject import MIB, Subject, eventually

LEASE = "stoker.dev/conformance"
SMALL_DISK = 48 * MIB


class TestFullDisk:
    async def test_fails_the_pull_and_is_free_again_without_its_lease(self, small: Subject) -> None:
        big = await small.make_image("big", [60 * MIB])
        fitting = await small.make_image("fitting", [MIB])
        runtime = small.runtime
        await runtime.leases.create(LEASE, {})
        _total, before = small.free_bytes()
        with pytest.raises(RuntimeNoSpace) as caught:
            await runtime.cri.pull(big.reference, lease=LEASE)
        failure = classify(caught.value, big.reference)
        assert (failure.reason, failure.retryable) == ("DiskFull", False)
        assert "no space left on device" in failure.message
        assert small.free_bytes()[1] < before / 2

        async def freed() -> bool:
            await runtime.leases.delete(LEASE, sync=True)
            return small.free_bytes()[1] > before - MIB

        await eventually("the space to be free again", freed)
        assert await runtime.cri.pull(fitting.reference) == fitting.id
