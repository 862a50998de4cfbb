"""What is made of CRIU's log. The messages are CRIU's own, filled in."""

from __future__ import annotations

import pytest

from stokerd.checkpoints.refusals import explain

RUNC = "runc did not terminate successfully: exit status 1: criu failed: type NOTIFY errno 0"
END = "(00.123456) Error (criu/cr-dump.c:2128): Dumping FAILED."


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("files.c:532): Can't dump file 5 of that type [600] (anon anon_inode:[io_uring])", "io_uring"),
        ("tty.c:2022): tty: Found dangling tty with sid 1 pgid 1 (pts) on peer fd 0.", "terminal"),
        ("proc_parse.c:9): The root process 9 is not a session leader. Consider using --shell-job option", "terminal"),
        ("sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.", "established TCP"),
        ("sockets.c:628): sockets: Can't get 1:16 opt: Operation not supported", "sockets of this kernel"),
        ("sk-inet.c:200): inet: In-flight connection (l) for 7b", "just being made"),
        ("file-lock.c:6): Some file locks are hold by dumping tasks! You can try --file-locks to dump them.", "locks"),
        ("sk-unix.c:8): unix: External socket is used. Consider using --ext-unix-sk option.", "unix socket"),
        ("sk-unix.c:9): unix: Can't dump half of stream unix connection. name: /x; peer name: ", "unix socket"),
        ("files-reg.c:9): Can't dump ghost file /tmp/x of 2000000 size, increase limit", "larger than the limit"),
        ("files-reg.c:1): Can't create link remap for /x. Use link-remap option.", "another name"),
        ("cr-dump.c:7): A session leader of 12(12) is outside of its pid namespace", "exec"),
        ("proc_parse.c:2): PID 7 has uprobes vma. Consider using --allow-uprobes.", "uprobes"),
        ("namespaces.c:9): Can't dump nested user namespace for 12", "namespaces inside"),
        ("mount.c:5): mnt: Mount 9 /x (master_id: 1 shared_id: 0) has unreachable sharing. Try it.", "mount"),
        ("files.c:532): Can't dump file 9 of that type [20666] (chr 195:255)", "device"),
        ("files.c:532): Can't dump file 9 of that type [100777] (unknown /x)", "cannot keep"),
        ("cpu.c:1): cpu: CPU instruction capabilities do not match run time", "processor"),
        ("files-reg.c:2): File bin/x has bad size 5 (expect 6)", "not the one"),
        ("sk-inet.c:3): inet: Can't bind inet socket (id 3): Cannot assign requested address", "address"),
        ("cr-restore.c:1): Pid 12 do not match expected 7", "taken"),
        ("seize.c:1): Unable to freeze cgroup /x (100 x 100ms attempts, timeout: 10s)", "in time"),
        ("infect.c:262): Unseizable non-zombie 28965 found, state D, err -1/4", "starting another program"),
        ("image.c:1): Magic doesn't match for pagemap-1.img", "damaged"),
        ("bfd.c:1): Unexpected EOF", "damaged"),
    ],
)
def test_refusals_are_named(line: str, cause: str) -> None:
    verdict = explain(f"(00.1) some progress\n(00.12) Error (criu/{line}\n{END}\n", RUNC)
    assert verdict.outcome == "refused"
    assert cause in verdict.causes[0]
    assert len(verdict.causes) == 1
    assert verdict.excerpt[-1] == END


def test_several_at_once_are_all_named() -> None:
    log = (
        "(00.1) Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.\n"
        "(00.1) Error (criu/sk-inet.c:191): inet: Connected TCP socket, consider using --tcp-established option.\n"
        "(00.2) Error (criu/file-lock.c:6): Some file locks are hold by dumping tasks!You can try --file-locks\n" + END
    )
    verdict = explain(log, RUNC)
    assert len(verdict.causes) == 2
    assert "tcp" in verdict.hint


@pytest.mark.parametrize("where", ["log", "message"])
def test_a_full_disk_is_no_refusal(where: str) -> None:
    text = "Error (criu/page-xfer.c:1): Unable to write data: No space left on device"
    verdict = explain(f"{text}\n{END}" if where == "log" else END, text if where == "message" else RUNC)
    assert verdict.outcome == "no-space"


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("(00.01) Version: 4.1.1 (gitid 0)\n(00.02) Running on node", "runc: read unixpacket @->@: EOF"),
        ("", "criu swrk died: signal: segmentation fault (core dumped)"),
        ("(00.1) freezing processes\n(00.2) seized 12", RUNC),
    ],
)
def test_a_crash_is_told_from_a_refusal(log: str, message: str) -> None:
    assert explain(log, message).outcome == "crashed"


def test_a_log_that_the_full_disk_cut_short() -> None:
    log = "(00.000466) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted"
    assert explain(log, RUNC, full=True).outcome == "no-space"
    assert explain(log, RUNC).outcome == "crashed"


def test_what_is_not_recognised() -> None:
    verdict = explain("(00.1) Error (criu/new.c:1): Something quite new\n" + END, RUNC)
    assert (verdict.outcome, verdict.causes) == ("failed", ())
    assert "quite new" in verdict.excerpt[0]
    assert explain("", "context deadline exceeded").outcome == "failed"


def test_long_logs_are_cut() -> None:
    assert len(explain("Error: x\n" * 500, RUNC).excerpt) == 12


def test_criu_that_is_not_there() -> None:
    verdict = explain("", 'runc: exit status 1: CRIU version check failed: exec: "criu": executable file not found')
    assert verdict.outcome == "refused"
    assert verdict.causes == ("there is no criu on containerd's PATH",)
