"""The command line against the real server; everything but terminals."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from stoker.cli import exits
from stoker.objects.images import (
    Attempt,
    ImageChange,
    ImagePlan,
    ImageStatus,
    JobStatus,
    KeepStatus,
    PinStatus,
    Plan,
    SpaceNeed,
)
from stoker.objects.node import Advice, CapabilityStatus, NodeInfo
from stokerd import errors
from tests.unit.api.fakes import GIB, MIB, failed, normal, pulling, succeeded
from tests.unit.client.commands import ENTRY, Ago, Outcome, Run, python, runner
from tests.unit.client.served import Served

NGINX, BUSYBOX = normal("nginx"), normal("busybox")


def finish(daemon: Served, *items: Any) -> None:
    """Have the next job end with *items* as soon as it is followed."""
    daemon.api.images.on_follow = lambda job: daemon.api.images.update(job.id, *items)


# ---------------------------------------------------------------------------------------------- warm


def test_warm(daemon: Served, run: Run) -> None:
    finish(daemon, pulling("nginx", 1, 2), succeeded("nginx", 67 * MIB), succeeded("busybox", 0, "AlreadyPresent"))
    result = run("image", "warm", "nginx", "busybox")
    assert result.code == 0
    assert result.err == ""
    assert result.lines[:4] == [
        "job j0001: 2 images",
        f"{NGINX}: pulling",
        f"{NGINX}: pulled 67.0 MiB in 0s",
        f"{BUSYBOX}: already present",
    ]
    assert re.fullmatch(r"2 images ready in \d+s", result.lines[4])


def test_warm_options_arrive(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.api.images.on_warm = daemon.api.images.succeed_all
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("hüsh \n".encode())))
    options = [
        "--name",
        "base",
        "--policy",
        "Always",
        "--priority",
        "-5",
        "--attempts",
        "4",
        "--timeout",
        "10m",
        "--pin",
        "24h",
    ]
    result = run("image", "warm", *options, "--username", "me", "--password-stdin", "quay.io/a/b:1", "quay.io/c")
    assert result.code == 0, result.err
    ((_, request),) = daemon.api.images.calls
    assert request.images == ["quay.io/a/b:1", "quay.io/c"]
    assert (request.name, request.policy, request.priority, request.attempts) == ("base", "Always", -5, 4)
    assert (request.timeout_seconds, request.pin_seconds) == (600, 86400)
    (auth,) = request.auths
    assert (auth.registry, auth.username, auth.password) == ("quay.io", "me", "hüsh ")
    assert "hüsh" not in result.out + result.err


def test_warm_from_files(daemon: Served, run: Run, tmp_path: Path) -> None:
    daemon.api.images.on_warm = daemon.api.images.succeed_all
    plain = tmp_path / "plain.txt"
    plain.write_text("nginx # web\nbusybox\n")
    jobs = tmp_path / "jobs.yaml"
    jobs.write_text(
        "apiVersion: apps.kruise.io/v1beta1\nkind: ImagePullJob\nmetadata: {name: one}\n"
        "spec: {image: redis, parallelism: 2}\n"
    )
    result = run("image", "warm", "alpine", "-f", str(plain), "-f", str(jobs), "--priority", "3")
    assert result.code == 0
    assert f"stoker: warning: {jobs}:4: ImagePullJob 'one': spec.parallelism is not honoured here" in result.err
    requests = [request for _, request in daemon.api.images.calls]
    assert [request.images for request in requests] == [["alpine"], ["nginx", "busybox"], ["redis"]]
    assert [request.priority for request in requests] == [3, 3, 3]
    assert [request.name for request in requests] == ["", "", "one"]
    assert result.lines[-1].startswith("4 images ready")


def test_warm_from_standard_input(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.api.images.on_warm = daemon.api.images.succeed_all
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"nginx\n")))
    assert run("image", "warm", "-f", "-").code == 0
    ((_, request),) = daemon.api.images.calls
    assert request.images == ["nginx"]


@pytest.mark.parametrize(
    ("items", "code"),
    [
        ([succeeded("nginx"), failed("busybox", "Timeout")], exits.FAILED),
        ([failed("nginx", "DiskTooSmall"), failed("busybox", "DiskFull")], exits.NO_SPACE),
        ([succeeded("nginx"), failed("busybox", "DiskTooSmall")], exits.NO_SPACE),
        ([failed("nginx", "NotFound"), failed("busybox", "NotFound")], exits.NOT_FOUND),
        ([failed("nginx", "NotFound"), failed("busybox", "DiskTooSmall")], exits.FAILED),
        ([succeeded("nginx"), replace(failed("busybox"), phase="Cancelled")], exits.FAILED),
    ],
)
def test_warm_exit_codes(daemon: Served, run: Run, items: list[Any], code: int) -> None:
    finish(daemon, *items)
    assert run("image", "warm", "nginx", "busybox").code == code


def test_warm_json_is_one_document_with_every_field(daemon: Served, run: Run) -> None:
    finish(daemon, succeeded("nginx"))
    result = run("--json", "image", "warm", "nginx")
    assert result.code == 0
    document = json.loads(result.out)
    assert (document["id"], document["state"], document["priority"]) == ("j0001", "Succeeded", 0)
    assert document["counts"]["failed"] == 0
    assert document["items"][0]["progress"]["layersUnpacked"] == 7
    assert document["items"][0]["nextAttemptAt"] is None
    assert result.err == ""


def test_warm_json_watch_is_one_event_a_line(daemon: Served, run: Run) -> None:
    finish(daemon, pulling("nginx", 1, 2), failed("nginx", "Timeout"))
    result = run("image", "warm", "nginx", "--json", "--watch")
    assert result.code == exits.FAILED
    events = [json.loads(line) for line in result.lines]
    assert [event["type"] for event in events] == ["job", "item", "item", "job"]
    assert events[1]["item"]["phase"] == "Pulling"
    assert events[-1]["job"]["state"] == "Failed"


def test_warm_detached(daemon: Served, run: Run) -> None:
    assert run("image", "warm", "--detach", "nginx") == Outcome(0, "j0001\n", "")
    assert json.loads(run("image", "warm", "--no-wait", "nginx", "--json").out)["id"] == "j0002"


def test_disk_too_small_for_the_whole_request(daemon: Served, run: Run) -> None:
    class DiskTooSmall(errors.StokerError):
        reason: ClassVar[str] = "DiskTooSmall"

    daemon.api.images.failures["warm"] = DiskTooSmall("12.0 GiB needed, 3.0 GiB free", hint="remove images")
    assert run("image", "warm", "nginx") == Outcome(
        exits.NO_SPACE, "", "stoker: 12.0 GiB needed, 3.0 GiB free\nhint: remove images\n"
    )


USAGE = [
    ("image warm", "name images, or a file with -f"),
    ("image warm --watch nginx", "--watch goes with --json"),
    ("image warm --timeout 5 nginx", "'5' is not a duration; write 90s, 10m"),
    ("image warm --attempts 0 nginx", "0 is not in the range x>=1"),
    ("image warm --policy Never nginx", "'Never' is not one of 'IfNotPresent', 'Always'"),
    ("image warm --priority 1001 nginx", "1001 is not in the range"),
    ("image warm --username me nginx", "--username and --password-stdin go together"),
    ("image warm --password-stdin nginx", "--username and --password-stdin go together"),
    ("image warm --registry quay.io nginx", "--registry goes with --username"),
    (
        "image warm --username me --password-stdin nginx quay.io/a",
        "several registries (docker.io, quay.io): --registry",
    ),
    ("image warm --username me --password-stdin -f - nginx", "standard input can be read only once"),
    ("image warm --username me --password-stdin nginx", "the password on standard input is empty"),
    ("image warm -f /nonexistent nginx", "cannot read /nonexistent: No such file or directory"),
    ("image plan", "name images, or a file with -f"),
    ("image rm", "Missing argument 'REF...'"),
    ("image pin nginx --for soon", "'soon' is not a duration"),
    ("image history --limit 0", "0 is not in the range"),
    ("image frobnicate", "No such command 'frobnicate'"),
    ("image ls --frobnicate", "No such option"),
    ("completion powershell", "'powershell' is not one of"),
]


@pytest.mark.parametrize(("line", "message"), USAGE)
def test_usage_errors(
    line: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    result = runner(capsys)(*line.split())
    assert result.code == exits.USAGE
    assert result.out == ""
    assert result.err.startswith("stoker: ")
    assert message in result.err


@pytest.mark.parametrize("reference", ["", " ", " nginx", "nginx "])
def test_odd_references_are_refused_here(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(capsys)("image", "warm", reference).code == exits.USAGE


# ---------------------------------------------------------------------------------------------- plan


def test_plan(daemon: Served, run: Run) -> None:
    daemon.api.images.plan_result = Plan(
        images=[
            ImagePlan(
                image="nginx",
                reference=NGINX,
                platform="linux/amd64",
                layers_total=7,
                layers_missing=3,
                download_bytes=28 * MIB,
                unpack_bytes=71 * MIB,
            ),
            ImagePlan(image="busybox", reference=BUSYBOX, platform="linux/amd64", present=True, layers_total=1),
        ],
        space=SpaceNeed(
            path="/var/lib/containerd",
            needed_bytes=99 * MIB,
            free_bytes=212 * GIB,
            reserve_bytes=10 * GIB,
            needed_inodes=4000,
            free_inodes=9_000_000,
            reserve_inodes=100_000,
        ),
    )
    assert run("image", "plan", "nginx", "busybox", "nginx").lines == [
        "IMAGE                             PLATFORM     LAYERS  DOWNLOAD    ON DISK  STATE",
        "docker.io/library/nginx:latest    linux/amd64     3/7  28.0 MiB  ~71.0 MiB  to pull",
        "docker.io/library/busybox:latest  linux/amd64     0/1       0 B        0 B  present",
        "",
        "✓ it fits: 99.0 MiB needed, 212 GiB free on /var/lib/containerd, 10.0 GiB of it to stay free; "
        "4000 inodes needed, 9000000 free, 100000 to stay free",
    ]
    ((_, request),) = daemon.api.images.calls
    assert request.images == ["nginx", "busybox"]


def test_plan_that_does_not_fit_or_cannot_be_made(daemon: Served, run: Run) -> None:
    missing = ImagePlan(image="x", reference=normal("x"), reason="NotFound", message="no such tag", hint="check it")
    daemon.api.images.plan_result = Plan(images=[missing])
    result = run("image", "plan", "x")
    assert result.code == exits.NOT_FOUND
    assert "NotFound: no such tag" in result.out
    assert result.err == f"hint: {normal('x')}: check it\n"
    daemon.api.images.plan_result = Plan(images=[missing], space=SpaceNeed(fits=False, needed_bytes=GIB))
    result = run("image", "plan", "x", "--json")
    assert result.code == exits.NO_SPACE
    assert json.loads(result.out)["space"]["fits"] is False
    assert "✗ it does not fit: 1.0 GiB needed, 0 B free" in run("image", "plan", "x").out


# ---------------------------------------------------------------------------------------------- lists


def test_ls(daemon: Served, run: Run, ago: Ago) -> None:
    daemon.api.images.images = [
        ImageStatus(
            id="sha256:0123456789abcdef",
            references=[NGINX, "mirror/日本:1"],
            size=67 * MIB,
            pinned=True,
            pin_expires_at=ago(hours=-23.5),
            last_warmed_at=ago(minutes=3.1),
        ),
        ImageStatus(id="sha256:fedcba9876543210", digests=["a@sha256:fe"], size=5, pinned=True, kept=True),
        ImageStatus(id="sha256:7777777777777777"),
    ]
    assert run("image", "ls").lines == [
        "IMAGE                           ID                SIZE  PINNED          KEPT  WARMED",
        "<none>                          777777777777       0 B  no              no    -",
        "a@sha256:fe                     fedcba987654       5 B  yes             yes   -",
        "docker.io/library/nginx:latest  0123456789ab  67.0 MiB  ends in 23h30m  no    3m6s ago",
        "mirror/日本:1                   0123456789ab  67.0 MiB  ends in 23h30m  no    3m6s ago",
    ]
    document = json.loads(run("image", "ls", "--json").out)
    assert [image["size"] for image in document] == [67 * MIB, 5, 0]
    assert document[2]["lastWarmedAt"] is None


EMPTY = [
    ("image ls", "there are no images on this node"),
    ("image jobs", "there are no jobs"),
    ("image pins", "nothing is pinned"),
    ("image keeps", "nothing is kept"),
    ("image history", "nothing was pulled yet"),
]


@pytest.mark.parametrize(("line", "message"), EMPTY)
def test_empty_lists_say_so_on_standard_error(run: Run, line: str, message: str) -> None:
    assert run(*line.split()) == Outcome(0, "", f"{message}\n")
    assert json.loads(run(*line.split(), "--json").out) in ([], {"pins": [], "totalBytes": 0, "limitBytes": 100 * GIB})


def test_pins(daemon: Served, run: Run, ago: Ago) -> None:
    assert run("image", "pin", "nginx", "--for", "24h") == Outcome(0, f"✓ {NGINX}  pinned, until it is unpinned\n", "")
    assert daemon.api.images.calls[-1][1].seconds == 86400
    daemon.api.images.pinned[BUSYBOX] = PinStatus(
        reference=BUSYBOX,
        digest="sha256:abc",
        expires_at=ago(hours=-2.01),
        message="not seen yet",
        created_at=ago(days=2),
    )
    daemon.api.images.pinned[NGINX].created_at = ago(seconds=3)
    assert run("image", "pins").lines == [
        "IMAGE                             DIGEST     SIZE  SINCE   ENDS   VERIFIED",
        "docker.io/library/nginx:latest    -       1.0 GiB  3s ago  never  yes",
        "docker.io/library/busybox:latest  abc         0 B  2d ago  in 2h  no: not seen yet",
        "",
        "2 pinned, 2.0 GiB of at most 100 GiB",
    ]
    assert json.loads(run("image", "pins", "--json").out)["pins"][0]["verified"] is True
    result = run("image", "unpin", "nginx", "redis", "busybox")
    assert result == Outcome(
        exits.NOT_FOUND,
        f"{NGINX}  no longer pinned\n{BUSYBOX}  no longer pinned\n",
        "stoker: redis is not pinned\n",
    )


def test_a_pin_that_the_runtime_does_not_show(
    daemon: Served, run: Run, ago: Ago, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pin(request: Any) -> PinStatus:
        return PinStatus(reference=NGINX, expires_at=ago(hours=-5.02))

    monkeypatch.setattr(daemon.api.images, "pin", pin)
    result = run("image", "pin", "nginx")
    assert result.out == f"! {NGINX}  pinned, ends in 5h1m\n"
    assert result.err == "stoker: warning: the runtime does not report the image as pinned yet\n"


def test_keeps(daemon: Served, run: Run) -> None:
    result = run("image", "keep", "nginx", "--policy", "Always", "--priority", "7")
    assert result == Outcome(0, f"✓ {NGINX}  kept, it is being warmed\n", "")
    assert (daemon.api.images.calls[-1][1].policy, daemon.api.images.calls[-1][1].priority) == ("Always", 7)
    daemon.api.images.kept[BUSYBOX] = KeepStatus(reference=BUSYBOX, present=True, rewarmed=2, message="ok")
    assert run("image", "keeps").lines == [
        "IMAGE                             PRESENT  POLICY        PRIORITY  SINCE  WARMED AGAIN  NOTE",
        "docker.io/library/nginx:latest    no       Always               7  -                 0  -",
        "docker.io/library/busybox:latest  yes      IfNotPresent         0  -                 2  ok",
    ]
    assert run("image", "unkeep", "nginx").out == f"{NGINX}  no longer kept\n"
    assert json.loads(run("image", "unkeep", "busybox", "--json").out)["rewarmed"] == 2
    assert run("image", "unkeep", "nginx").code == exits.NOT_FOUND


def test_rm(daemon: Served, run: Run) -> None:
    assert run("image", "rm", "nginx").lines == [f"removed {NGINX}", "512 MiB are free again"]
    assert run("image", "rm", "--force", "nginx", "busybox").code == 0
    removed = [call for call in daemon.api.images.calls if call[0] == "remove"]
    assert removed == [("remove", ("nginx", False)), ("remove", ("nginx", True)), ("remove", ("busybox", True))]
    daemon.api.images.failures["remove"] = errors.Conflict("nginx is pinned", hint="unpin it, or --force")
    assert run("image", "rm", "nginx") == Outcome(
        exits.REFUSED, "", "stoker: nginx is pinned\nhint: unpin it, or --force\n"
    )


def test_jobs_and_cancel(daemon: Served, run: Run, ago: Ago) -> None:
    run("image", "warm", "--detach", "--name", "base", "--priority", "5", "nginx", "busybox")
    job = daemon.api.images.jobs_by_id["j0001"]
    job.created_at = ago(minutes=2)
    daemon.call(
        daemon.api.images.update,
        "j0001",
        succeeded("nginx", 67 * MIB),
        failed("busybox", "Timeout", "no answer\nfrom the registry"),
    )
    daemon.api.images.jobs_by_id["j0001"].finished_at = job.created_at + timedelta(seconds=75)
    assert run("image", "jobs").lines == [
        "JOB    NAME  STATE   READY  FAILED  PRIORITY  STARTED  TOOK",
        "j0001  base  Failed    1/2       1         5  2m ago   1m15s",
    ]
    assert run("image", "jobs", "j0").lines == [
        "job j0001 'base': Failed, 1 of 2 ready, started 2m ago",
        "IMAGE                             PHASE      DONE    PULLED  ATTEMPT  REASON",
        "docker.io/library/nginx:latest    Succeeded  100%  67.0 MiB        1  Pulled",
        "docker.io/library/busybox:latest  Failed       0%       0 B        3  Timeout: no answer from the registry",
    ]
    assert json.loads(run("image", "jobs", "j0001", "--json").out)["name"] == "base"
    assert json.loads(run("image", "jobs", "--json").out)[0]["items"] == []
    run("image", "warm", "--detach", "redis")
    assert run("image", "cancel", "j0002").out == "cancelled j0002: 1 images dropped, 0 were ready\n"
    result = run("image", "cancel", "nope")
    assert result == Outcome(
        exits.NOT_FOUND, "", "stoker: there is no job 'nope'\nhint: stoker image jobs lists them\n"
    )


def test_history(daemon: Served, run: Run, ago: Ago) -> None:
    daemon.api.images.attempts = [
        Attempt(
            reference=NGINX,
            result="Succeeded",
            attempt=1,
            started_at=ago(seconds=130),
            finished_at=ago(seconds=120),
            pulled_bytes=MIB,
        ),
        Attempt(
            reference=BUSYBOX, attempt=2, started_at=ago(hours=3), result="Failed", reason="Timeout", message="slow"
        ),
    ]
    assert run("image", "history").lines == [
        "WHEN    IMAGE                             RESULT     ATTEMPT   PULLED  TOOK  REASON",
        "2m ago  docker.io/library/nginx:latest    Succeeded        1  1.0 MiB   10s  -",
        "3h ago  docker.io/library/busybox:latest  Failed           2      0 B     -  Timeout: slow",
    ]
    assert len(json.loads(run("image", "history", "busybox", "--limit", "1", "--json").out)) == 1
    assert daemon.api.images.calls[-1] == ("history", ("busybox", 1))


# ---------------------------------------------------------------------------------------------- watch


def test_watch_a_job(daemon: Served, run: Run) -> None:
    run("image", "warm", "--detach", "nginx")
    finish(daemon, pulling("nginx", 1, 2), succeeded("nginx"))
    result = run("image", "watch", "j0")
    assert result.code == 0
    assert result.lines[:3] == ["job j0001: 1 image", f"{NGINX}: pulling", f"{NGINX}: pulled 1.0 GiB in 0s"]
    events = [json.loads(line) for line in run("--json", "image", "watch", "j0001").lines]
    assert [event["job"]["state"] for event in events] == ["Succeeded"]
    assert run("image", "watch", "nope").code == exits.NOT_FOUND


def test_watch_the_node(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    images = daemon.api.images
    original = images.watch

    def watch() -> Any:
        events = original()
        feed = images.watch_feeds[-1]
        feed.put(ImageChange(kind="create", reference=NGINX))
        feed.put(ImageChange(kind="rewarm", reference=NGINX, message="it was\nremoved"))
        from stoker.objects.images import ItemEvent, JobCounts, JobEvent

        feed.put(JobEvent(job=JobStatus(id="j9", state="Active", counts=JobCounts(desired=1))))
        feed.put(ItemEvent(job="j9", item=pulling("nginx", 1, 4), counts=JobCounts()))
        feed.put(ItemEvent(job="j9", item=failed("nginx"), counts=JobCounts()))
        feed.put(None)
        return events

    monkeypatch.setattr(images, "watch", watch)
    result = run("image", "watch")
    assert result.code == exits.UNREACHABLE
    assert result.err.startswith("stoker: stokerd has ended the stream\nhint: ")
    assert all(re.match(r"\d\d:\d\d:\d\d  ", line) for line in result.lines)
    assert [line[10:] for line in result.lines] == [
        f"create    {NGINX}",
        f"rewarm    {NGINX}: it was removed",
        "job       j9 active, 1 images",
        f"pulling   {NGINX}: 25%",
        f"failed    {NGINX}: NotFound: no such image (3 attempts)",
    ]
    events = [json.loads(line) for line in run("--json", "image", "watch").lines]
    assert [event["type"] for event in events] == ["image", "image", "job", "item", "item"]
    assert events[0] == {"type": "image", "kind": "create", "reference": NGINX, "message": ""}


# ---------------------------------------------------------------------------------------------- doctor


def test_doctor(daemon: Served, run: Run) -> None:
    result = run("doctor")
    assert result == Outcome(
        0,
        """\
  ✓ stokerd 0.1.0  (pid 812, up 3d4h, 41.0 MiB of memory)
  ✓ containerd 1.7.24  (/run/containerd/containerd.sock)
  ✓ snapshotter overlayfs  (ext4 at /var/lib/containerd)
  ✓ runc 1.1.15
  ✓ cgroup v2
  ✓ 212 GiB free  (on /var/lib/containerd, 10.0 GiB of it to stay free)

