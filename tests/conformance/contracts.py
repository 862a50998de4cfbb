"""All of the suite. A module that defines the fixture `subject` and imports these runs them."""

from __future__ import annotations

from tests.conformance.contract_containers import TestCommands, TestContainers, TestEndings, TestRefusals, TestRenewal
from tests.conformance.contract_disk import TestFullDisk
from tests.conformance.contract_events import TestEvents
from tests.conformance.contract_failures import TestFailures
from tests.conformance.contract_images import TestAsking, TestNames, TestPins, TestPulling, TestRecords, TestRemoving
from tests.conformance.contract_leases import TestLeases, TestPullsUnderALease, TestPullsWithoutALease
from tests.conformance.contract_life import TestConnection, TestInfo
from tests.conformance.contract_pods import TestPodEvents, TestPods
from tests.conformance.contract_store import TestContent, TestSnapshots
from tests.conformance.contract_tasks import TestDumps, TestNativeContainers, TestTasks
from tests.conformance.contract_writing import TestDiffs, TestImageRecords, TestSnapshotsOfOurs, TestWriting

__all__ = [
    "TestAsking",
    "TestCommands",
    "TestConnection",
    "TestContainers",
    "TestContent",
    "TestDiffs",
    "TestDumps",
    "TestEndings",
    "TestEvents",
    "TestFailures",
    "TestFullDisk",
    "TestImageRecords",
    "TestInfo",
    "TestLeases",
    "TestNames",
    "TestNativeContainers",
    "TestPins",
    "TestPodEvents",
    "TestPods",
    "TestPulling",
    "TestPullsUnderALease",
    "TestPullsWithoutALease",
    "TestRecords",
    "TestRefusals",
    "TestRemoving",
    "TestRenewal",
    "TestSnapshots",
    "TestSnapshotsOfOurs",
    "TestTasks",
    "TestWriting",
]
