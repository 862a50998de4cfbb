"""What CRIU's log and runc's words say of a dump or a restore that failed. Pure.

A refusal is CRIU's own: it names what it cannot take. A crash is none: CRIU died, which says nothing of the container.
Sources: the messages of CRIU 3.17 to 4.2.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

Outcome = Literal["refused", "crashed", "no-space", "failed"]

_EXCERPT = 12


class Verdict(msgspec.Struct, frozen=True):
    """``causes`` has one line for each obstacle that was recognised, ``hint`` says what to do about the first,
    ``excerpt`` is the end of the log."""

    outcome: Outcome
    causes: tuple[str, ...] = ()
    hint: str = ""
    excerpt: tuple[str, ...] = ()


class _Saying(msgspec.Struct, frozen=True):
    pattern: str
    cause: str
    hint: str = ""


_SAYINGS = (
    _Saying(r"io_uring", "io_uring is in use", "switch it off in the program, or block it by seccomp"),
    _Saying(
        r"[Ff]ound dangling tty|not a session leader|shell-job",
        "a terminal from outside the container is open",
        "start the container without a terminal, or close the exec session that holds it",
    ),
    _Saying(
        r"inet: Connected TCP socket|tcp-established",
        "established TCP connections are open",
        "allow them to be closed (tcp: close) or kept (tcp: established)",
    ),
    _Saying(
        r"sockets: Can't get \S+ opt: Operation not supported",
        "this CRIU does not know the sockets of this kernel",
        "install CRIU 4.2 or later (kernels from 6.16 on)",
    ),
    _Saying(
        r"Can't splice all pages to pipe",
        "memory has guard regions, which this CRIU does not know",
        "install CRIU 4.2 or later (kernels from 6.13 on, with the C library's threads)",
    ),
    _Saying(r"[Ii]n-flight", "a connection is just being made", "try again"),
    _Saying(r"MPTCP", "a multipath TCP socket is open", 'for Go programs: GODEBUG="multipathtcp=0"'),
    _Saying(r"file locks are hold|--file-locks", "file locks are held", "allow file locks (file_locks: true)"),
    _Saying(
        r"ext-unix-sk|half of stream unix connection",
        "a unix socket leads out of the container",
        "allow external unix sockets (external_unix_sockets: true)",
    ),
    _Saying(
        r"Can't dump ghost file .*increase limit",
        "a deleted file that is still open is larger than the limit",
        "raise ghost-limit in CRIU's configuration of the node (/etc/criu/runc.conf)",
    ),
    _Saying(
        r"Can't create link remap",
        "a deleted file that is open still has another name",
        "remove its other names, or close it",
    ),
    _Saying(
        r"A session leader of .* is outside of its pid namespace|Can't find a session leader",
        "a process was brought in by exec, and its session leads outside",
        "end the exec session",
    ),
    _Saying(r"uprobes", "uprobes are attached to a process", "detach the tracer"),
    _Saying(r"ptrace.*(?:denied|not permitted)|is traced", "a process is being traced", "detach the debugger"),
    _Saying(r"[Nn]ested (?:\S+ )?namespace", "there are namespaces inside of the container"),
    _Saying(
        r"unreachable sharing|proper root mount|mnt: Unsupported|overmounted",
        "a mount inside of the container cannot be kept",
    ),
    _Saying(r"Unsupported mapping|\(chr \d+:\d+\)", "a device is open that CRIU has no plugin for"),
    _Saying(r"Can't dump file \d+ of that type", "a file of a kind that CRIU cannot keep is open"),
    _Saying(
        r"Can't get rlimit \d+: Operation not permitted",
        "CRIU may not look at processes of other users than root",
        "give containerd CAP_SYS_RESOURCE, which its service has by default",
    ),
    _Saying(r"cpu: ", "the processor lacks what the checkpoint needs", "restore on a node of the same kind"),
    _Saying(r"has bad (?:size|mode|build-ID)", "a file is not the one that the process had open"),
    _Saying(
        r"Can't bind inet socket",
        "a socket is bound to an address that is not there",
        "let the program listen on 0.0.0.0, or give it the address that it had",
    ),
    _Saying(r"Pid \d+ do not match|Can't fork for \d+: File exists", "a process id is taken already"),
    _Saying(
        r"Unseizable non-zombie \d+ found, state D",
        "a process is just starting another program (vfork), or waits for a disk or a device, and cannot be stopped",
        "try again",
    ),
    _Saying(r"Unable to freeze|Timeout reached", "the processes could not be stopped in time", "try again"),
    _Saying(r"Magic doesn't match|Unexpected EOF|Corrupted|No .* image", "the images are damaged or incomplete"),
)
_COMPILED = tuple((re.compile(each.pattern), each) for each in _SAYINGS)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|ENOSPC", re.IGNORECASE)
_NO_CRIU = re.compile(r'"criu": executable file not found')
_ERROR = re.compile(r"\bError\b|\bFAILED\b")
_NOISE = re.compile(r"rlimit: Can't setup")
"""What CRIU calls an error and goes on after."""
_DIED = re.compile(
    r"read unixpacket.*EOF|unexpected EOF|signal: (?:segmentation fault|aborted|killed|bus error|illegal instruction)"
    r"|core dumped|SIGSEGV",
    re.IGNORECASE,
)
_ENDED = re.compile(r"(?:Dumping|Restoring) FAILED|finished successfully")


def explain(log: str, message: str, *, full: bool = False) -> Verdict:
    """Say what became of a dump or restore: *log* is the end of CRIU's log, *message* what the runtime said.

    *full*: the file system that CRIU writes to is. Its log is there too, and ends before it can say so.
    """
    lines = [line.rstrip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.search(line) and not _NOISE.search(line)]
    excerpt = tuple((errors or lines)[-_EXCERPT:])
    if full or _NO_SPACE.search("\n".join(errors)) or _NO_SPACE.search(message):
        return Verdict("no-space", ("the disk is full",), "free space, or move the directory of checkpoints", excerpt)
    found = _causes(errors)
    if not found and _NO_CRIU.search(message):
        return Verdict("refused", ("there is no criu on containerd's PATH",), "install CRIU on the node", excerpt)
    if found:
        return Verdict("refused", tuple(each.cause for each in found), found[0].hint, excerpt)
    if not any(_ENDED.search(line) for line in lines) and (_DIED.search(message) or (lines and not errors)):
        return Verdict(
            "crashed", ("CRIU died without saying why",), "look at the kernel's log; try another CRIU", excerpt
        )
    return Verdict("failed", (), "", excerpt)


def _causes(errors: list[str]) -> list[_Saying]:
    """Return what was recognised, in the order of the log; the general ones only where nothing special is."""
    found: list[_Saying] = []
    for line in errors:
        hit = next((each for pattern, each in _COMPILED if pattern.search(line)), None)
        if hit is not None and hit not in found:
            found.append(hit)
    return found
