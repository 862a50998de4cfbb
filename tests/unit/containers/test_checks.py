"""Requests that make no sense, and what is remembered of those that do."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stoker.objects.containers import EnvVar, Probe, RecreateRequest, RecreateStrategy, RecreateTarget
from stoker.objects.images import InlineAuth
from stokerd.containers.checks import check, digest_of, spec_of
from stokerd.errors import InvalidInput
from stokerd.settings import ContainerSettings


def request(*targets: RecreateTarget, **how: Any) -> RecreateRequest:
    return RecreateRequest(pod=how.pop("pod", "web"), containers=list(targets or [RecreateTarget(name="app")]), **how)


def app(**how: Any) -> RecreateTarget:
    return RecreateTarget(name="app", **how)


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (request(pod=""), "pod"),
        (request(name="a/b"), "name"),
        (request(namespace="-"), "namespace"),
        (request(all=True), "containers"),
        (RecreateRequest(pod="web"), "containers"),
        (request(app(), app()), "app named twice"),
        (request(*(RecreateTarget(name=f"c{n}") for n in range(201))), "200"),
        (request(RecreateTarget(name="")), "no name"),
        (request(app(image="UPPER CASE")), "image reference"),
        (request(app(env=[EnvVar(name="")])), "env"),
        (request(app(env=[EnvVar(name="A=B", value="1")])), "env"),
        (request(app(env=[EnvVar(name="A", value="x\0y")])), "NUL"),
        (request(app(env=[EnvVar(name="A"), EnvVar(name="A", value="1")])), "twice"),
        (request(app(probe=Probe())), "one of exec and tcpPort"),
        (request(app(probe=Probe(exec=["a"], tcp_port=1))), "one of exec and tcpPort"),
        (request(app(probe=Probe(tcp_port=70_000))), "no port"),
        (request(app(probe=Probe(exec=["a"], period_seconds=0))), "periodSeconds"),
        (request(app(probe=Probe(exec=["a"], timeout_seconds=float("nan")))), "timeoutSeconds"),
        (request(app(probe=Probe(exec=["a"], failure_threshold=0))), "failureThreshold"),
        (request(active_deadline_seconds=0), "activeDeadlineSeconds"),
        (request(ttl_seconds_after_finished=-1), "ttlSecondsAfterFinished"),
        (request(strategy=RecreateStrategy(min_started_seconds=float("inf"))), "minStartedSeconds"),
        (request(strategy=RecreateStrategy(unready_grace_period_seconds=-1)), "unreadyGracePeriodSeconds"),
        (request(strategy=RecreateStrategy(termination_grace_period_seconds=-1)), "terminationGracePeriodSeconds"),
    ],
)
def test_what_cannot_be_meant_so(wrong: RecreateRequest, where: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(wrong)
    assert where in caught.value.message


def test_values_of_variables_are_in_no_message_and_not_remembered() -> None:
    secret = "hunter2hunter2"
    good = request(app(image="app:v2", env=[EnvVar(name="A", value=secret), EnvVar(name="B")]))
    check(good)
    spec = spec_of(good, good.containers, ContainerSettings())
    assert secret not in repr(spec) + msgspec.json.encode(spec).decode() + repr(good)
    (target,) = spec.targets
    assert (target.image, target.env_set, target.env_removed) == ("docker.io/library/app:v2", ("A",), ("B",))
    with pytest.raises(InvalidInput) as caught:
        check(request(app(env=[EnvVar(name="A", value=secret + "\0")])))
    assert secret not in caught.value.message


def test_a_digest_tells_contents_apart_and_nothing_else() -> None:
    first = request(app(env=[EnvVar(name="A", value="1")]))
    again = request(app(env=[EnvVar(name="A", value="1")]), auths=[InlineAuth(registry="r", password="p")])
    other = request(app(env=[EnvVar(name="A", value="2")]))
    assert digest_of(first, b"salt") == digest_of(again, b"salt") != digest_of(other, b"salt")
    assert digest_of(first, b"salt") != digest_of(first, b"pepper")
    assert digest_of(first, b"s" * 200)


def test_the_settings_fill_in() -> None:
    spec = spec_of(request(), [app()], ContainerSettings(request_ttl=7))
    assert (spec.ttl, spec.grace) == (7, None)
    spec = spec_of(request(ttl_seconds_after_finished=0), [app()], ContainerSettings(request_ttl=7))
    assert spec.ttl == 0
