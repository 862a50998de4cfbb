"""Objects by HTTP: in, out, changed, gone; and what is refused, in which words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stoker.objects.cluster_images import ImagePullJob, PullSecret
from stoker.objects.cluster_requests import ContainerRecreateRequest
from tests.unit.coordinator.api.conftest import ALL_JOBS, JOBS, SECRETS, Api, job

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+json"


async def test_an_object_goes_in_and_comes_out(api: Api) -> None:
    made = await api.call("POST", JOBS, job("a"))
    got = await api.call("GET", f"{JOBS}/a")

    assert (made.status, got.status) == (201, 200)
    assert made.body == got.body
    assert got.body["metadata"]["namespace"] == "default"
    assert got.body["spec"]["image"] == "docker.io/library/nginx:1"


async def test_an_object_is_shown_in_the_version_that_is_asked_for(api: Api) -> None:
    old = {**job("a"), "apiVersion": "apps.kruise.io/v1alpha1"}
    path = JOBS.replace("v1beta1", "v1alpha1")

    assert (await api.call("POST", path, old)).body["apiVersion"] == "apps.kruise.io/v1alpha1"
    assert (await api.call("GET", f"{JOBS}/a")).body["apiVersion"] == "apps.kruise.io/v1beta1"
    listed = (await api.call("GET", path)).body
    assert listed["kind"] == "ImagePullJobList"
    assert listed["items"][0]["apiVersion"] == "apps.kruise.io/v1alpha1"


async def test_what_has_no_effect_is_named(api: Api) -> None:
    made = await api.call("POST", JOBS, {**job("a", typo=1, sandboxConfig={"labels": {"a": "b"}}), "status": {"x": 1}})

    assert made.status == 201
    assert sorted(made.warnings) == [
        "ImagePullJob 'a': spec.sandboxConfig is not honoured here: stokerd chooses the labels and annotations of its"
        " pulls",
        "ImagePullJob 'a': spec.typo is unknown and has no effect",
        "ImagePullJob 'a': status is not honoured here: the coordinator writes it",
    ]


async def test_everything_that_is_wrong_is_named_at_once(api: Api) -> None:
    refused = await api.call("POST", JOBS, job("A_", image=5, parallelism="x%", completionPolicy={"type": "Never!"}))  # type: ignore[arg-type]

    assert refused.status == 422
    assert refused.body["kind"] == "Status"
    assert refused.body["problems"] == [
        "spec.image: must be text, not a whole number",
        "spec.completionPolicy.type: is 'Never!', not 'Always' or 'Never'",
    ]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", f"{JOBS}/none", None, 404, "there is no ImagePullJob default/none"),
        ("GET", "/apis/apps.kruise.io/v1/imagepulljobs", None, 404, "/apis/apps.kruise.io/v1beta1/imagepulljobs"),
        ("GET", "/apis/stoker.dev/v1/things", None, 404, "there are no things"),
        ("GET", "/nowhere", None, 404, "/nowhere"),
        ("GET", "/apis/stoker.dev/v1/namespaces/x/nodes", None, 404, "in no namespace"),
        ("GET", "/apis/apps.kruise.io/v1beta1/imagepulljobs/a", None, 404, "namespaces/NAMESPACE"),
        ("GET", f"{JOBS}/a/log", None, 404, "only status"),
        ("PUT", JOBS, job("a"), 405, "does not take PUT"),
        ("POST", JOBS, b"{", 400, "not JSON"),
        ("POST", JOBS, b"[" * 100_000, 400, "not JSON"),
        ("POST", JOBS, [], 400, "not an object"),
        ("POST", JOBS, b'{"a":' * 60 + b"1" + b"}" * 60, 400, "nested more than 50 levels deep"),
        ("POST", f"{JOBS}?dryRun=Some", job("a"), 400, "not All"),
        ("POST", JOBS, {**job("a"), "kind": "Node"}, 422, "'ImagePullJob' is expected"),
        ("POST", JOBS.replace("default", "Default"), job("a"), 422, "no namespace"),
        ("POST", JOBS, {**job("a"), "metadata": {"name": "a", "namespace": "other"}}, 422, "'default' was asked for"),
        ("POST", JOBS, {**job("a"), "metadata": None}, 422, "metadata.name: is missing"),
        ("PUT", f"{JOBS}/a", job("b"), 422, "'a' was asked for"),
        ("PUT", f"{JOBS}/a", job("a"), 404, "there is no"),
        ("GET", f"{JOBS}?labelSelector=a=b=c", None, 400, "label selector"),
        ("GET", f"{JOBS}?fieldSelector=spec.x=1", None, 400, "metadata.name, metadata.namespace, spec.image"),
        ("GET", f"{JOBS}?limit=-1", None, 400, "limit"),
        ("GET", f"{JOBS}?continue=x", None, 422, "continue token"),
    ],
)
async def test_what_is_refused_says_why(api: Api, method: str, path: str, body: Any, status: int, says: str) -> None:
    refused = await api.call(method, path, body)

    assert (refused.status, refused.body["code"]) == (status, status)
    assert says in refused.body["message"] + refused.body.get("hint", "")


async def test_a_body_that_is_too_large_or_of_another_kind_is_refused(api: Api) -> None:
    large = await api.call("POST", JOBS, b" " * (api.settings.max_body + 1))
    strange = await api.call("POST", JOBS, b"a: b", media="application/yaml")
    heavy = await api.call("POST", JOBS, {**job("a"), "metadata": {"name": "a", "annotations": {"a": "x" * 300_000}}})

    assert [each.status for each in (large, strange, heavy)] == [413, 415, 422]
    assert "merge" not in strange.body["message"]


async def test_a_dry_run_changes_nothing(api: Api) -> None:
    assert (await api.call("POST", f"{JOBS}?dryRun=All", job("a"))).status == 201
    assert (await api.call("GET", f"{JOBS}/a")).status == 404
    await api.call("POST", JOBS, job("a"))
    for method, body, media in (("PUT", job("a", "new"), "application/json"), ("PATCH", job("a", "new"), APPLY)):
        assert (await api.call(method, f"{JOBS}/a?dryRun=All", body, media=media)).body["spec"]["image"] == "new"
    assert (await api.call("DELETE", f"{JOBS}/a?dryRun=All")).status == 200
    assert (await api.call("GET", f"{JOBS}/a")).body["metadata"]["generation"] == 1


async def test_an_update_of_an_old_object_is_refused(api: Api) -> None:
    made = (await api.call("POST", JOBS, job("a"))).body
    first = await api.call("PUT", f"{JOBS}/a", {**made, "spec": {"image": "first"}})
    second = await api.call("PUT", f"{JOBS}/a", {**made, "spec": {"image": "second"}})

    assert (first.status, second.status) == (200, 409)
    assert second.body["reason"] == "Conflict"
    assert (await api.call("POST", JOBS, job("a"))).body["reason"] == "AlreadyExists"


async def test_a_hundred_edits_at_once(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))
    patches = [
        api.call("PATCH", f"{JOBS}/a", {"metadata": {"labels": {f"n{number}": "1"}}}, media=MERGE)
        for number in range(100)
    ]
    answers = await asyncio.gather(*patches)

    assert {answer.status for answer in answers} == {200}
    assert len((await api.call("GET", f"{JOBS}/a")).body["metadata"]["labels"]) == 100


async def test_a_patch_is_checked_as_a_whole_object_is(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))

    wrong = await api.call("PATCH", f"{JOBS}/a", {"spec": {"parallelism": "200%"}}, media=MERGE)
    typo = await api.call("PATCH", f"{JOBS}/a", {"spec": {"typo": 1, "parallelism": 2}}, media=MERGE)
    fixed = await api.call("PATCH", f"{JOBS}/a", {"spec": {"pullSecrets": ["x"]}}, media=MERGE)
    gone = await api.call("PATCH", f"{JOBS}/a", {"spec": {"image": None}}, media=MERGE)

    assert (wrong.status, typo.status, fixed.status, gone.status) == (422, 200, 422, 422)
    assert "200%" in wrong.body["message"]
    assert typo.warnings == ["spec.typo is unknown and has no effect"]
    assert "pullSecrets: cannot be changed" in fixed.body["message"]


async def test_apply_makes_or_changes_and_says_which(api: Api) -> None:
    first = await api.call("PATCH", f"{JOBS}/a", job("a"), media=APPLY)
    await api.call("PATCH", f"{JOBS}/a", {"metadata": {"labels": {"mine": "1"}, "finalizers": ["x/y"]}}, media=MERGE)
    same = await api.call("PATCH", f"{JOBS}/a", job("a"), media=APPLY)
    changed = await api.call("PATCH", f"{JOBS}/a", job("a", "new"), media=APPLY)

    assert (first.status, same.status, changed.status) == (201, 200, 200)
    outcomes = [each.headers["Stoker-Outcome"] for each in (first, same, changed)]
    assert outcomes == ["created", "unchanged", "changed"]
    assert same.body["metadata"]["generation"] == 1
    assert changed.body["spec"]["image"] == "new"
    assert changed.body["metadata"]["labels"] == {"mine": "1"}
    assert changed.body["metadata"]["finalizers"] == ["x/y"]


async def test_a_status_has_a_path_of_its_own(api: Api) -> None:
    made = (await api.call("POST", JOBS, job("a"))).body
    patched = await api.call("PATCH", f"{JOBS}/a/status", {"status": {"succeeded": 3, "failed": 1}}, media=MERGE)
    put = await api.call("PUT", f"{JOBS}/a/status", {**made, "metadata": {"name": "a"}, "status": {"failed": 2}})
    old = await api.call("PUT", f"{JOBS}/a/status", {**made, "status": {}})

    assert (patched.body["status"]["succeeded"], patched.body["metadata"]["generation"]) == (3, 1)
    assert put.body["status"]["failed"] == 2
    assert "succeeded" not in put.body["status"]
    assert old.status == 409


async def test_deletion_can_have_a_condition(api: Api) -> None:
    uid = (await api.call("POST", JOBS, job("a"))).body["metadata"]["uid"]

    assert (await api.call("DELETE", f"{JOBS}/a?uid=other")).status == 409
    assert (await api.call("DELETE", f"{JOBS}/a?uid={uid}")).status == 200
    assert (await api.call("DELETE", f"{JOBS}/a")).status == 404


async def test_lists_page_and_select(api: Api) -> None:
    for number in range(5):
        await api.call(
            "POST", JOBS, {**job(f"j{number}"), "metadata": {"name": f"j{number}", "labels": {"n": str(number)}}}
        )

    first = (await api.call("GET", f"{ALL_JOBS}?limit=2")).body
    assert first["metadata"]["remainingItemCount"] == 3
    second = (await api.call("GET", f"{ALL_JOBS}?limit=10&continue={first['metadata']['continue']}")).body
    chosen = (await api.call("GET", f"{ALL_JOBS}?labelSelector=n in (1,3)")).body
    named = (await api.call("GET", f"{ALL_JOBS}?fieldSelector=metadata.name=j4")).body

    def names(body: Any) -> list[str]:
        return [item["metadata"]["name"] for item in body["items"]]

    assert names(first) + names(second) == [f"j{number}" for number in range(5)]
    assert (names(chosen), names(named)) == (["j1", "j3"], ["j4"])


# ---------------------------------------------------------------------------------------------- secrets


async def test_a_secret_goes_in_and_never_comes_out(api: Api) -> None:
    secret = {
        "apiVersion": "stoker.dev/v1",
        "kind": "PullSecret",
        "metadata": {"name": "s"},
        "spec": {"auths": [{"registry": "r.example", "username": "me", "password": "hunter2-secret"}]},
    }
    answers = [
        await api.call("POST", SECRETS, secret),
        await api.call("GET", f"{SECRETS}/s"),
        await api.call("GET", SECRETS),
        await api.call("PATCH", f"{SECRETS}/s", secret, media=APPLY),
        await api.call("PATCH", f"{SECRETS}/s", {"metadata": {"labels": {"a": "b"}}}, media=MERGE),
        await api.call("PATCH", f"{SECRETS}/s", {"spec": {"auths": "hunter2-secret"}}, media=MERGE),
        await api.call("PUT", f"{SECRETS}/s", {**secret, "spec": {"auths": [{"password": ["hunter2-secret"]}]}}),
    ]

    assert all(b"hunter2" not in answer.raw for answer in answers)
    assert answers[1].body["spec"]["auths"] == [
        {"registry": "r.example", "username": "[sealed]", "password": "[sealed]"}
    ]
    assert answers[3].body["metadata"]["generation"] == 1
    kept = await api.store.get(PullSecret, "s", "default")
    assert "hunter2" not in repr(kept.spec.auths[0].password)
    assert api.sealer.opened(kept).spec.auths[0].password == "hunter2-secret"
    assert "hunter2" not in (api.directory / "audit.log").read_text()


async def test_what_is_shown_in_place_of_a_secret_is_not_taken_for_one(api: Api) -> None:
    secret = {
        "apiVersion": "stoker.dev/v1",
        "kind": "PullSecret",
        "metadata": {"name": "s"},
        "spec": {"auths": [{"registry": "r.example", "password": "x"}]},
    }
    await api.call("POST", SECRETS, secret)
    shown = (await api.call("GET", f"{SECRETS}/s")).body

    refused = await api.call("PUT", f"{SECRETS}/s", shown)

    assert refused.status == 422
    assert "spec.auths[0].password: is what is shown instead" in refused.body["message"]


async def test_a_secret_of_kubernetes_is_a_pull_secret(api: Api) -> None:
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": "s"},
        "stringData": {".dockerconfigjson": '{"auths": {"https://index.docker.io/v1/": {"auth": "bWU6cHc="}}}'},
    }
    made = await api.call("POST", SECRETS, secret)

    assert made.status == 201
    opened = api.sealer.opened(await api.store.get(PullSecret, "s", "default"))
    assert [(each.registry, each.username, each.password) for each in opened.spec.auths] == [("docker.io", "me", "pw")]


async def test_a_variable_of_a_recreate_request_is_sealed(api: Api) -> None:
    request = {
        "apiVersion": "stoker.dev/v1",
        "kind": "ContainerRecreateRequest",
        "metadata": {"name": "r"},
        "spec": {"podName": "p", "containers": [{"name": "c", "env": [{"name": "K", "value": "hunter2"}]}]},
    }
    path = "/apis/stoker.dev/v1/namespaces/default/containerrecreaterequests"
    made = await api.call("POST", path, request)
    again = await api.call("PATCH", f"{path}/r", request, media=APPLY)
    other = await api.call("PATCH", f"{path}/r", {"spec": {"podName": "q"}}, media=MERGE)

    assert (made.status, again.status, other.status) == (201, 200, 422)
    assert b"hunter2" not in made.raw + again.raw
    kept = api.sealer.opened(await api.store.get(ContainerRecreateRequest, "r", "default"))
    assert kept.spec.containers[0].env[0].value == "hunter2"


async def test_the_store_and_the_api_see_the_same(api: Api) -> None:
    await api.call("POST", JOBS, job("a"))
    await api.store.delete(ImagePullJob, "a", "default")

    assert (await api.call("GET", f"{JOBS}/a")).status == 404
