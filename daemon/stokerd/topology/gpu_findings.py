"""Faults of GPUs. Pure; reads a report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.objects.topology import Gpu, TopologyFinding
from stokerd.topology.xids import GONE, MEANINGS


def gpu_findings(gpus: Sequence[Gpu], lost: Sequence[str]) -> Iterator[TopologyFinding]:
    """Yield what is wrong with GPUs. *lost*: what the driver says of those that it counts and cannot reach."""
    most = max((sum(end.links for end in gpu.nvlinks) for gpu in gpus), default=0)
    for gpu in gpus:
        problems = []
        if gpu.remap_failed:
            problems.append("it has memory that it could not map away")
        if gpu.ecc_uncorrected:
            problems.append(f"{gpu.ecc_uncorrected} memory errors could not be corrected")
        if gpu.recovery:
            problems.append(f"its driver asks for {gpu.recovery}")
        if problems:
            yield TopologyFinding(
                code="GpuFault",
                severity="error",
                subjects=[gpu.name],
                message="; ".join(problems),
                remedy="drain the node, and reset or replace the GPU",
            )
        if gpu.remap_pending:
            yield TopologyFinding(
                code="GpuResetPending",
                severity="warning",
                subjects=[gpu.name],
                message="memory is to be mapped away at its next reset",
                remedy="reset the GPU when it is free",
            )
        slow = [reason for reason in gpu.throttled if reason.startswith("hw_")]
        if slow:
            yield TopologyFinding(
                code="GpuSlowedDown",
                severity="warning",
                subjects=[gpu.name],
                message=f"its hardware slows it down: {', '.join(slow)}",
                remedy="check cooling and power",
            )
        yield from _logged(gpu)
        links = sum(end.links for end in gpu.nvlinks)
        if links < most and (links or gpu.nvlinks_down):
            yield TopologyFinding(
                code="NvlinksDown",
                severity="error",
                subjects=[gpu.name],
                message=f"{links} of its NVLinks are up, while a sibling has {most}",
                remedy="look at the fabric manager and at `nvidia-smi nvlink -s`; reset or replace the GPU",
            )
    yield from _lost(gpus, lost)


def _logged(gpu: Gpu) -> Iterator[TopologyFinding]:
    """What the driver wrote to the kernel's log, as far as it is of the hardware."""
    for each in gpu.xids:
        if each.xid in MEANINGS:
            yield TopologyFinding(
                code="GpuXid",
                severity="error" if each.xid in GONE else "warning",
                subjects=[gpu.name, f"Xid {each.xid}"],
                message=f"{MEANINGS[each.xid]} (Xid {each.xid}, {_times(each.count)} since the machine started)",
                remedy="drain the node and reset the GPU; replace it if it comes again",
            )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _lost(gpus: Sequence[Gpu], lost: Sequence[str]) -> Iterator[TopologyFinding]:
    """GPUs on PCIe that the driver does not tell of, while it tells of others."""
    told = {gpu.vendor for gpu in gpus if gpu.source != "sysfs.pci"}
    missing = [gpu.name for gpu in gpus if gpu.source == "sysfs.pci" and gpu.vendor in told
               and gpu.pcie.driver != "vfio-pci"]  # fmt: skip
    if missing or lost:
        yield TopologyFinding(
            code="GpuLost",
            severity="error",
            subjects=missing or ["GPUs"],
            message="the driver no longer reaches it, while it reaches others"
            + (f" ({'; '.join(lost[:3])})" if lost else ""),
            remedy="drain the node and start it again; replace the GPU if it stays away",
        )
