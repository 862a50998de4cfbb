"""A node as CRI shows it: pods with a network, pulls with passwords, tokens, certificates and mirrors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import grpc
import pytest

from cri_stubs.cri.v1 import runtime_pb2 as cri
from cri_stubs.cri.v1.runtime_pb2_grpc import ImageServiceStub, RuntimeServiceStub
from tests.rig import bundled, images
from tests.rig.containerd_config import HostsEntry
from tests.rig.faultproxy import FaultProxy
from tests.rig.fixtures import MakeRegistry
from tests.rig.node import Node
from tests.rig.registry import Registry
from tests.rig.tokenauth import TokenAuth

RIGHT = cri.AuthConfig(username="someone", password="secret")
WRONG = cri.AuthConfig(username="someone", password="guess")


@asynccontextmanager
async def channel_to(node: Node) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(f"unix:{node.endpoint}") as channel:
        yield channel


async def cri_pull(node: Node, reference: str, auth: cri.AuthConfig | None = None) -> str:
    """Pull, and remove it again, so that the shared node stays as it was."""
    spec = cri.ImageSpec(image=reference)
    async with channel_to(node) as channel:
        service = ImageServiceStub(channel)
        answer = await service.PullImage(cri.PullImageRequest(image=spec, auth=auth), timeout=60)
        await service.RemoveImage(cri.RemoveImageRequest(image=spec), timeout=20)
    return answer.image_ref


async def test_runs_a_pod_with_an_address(node: Node) -> None:
    node.import_image(bundled.busybox_archive())
    config = cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name="pod", namespace="rig", uid="rig-pod"),
        log_directory=str(node.artifacts_dir),
        linux=cri.LinuxPodSandboxConfig(),
    )
    container = cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name="main"),
        image=cri.ImageSpec(image=bundled.BUSYBOX_REFERENCE),
        command=["sleep", "600"],
        log_path="main.log",
        linux=cri.LinuxContainerConfig(),
    )
    async with channel_to(node) as channel:
        runtime = RuntimeServiceStub(channel)
        pod = (await runtime.RunPodSandbox(cri.RunPodSandboxRequest(config=config), timeout=30)).pod_sandbox_id
        status = await runtime.PodSandboxStatus(cri.PodSandboxStatusRequest(pod_sandbox_id=pod), timeout=10)
        assert status.status.network.ip.startswith(node.subnet.partition(".")[0] + ".")
        assert node.bridge in node.run("ip", "-br", "link").stdout
        request = cri.CreateContainerRequest(pod_sandbox_id=pod, config=container, sandbox_config=config)
        made = (await runtime.CreateContainer(request, timeout=20)).container_id
        await runtime.StartContainer(cri.StartContainerRequest(container_id=made), timeout=20)
        execute = cri.ExecSyncRequest(container_id=made, cmd=["ip", "-4", "addr", "show", "eth0"], timeout=5)
        said = await runtime.ExecSync(execute, timeout=20)
        assert f"inet {status.status.network.ip}/" in said.stdout.decode()
        await runtime.StopPodSandbox(cri.StopPodSandboxRequest(pod_sandbox_id=pod), timeout=30)
        await runtime.RemovePodSandbox(cri.RemovePodSandboxRequest(pod_sandbox_id=pod), timeout=30)


async def test_pulls_with_a_password(node: Node, make_registry: MakeRegistry) -> None:
    own = make_registry(auth=("someone", "secret"))
    node.expose(own.port)
    node.hosts(own.address)
    there = own.push("private/image", images.build(images.random_image(seed="password")))
    for auth in (None, WRONG):
        with pytest.raises(grpc.aio.AioRpcError):
            await cri_pull(node, there.reference, auth)
    assert await cri_pull(node, there.reference, RIGHT)


@pytest.mark.parametrize("oauth", [False, True])
async def test_pulls_with_a_token(node: Node, registry: Registry, proxy_port: int, oauth: bool) -> None:
    there = registry.push("token/image", images.build(images.random_image(seed=f"token {oauth}")))
    auth = TokenAuth("someone", "secret", oauth=oauth)
    with FaultProxy(registry.address, port=proxy_port, auth=auth) as proxy:
        through = there.reference.replace(registry.address, proxy.address)
        for wrong in (None, WRONG):
            with pytest.raises(grpc.aio.AioRpcError):
                await cri_pull(node, through, wrong)
        assert auth.given == 0
        assert await cri_pull(node, through, RIGHT)
        assert auth.given >= 1
        assert any(each.has_authorization for each in proxy.matching("/blobs/"))


@pytest.fixture
def secure(node: Node, make_registry: MakeRegistry) -> Iterator[Registry]:
    own = make_registry(tls=True)
    node.expose(own.port)
    yield own
    (node.certs_dir / own.address / "hosts.toml").unlink(missing_ok=True)


async def test_pulls_by_certificate(node: Node, secure: Registry) -> None:
    there = secure.push("secure/image", images.build(images.random_image(seed="tls")))
    node.hosts(secure.address, HostsEntry(secure.url), server=secure.url)
    with pytest.raises(grpc.aio.AioRpcError, match="certificate"):
        await cri_pull(node, there.reference)
    node.hosts(secure.address, HostsEntry(secure.url, ca=secure.ca), server=secure.url)
    assert await cri_pull(node, there.reference)
    node.hosts(secure.address, HostsEntry(secure.url, skip_verify=True), server=secure.url)
    assert await cri_pull(node, there.reference)


async def test_pulls_from_a_mirror(node: Node, registry: Registry, proxy: FaultProxy) -> None:
    there = registry.push("mirrored/image", images.build(images.random_image(seed="mirror")))
    node.hosts("registry.test", HostsEntry(proxy.address), server="registry.test")
    assert await cri_pull(node, "registry.test/mirrored/image:v1")
    assert proxy.bytes_sent("/blobs/") >= there.compressed_size
    assert "ns=registry.test" in proxy.requests[0].query
