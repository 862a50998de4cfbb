"""``stoker pods``, ``containers``, ``inspect``."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from stoker.cli import exits
from stokerd import errors
from tests.unit.api.fake_containers import container, long_id, pod
from tests.unit.client.commands import Ago, Outcome, Run, complete
from tests.unit.client.served import Served

WEB, DNS = "default/web-0", "kube-system/dns"


@pytest.fixture(autouse=True)
def node(daemon: Served, ago: Ago) -> None:
    pods = daemon.api.containers.all_pods = [
        pod(
            WEB,
            container("main", WEB, attempt=2),
            container("main", WEB, attempt=1, phase="Exited"),
            container("side", WEB, phase="Exited", image="sha256:" + "ab" * 32),
        ),
        pod(DNS, container("dns", DNS), owner="kubelet", phase="NotReady"),
    ]
    for one in pods:
        one.created_at = ago(hours=2, minutes=5)
        for each in one.containers:
            each.created_at = ago(minutes=5)


def short(name: str) -> str:
    return long_id(name)[:13]


def test_pods(daemon: Served, run: Run) -> None:
    assert run("pods").lines == [
        "POD              STATE     OWNER    CONTAINERS  AGE   ID",
        f"default/web-0    Ready     stoker          1/2  2h5m  {short(WEB)}",
        f"kube-system/dns  NotReady  kubelet         1/1  2h5m  {short(DNS)}",
    ]
    document = json.loads(run("pods", "--json").out)
    assert [len(one["containers"]) for one in document] == [3, 1]
    assert document[0]["attempt"] == 0
    daemon.api.containers.all_pods = []
    assert run("pods") == Outcome(0, "", "there are no pods on this node\n")


def test_containers(daemon: Served, run: Run) -> None:
    main, side, dns = short(f"{WEB}/main/2"), short(f"{WEB}/side/0"), short(f"{DNS}/dns/0")
    listed = [
        "CONTAINER  POD              STATE    ATTEMPT  AGE  IMAGE                 ID",
        f"main       default/web-0    Running        2  5m   nginx:1.27            {main}",
        f"side       default/web-0    Exited         0  5m   sha256:ababababababa  {side}",
        f"dns        kube-system/dns  Running        0  5m   nginx:1.27            {dns}",
    ]
    assert run("containers").lines == listed
    assert run("ps").lines == listed
    every = run("ps", "-a").lines
    assert len(every) == 5
    assert every[2].split()[:4] == ["main", "default/web-0", "Exited", "1"]
    assert len(json.loads(run("containers", "--json").out)) == 3
    assert len(json.loads(run("containers", "--all", "--json").out)) == 4
    daemon.api.containers.all_pods = [pod(WEB)]
    assert run("ps") == Outcome(0, "", "there are no containers on this node\n")


def test_containers_of_one_pod(run: Run) -> None:
    for name in (DNS, "dns", short(DNS)):
        assert [line.split()[0] for line in run("containers", "--pod", name).lines] == ["CONTAINER", "dns"]
    assert run("containers", "--pod", "nope").code == exits.NOT_FOUND


def test_inspect_a_pod(daemon: Served, run: Run) -> None:
    info = daemon.api.containers.all_pods[0]
    info.annotations["big"] = "x" * 121
    info.labels["odd"] = "a\x1b[2Jb"
    lines = run("inspect", WEB).lines
    assert lines[0] == "Pod default/web-0"
    assert f"  id           {long_id(WEB)}" in lines
    for line in (
        "  state        Ready",
        "  owner        stoker",
        "  address      10.88.0.4",
        "  network      /run/netns/cni-1",
        "  labels       app=web-0",
        "               odd=a�[2Jb",
        "  annotations  big (121 characters, see --json)",
        "               note=hush",
        "  and 1 former attempt",
    ):
        assert line in lines
    assert any(line.startswith("  created      2h5m ago (20") for line in lines)
    assert not any("runtime" in line for line in lines)
    assert [line.split()[:3] for line in lines if line.startswith(("  main", "  side"))] == [
        ["main", "Running", "2"],
        ["side", "Exited", "0"],
    ]
    document = json.loads(run("inspect", WEB, "--json").out)
    assert document["info"]["annotations"]["big"] == "x" * 121
    daemon.api.containers.all_pods = [pod(WEB)]
    assert run("inspect", WEB).lines[-1] == "  it has no containers"


def test_inspect_a_container(run: Run) -> None:
    lines = run("inspect", "web-0/main").lines
    assert lines[0] == "Container default/web-0/main"
    for line in (
        "  state        Running",
        "  attempt      2",
        "  command      nginx -g 'daemon off;'",
        "  environment  HOME",
        "               TOKEN",
        "  mounts       /data from /mnt/data, read-only",
        "  devices      /dev/nvidia0",
    ):
        assert line in lines
    assert "  state        Exited, exit code 0, Completed" in run("inspect", "web-0/side").lines
    document = json.loads(run("inspect", "web-0/main", "--json").out)
    assert (document["envNames"], document["exitCode"]) == (["HOME", "TOKEN"], None)
    assert json.loads(run("inspect", "web-0/side", "--json").out)["exitCode"] == 0


def test_inspect_several(run: Run) -> None:
    result = run("inspect", short(DNS), "nope", short(f"{WEB}/side/0"))
    assert result.code == exits.NOT_FOUND
    assert [line for line in result.lines if line.startswith(("Pod", "Container"))] == [
        "Pod kube-system/dns",
        "Container default/web-0/side",
    ]
    assert result.err == "stoker: there is no pod and no container 'nope'\nhint: stoker pods and stoker ps list them\n"


def test_a_name_of_a_pod_and_of_a_container(daemon: Served, run: Run) -> None:
    daemon.api.containers.all_pods.append(pod("web-0/main"))
    result = run("inspect", "web-0/main")
    assert result.lines[0] == "Pod web-0/main"
    assert result.err == "web-0/main is the name of a container, too: stoker inspect --container web-0/main\n"
    assert run("inspect", "--container", "web-0/main").lines[0] == "Container default/web-0/main"
    assert run("inspect", "--pod", "web-0/main").err == ""
    assert run("inspect", "--pod", "web-0/side").err.startswith("stoker: there is no pod 'web-0/side'")


def test_a_beginning_that_several_have(daemon: Served, run: Run) -> None:
    daemon.api.containers.all_pods.append(pod("other/web-0"))
    result = run("inspect", "web-0")
    assert result.code == exits.REFUSED
    assert result.err.startswith("stoker: 'web-0' fits several pods: ")
    assert run("inspect").code == exits.USAGE


def test_failures_of_the_runtime_are_told(daemon: Served, run: Run) -> None:
    daemon.api.containers.failures["pod"] = errors.RuntimeUnavailable("containerd does not answer")
    with capture_logs():
        result = run("inspect", "web-0/nope")
    assert (result.code, result.err) == (exits.FAILED, "stoker: containerd does not answer\n")


def test_completion(daemon: Served, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(monkeypatch, "containers --pod ") == [WEB, DNS]
    assert complete(monkeypatch, "ps --pod d") == [WEB]
    assert complete(monkeypatch, "ps --pod web") == ["web-0"]
    assert complete(monkeypatch, f"inspect {WEB}") == [WEB, f"{WEB}/main", f"{WEB}/side"]
    monkeypatch.setenv("STOKER_SOCKET", "/nonexistent")
    assert complete(monkeypatch, "inspect ") == []
