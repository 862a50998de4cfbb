"""Who owns a pod, what names mean, and what is shown."""

from __future__ import annotations

import msgspec
import pytest

from stokerd.containers import views
from stokerd.containers.inventory_model import Picture, owner_of
from stokerd.errors import Conflict, NotFound
from stokerd.runtime.pod_types import Blueprint, Container, ContainerState, ContainerStatus, Pod, PodState

KUBELET = {f"io.kubernetes.pod.{key}": "x" for key in ("name", "namespace", "uid")}
SOURCE = {"kubernetes.io/config.source": "api"}


def pod(
    identity: str, name: str, namespace: str = "shop", attempt: int = 0, state: PodState = "ready", uid: str = ""
) -> Pod:
    return Pod(identity, name, namespace, uid or f"uid-{name}", attempt, state)


def container(identity: str, pod_id: str, name: str, attempt: int = 0, state: ContainerState = "running") -> Container:
    return Container(identity, pod_id, name, attempt, "app:v1", "sha256:1", state)


class TestOwner:
    @pytest.mark.parametrize(
        ("labels", "annotations", "owner"),
        [
            (KUBELET, SOURCE, "kubelet"),
            (KUBELET, {}, "other"),
            ({}, SOURCE, "other"),
            ({**KUBELET, "io.kubernetes.pod.uid": ""}, SOURCE, "other"),
            ({"stoker.dev/pool": "p"}, {}, "stoker"),
            ({"app": "x"}, {}, "other"),
        ],
    )
    def test_by_labels(self, labels: dict[str, str], annotations: dict[str, str], owner: str) -> None:
        found = Pod("p", "web", "shop", "u", 0, "ready", None, labels, annotations)
        assert owner_of(found) == owner

    def test_by_what_the_kubelet_writes_on_containers(self) -> None:
        found = Pod("p", "web", "shop", "u", 0, "ready", None, KUBELET)
        theirs = Container(
            "c", "p", "app", 0, "i", "r", "running", None, {"io.kubernetes.container.name": "app"},
            {"io.kubernetes.container.hash": "1"},
        )  # fmt: skip
        assert owner_of(found, [theirs]) == "kubelet"


class TestPods:
    PICTURE = Picture(
        [
            pod("aa11", "web"), pod("aa22", "web", "bank", uid="uid-bank"), pod("bb33", "db"),
            pod("cc44", "db", attempt=1, state="notready"), pod("dd55", "aa1"), pod("ee66", "old", state="notready"),
            pod("ff77", "old", attempt=1, state="notready"),
        ]
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "namespace", "found"),
        [
            ("shop/web", "", "aa11"), ("web", "bank", "aa22"), ("uid-bank", "", "aa22"), ("aa22", "", "aa22"),
            ("bb", "", "bb33"), ("db", "", "bb33"), ("aa1", "", "dd55"), ("old", "", "ff77"), ("ee", "", "ee66"),
        ],
    )  # fmt: skip
    def test_found(self, name: str, namespace: str, found: str) -> None:
        assert self.PICTURE.find_pod(name, namespace).id == found

    def test_what_may_be_several_names_them(self) -> None:
        with pytest.raises(Conflict) as caught:
            self.PICTURE.find_pod("web")
        assert "bank/web (aa22), shop/web (aa11)" in caught.value.message
        with pytest.raises(Conflict):
            self.PICTURE.find_pod("aa")

    @pytest.mark.parametrize("name", ["", "nope", "shop/nope", "zz"])
    def test_nothing(self, name: str) -> None:
        with pytest.raises(NotFound):
            self.PICTURE.find_pod(name)


class TestContainers:
    PICTURE = Picture(
        [pod("p1", "web"), pod("p2", "web", "bank"), pod("p3", "db")],
        [
            container("a1", "p1", "app", 0, "exited"), container("a2", "p1", "app", 1),
            container("a3", "p1", "app", 2, "created"),
            container("b1", "p2", "app"), container("c1", "p3", "main"), container("x1", "gone", "stray", 0, "exited"),
        ],
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("name", "found"),
        [
            ("shop/web/app", "a2"), ("bank/web/app", "b1"), ("db/main", "c1"), ("main", "c1"), ("a1", "a1"),
            ("c", "c1"), ("stray", "x1"),
        ],
    )  # fmt: skip
    def test_found(self, name: str, found: str) -> None:
        assert self.PICTURE.find_container(name).id == found

    @pytest.mark.parametrize("name", ["web/app", "app"])
    def test_what_may_be_several_names_them(self, name: str) -> None:
        with pytest.raises(Conflict) as caught:
            self.PICTURE.find_container(name)
        assert "shop/web/app (a2)" in caught.value.message
        assert "bank/web/app (b1)" in caught.value.message

    def test_views(self) -> None:
        (db, *_), pods = [each for each in self.PICTURE.pods if each.name == "db"], self.PICTURE.pods
        assert [f"{each.namespace}/{each.name}" for each in pods] == ["bank/web", "shop/db", "shop/web"]
        assert [each.name for each in views.pod(self.PICTURE, db).containers] == ["main"]
        stray = views.container(self.PICTURE, self.PICTURE.find_container("x1"))
        assert (stray.pod, stray.phase, stray.owner) == ("", "Exited", "other")

    def test_environment_is_shown_by_name_only(self) -> None:
        spec = {
            "process": {"args": ["run"], "env": ["TOKEN=hunter2", "EMPTY="]},
            "linux": {"devices": [{"path": "/dev/null"}]},
        }
        blueprint = Blueprint({"envs": [{"key": "TOKEN", "value": "hunter2"}]})
        status = ContainerStatus(self.PICTURE.find_container("a1"), blueprint, exit_code=3, spec=spec)
        detail = views.container_detail(self.PICTURE, status)
        assert (detail.env_names, detail.command, detail.devices) == (["TOKEN", "EMPTY"], ["run"], ["/dev/null"])
        assert detail.exit_code == 3
        assert b"hunter2" not in msgspec.json.encode(detail)
