"""Whether a checkpoint can be restored on this node: told before CRIU tries. Pure."""

from __future__ import annotations

import msgspec

from stokerd.checkpoints.criu import LEAST, parse_version
from stokerd.checkpoints.manifest import Node

_FAMILIES = ("sse", "ssse", "avx", "amx", "bmi", "fma", "xsave", "sha", "sm3", "sm4")
# fmt: off
_SINGLE = frozenset(
    {
        "mmx", "fxsr", "cmov", "cx8", "cx16", "popcnt", "lzcnt", "abm", "movbe", "aes", "vaes",
        "pclmulqdq", "vpclmulqdq", "gfni", "f16c", "adx", "rdrand", "rdseed", "rdtscp", "rdpid",
        "fsgsbase", "lahf_lm", "pku", "clflushopt", "clwb", "cldemote", "movdiri", "movdir64b",
        "serialize", "waitpkg", "rtm", "hle", "user_shstk",
    }
)
# fmt: on


class Misfit(msgspec.Struct, frozen=True):
    """One reason why it cannot, and what to do about it."""

    message: str
    hint: str


def misfits(made: Node, here: Node) -> tuple[Misfit, ...]:
    """Compare the node that a checkpoint was made on with this one. What is not known of either counts as the same."""
    if made.architecture and here.architecture and made.architecture != here.architecture:
        text = f"it was made on {made.architecture}, this node is {here.architecture}"
        return (Misfit(text, "restore it on a node of the same architecture"),)
    return (*_criu(made.criu, here.criu), *_processor(made, here))


def _criu(made: str, here: str) -> tuple[Misfit, ...]:
    if not here:
        return (Misfit("there is no criu on containerd's PATH", "install CRIU on the node"),)
    then, now = parse_version(made), parse_version(here)
    if now.parts < LEAST:
        return (Misfit(f"CRIU {here} is too old", "install CRIU 3.16 or later"),)
    if (then.major, then.minor) > (now.major, now.minor):
        text = f"it was made by CRIU {made}, which writes what CRIU {here} of this node does not know"
        return (Misfit(text, f"install CRIU {then.major}.{then.minor} or later"),)
    return ()


def _processor(made: Node, here: Node) -> tuple[Misfit, ...]:
    known = here.cpu_features.split()
    if not known:
        return ()
    lacking = sorted({each for each in made.cpu_features.split() if _counts(each, made.architecture)} - set(known))
    if not lacking:
        return ()
    shown = ", ".join(lacking[:8]) + (", …" if len(lacking) > 8 else "")
    text = f"this processor lacks what programs may have found where it was made: {shown}"
    return (Misfit(text, "restore it on a node with the same processor, or a newer one of its kind"),)


def _counts(feature: str, architecture: str) -> bool:
    """Leave out what the kernel alone uses: a hypervisor or a microcode changes that on the same processor."""
    if architecture not in {"x86_64", "i686"}:
        return True
    return feature in _SINGLE or feature.startswith(_FAMILIES)