What this node can do
  ✓ pin  (the runtime honours pinned images)
  – lazy-restore  (criu is not installed)

Advice
  ! registry mirror: no mirror is configured for docker.io
      add /etc/containerd/certs.d/docker.io/hosts.toml

! it works; 1 thing could be better
""",
        "",
    )
    assert json.loads(run("doctor", "--json").out)["runtimeReady"] is True


def test_doctor_on_a_bad_node(daemon: Served, run: Run) -> None:
    daemon.api.node.node = NodeInfo(
        endpoint="/run/containerd/containerd.sock",
        runtime_message="connection refused",
        criu_version="4.2",
        space=SpaceNeed(path="/x", free_bytes=GIB, reserve_bytes=10 * GIB, free_inodes=5, reserve_inodes=9),
        capabilities=[CapabilityStatus(name="pin", available=False)],
        advice=[
            Advice(severity="info", subject="c", message="d"),
            Advice(severity="error", subject="a", message="b\x1b[2J", remedy="do it"),
            Advice(severity="error", subject="e", message="f"),
        ],
    )
    result = run("doctor")
    assert result.code == exits.FAILED
    assert result.lines[1:] == [
        "  ✗ the runtime  (/run/containerd/containerd.sock: connection refused)",
        "  ✓ CRIU 4.2",
        "  ! 1.0 GiB free  (on /x, 10.0 GiB of it to stay free; 5 inodes, 9 to stay free)",
        "",
        "What this node can do",
        "  – pin",
        "",
        "Advice",
        "  ✗ a: b�[2J",
        "      do it",
        "  ✗ e: f",
        "  – c: d",
        "",
        "✗ 2 things are wrong",
    ]
    daemon.api.node.node = NodeInfo(version="1", endpoint_tried=["/a.sock", "/b.sock"])
    result = run("doctor")
    assert result.code == exits.FAILED
    assert "  ✗ no container runtime  (tried /a.sock, /b.sock)" in result.lines
    assert result.lines[-1] == "✗ 1 thing is wrong"
    daemon.api.node.node = NodeInfo(version="1", endpoint="/a.sock", runtime_ready=True)
    result = run("doctor")
    assert result.code == 0
    assert result.lines[-1] == "✓ all is well"


def test_doctor_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(capsys)
    missing = tmp_path / "none" / "s.sock"
    result = run("doctor", "--socket", str(missing))
    assert result == Outcome(
        exits.UNREACHABLE,
        f"  ✗ stokerd cannot be reached  (there is no socket {missing})\n"
        "      is stokerd running? systemctl status stokerd\n"
        f"  ✗ there is no {missing}, and no directory {missing.parent}\n",
        "",
    )
    file = tmp_path / "file"
    file.touch()
    assert run("doctor", "--socket", str(file)).lines[-1] == f"  ✗ {file} is not a socket"
    result = run("doctor", "--socket", str(file / "under"))
    assert result.lines[-1] == f"  ✗ cannot look at {file / 'under'}  (Not a directory)"
    result = run("doctor", "--json", "--socket", str(missing))
    assert (result.code, result.out) == (exits.UNREACHABLE, "")
    assert result.err.startswith("stoker: there is no socket")


# ---------------------------------------------------------------------------------------------- the frame


def test_no_daemon(capsys: pytest.CaptureFixture[str]) -> None:
    assert runner(capsys)("--socket", "/nonexistent/s.sock", "image", "ls") == Outcome(
        exits.UNREACHABLE,
        "",
        "stoker: there is no socket /nonexistent/s.sock\nhint: is stokerd running? systemctl status stokerd\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [("--socket", "{}", "image", "jobs"), ("image", "--socket", "{}", "jobs"), ("image", "jobs", "--socket", "{}")],
)
def test_global_options_stand_anywhere(
    daemon: Served, arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STOKER_SOCKET", "/nonexistent/s.sock")
    result = runner(capsys)(*[argument.format(daemon.socket) for argument in arguments])
    assert result == Outcome(0, "", "there are no jobs\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidInput("x"), exits.USAGE),
        (errors.NotFound("x"), exits.NOT_FOUND),
        (errors.Conflict("x"), exits.REFUSED),
        (errors.LimitExceeded("x"), exits.REFUSED),
        (errors.RuntimeNoSpace("x"), exits.NO_SPACE),
        (errors.RuntimeUnavailable("x"), exits.FAILED),
        (ValueError("x"), exits.FAILED),
    ],
)
def test_exit_codes_of_refusals(daemon: Served, run: Run, error: Exception, code: int) -> None:
    daemon.api.images.failures["pins"] = error
    with capture_logs():
        result = run("image", "pins")
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("stoker: ")
    assert "Traceback" not in result.err


def test_help_names_the_exit_codes_and_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    run = runner(capsys)
    top, group, warm = run("--help"), run("image", "-h"), run("image", "warm", "--help")
    assert (top.code, group.code, warm.code) == (0, 0, 0)
    for text in (top.out, warm.out):
        assert all(f"\n    {code:<4} " in text for code in (0, 1, 2, 3, 4, 5, 6, 130))
    names = [
        "warm",
        "plan",
        "ls",
        "push",
        "pin",
        "unpin",
        "pins",
        "keep",
        "unkeep",
        "keeps",
        "rm",
        "watch",
        "jobs",
        "cancel",
        "history",
    ]
    listed = [line.split()[0] for line in group.out.partition("Commands:\n")[2].splitlines()]
    assert listed == names
    assert run() == Outcome(exits.USAGE, "", top.out)
    assert run("image") == Outcome(exits.USAGE, "", group.out)
    assert all(run("image", name, "--help").code == 0 for name in names)
    assert all("..." not in line for line in (top.out + group.out).splitlines() if line.startswith("  "))


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    result = runner(capsys)("--version")
    assert result.code == 0
    assert re.fullmatch(r"stoker (\d+\.\d+\.\d+\S*|\(not installed\))\n", result.out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    result = runner(capsys)("completion", shell)
    assert result.code == 0
    assert f"_STOKER_COMPLETE={shell}_complete" in result.out


def test_completion_asks_the_daemon(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.api.images.images = [ImageStatus(id="x", references=[NGINX, BUSYBOX])]
    monkeypatch.setenv("STOKER_SOCKET", daemon.socket)
    monkeypatch.setenv("_STOKER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_CWORD", "3")
    monkeypatch.setenv("COMP_WORDS", "stoker image rm docker.io/library/n")
    assert python(ENTRY).stdout == f"plain,{NGINX}\n"
    monkeypatch.setenv("COMP_WORDS", "stoker image cancel ")
    daemon.api.images.jobs_by_id["j1"] = JobStatus(id="j1", state="Active")
    assert python(ENTRY).stdout == "plain,j1\n"
    monkeypatch.setenv("STOKER_SOCKET", "/nonexistent")
    result = python(ENTRY)
    assert (result.stdout.strip(), result.stderr) == ("", "")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom stoker.cli.main import main\nmain(['--help'])\n"
        "print([name for name in ('aiohttp', 'asyncio', 'yaml', 'msgspec') if name in sys.modules], file=sys.stderr)"
    )
    assert python(code).stderr == "[]\n"


def test_the_client_imports_no_daemon() -> None:
    code = (
        "import sys, stoker.client, stoker.manifests, stoker.yaml_nodes, stoker.cli.main, stoker.cli.following\n"
        "print([name for name in sys.modules if name.partition('.')[0] in ('stokerd', 'grpc', 'structlog', 'rich')])"
    )
    assert python(code).stdout == "[]\n"


def test_a_reader_that_has_had_enough(daemon: Served) -> None:
    daemon.api.images.images = [ImageStatus(id=f"{number}", references=[f"image-{number}"]) for number in range(5000)]
    shell = f"{sys.executable} -c '{ENTRY}' --socket {daemon.socket} image ls | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[1:] == ["141"]
    assert result.stderr == ""


def test_output_that_cannot_be_encoded(daemon: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon.api.images.images = [ImageStatus(id="1", references=["mirror/日本:1"])]
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    result = python(ENTRY, "--socket", daemon.socket, "image", "ls")
    assert result.returncode == 0
    assert "mirror/??:1" in result.stdout
