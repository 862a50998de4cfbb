"""The pause program: a static x86-64 executable of a few hundred bytes, written by hand.

It waits in pause(2) and ends with code 0 on SIGTERM or SIGINT. As PID 1 of a container it must say so itself: the
kernel does not deliver a signal without a handler to the first process of a PID namespace. Children that a container
leaves are reaped by ignoring SIGCHLD.
"""

from __future__ import annotations

import struct

BASE = 0x400000
CODE_OFFSET = 64 + 56
SIGINT, SIGTERM, SIGCHLD = 2, 15, 17
SA_RESTORER = 0x04000000


def pause_program() -> bytes:
    """rt_sigaction for the signals, then pause() for ever."""
    return _elf(0x3E, _code())


def _code() -> bytes:
    code = b""
    calls: list[tuple[int, str]] = [(SIGINT, "quit"), (SIGTERM, "quit"), (SIGCHLD, "ignore")]
    # Each block: mov eax,13; mov edi,signal; mov rsi,action; xor edx,edx; mov r10d,8; syscall
    block = 5 + 5 + 10 + 2 + 6 + 2
    loop_at = len(calls) * block
    quit_at = loop_at + 9
    data_at = quit_at + 9
    address = BASE + CODE_OFFSET
    actions = {"quit": address + data_at, "ignore": address + data_at + 32}
    for signal, kind in calls:
        code += b"\xb8" + struct.pack("<I", 13) + b"\xbf" + struct.pack("<I", signal)
        code += b"\x48\xbe" + struct.pack("<Q", actions[kind]) + b"\x31\xd2" + b"\x41\xba" + struct.pack("<I", 8)
        code += b"\x0f\x05"
    code += b"\xb8" + struct.pack("<I", 34) + b"\x0f\x05" + b"\xeb\xf7"  # pause, and again
    code += b"\x31\xff" + b"\xb8" + struct.pack("<I", 231) + b"\x0f\x05"  # exit_group(0)
    quit_action = struct.pack("<QQQQ", address + quit_at, SA_RESTORER, address + quit_at, 0)
    ignore_action = struct.pack("<QQQQ", 1, SA_RESTORER, address + quit_at, 0)
    assert len(code) == data_at
    return code + quit_action + ignore_action


def _elf(machine: int, code: bytes) -> bytes:
    size = CODE_OFFSET + len(code)
    header = b"\x7fELF" + bytes([2, 1, 1, 0]) + bytes(8)
    header += struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, BASE + CODE_OFFSET, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    program = struct.pack("<IIQQQQQQ", 1, 5, 0, BASE, BASE, size, size, 0x1000)
    return header + program + code
