"""Which store gets a new key for its secrets, and which is not served without its own."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.objects.cluster_clones import Clone, CloneEnv, CloneSpec
from stoker.objects.cluster_images import PullSecret, PullSecretSpec, SecretAuth
from stoker.objects.cluster_requests import (
    ContainerRecreateRequest,
    ContainerRecreateRequestSpec,
    RecreateContainer,
    RecreateEnv,
)
from stoker.objects.meta import Object, ObjectMeta
from stoker_coordinator.sealing import SealBroken, Sealer
from stoker_coordinator.store.memory import MemoryStore
from stoker_coordinator.store.sealed import open_sealer

META = ObjectMeta(name="one", namespace="ns")
PULL_SECRET = PullSecret(metadata=META, spec=PullSecretSpec(auths=(SecretAuth(registry="r", password="p"),)))
CONTAINER = RecreateContainer("app", image="reg/a:1", env=(RecreateEnv("TOKEN", "t"),))
SEALED = {
    "pull secret": PULL_SECRET,
    "recreate": ContainerRecreateRequest(
        metadata=META, spec=ContainerRecreateRequestSpec(pod_name="web-0", containers=(CONTAINER,))
    ),
    "clone": Clone(metadata=META, spec=CloneSpec(checkpoint="saved", env=(CloneEnv("TOKEN", "t"),))),
}


async def test_a_store_without_secrets_gets_a_key_that_stays(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "state" / "seal.key"
    await store.create(PullSecret(metadata=META))
    sealed = (await open_sealer(path, store)).sealed(PULL_SECRET)
    assert (await open_sealer(path, store)).opened(sealed) == PULL_SECRET


@pytest.mark.parametrize("obj", SEALED.values(), ids=SEALED)
async def test_a_store_with_secrets_is_not_served_without_its_key(tmp_path: Path, obj: Object) -> None:
    store, path = MemoryStore(), tmp_path / "seal.key"
    sealer = Sealer.load(path)
    await store.create(sealer.sealed(obj))
    text = path.read_text()
    path.unlink()
    with pytest.raises(SealBroken, match=f"no key file.*{obj.kind}.*one") as caught:
        await open_sealer(path, store)
    assert "put it back" in (caught.value.hint or "")
    assert not path.exists()
    path.write_text(text)
    path.chmod(0o600)
    (kept,) = (await store.list(type(obj))).items
    assert (await open_sealer(path, store)).opened(kept) == msgspec.structs.replace(obj, metadata=kept.metadata)


async def test_a_key_that_was_made_by_hand_is_taken_when_the_old_one_is_lost(tmp_path: Path) -> None:
    store, path = MemoryStore(), tmp_path / "seal.key"
    await store.create(Sealer({"old": b"1" * 64}).sealed(PULL_SECRET))
    Sealer.load(path)
    sealer = await open_sealer(path, store)
    (kept,) = (await store.list(PullSecret)).items
    with pytest.raises(SealBroken):
        sealer.opened(kept)
    assert sealer.opened(sealer.sealed(PULL_SECRET)) == PULL_SECRET
