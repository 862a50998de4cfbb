"""``ContainerRecreateRequest`` as a request to recreate containers in place.

``apps.kruise.io/v1alpha1`` and ``v1beta1`` have OpenKruise's fields. ``stoker.dev/v1`` has these and more: ``all``, and
``image``, ``env`` and ``probe`` of a container. What belongs to ``stoker.dev/v1`` is refused elsewhere rather than
passed over: a restart without the new image would be something else than what was asked for.
"""

from __future__ import annotations

from stoker.manifest_fields import Fields
from stoker.objects.containers import EnvVar, Probe, RecreateRequest, RecreateStrategy, RecreateTarget

KIND = "ContainerRecreateRequest"
OURS = "stoker.dev/v1"

_SHORTEST_DEADLINE = 3  # as OpenKruise has it
_INJECTED = {
    "preStop": "the hook is read from the pod itself",
    "ports": "OpenKruise's webhook puts it there",
    "statusContext": "stokerd notes which container runs when the request is made",
}


def recreate_request(spec: Fields, version: str, name: str, namespace: str, label: str) -> RecreateRequest:
    """Return what a *spec* asks for; *label* names the object in warnings."""
    pod = spec.text("podName")
    every = _only_ours(spec, "all", version) and spec.flag("all")
    targets: list[RecreateTarget] = []
    if every:
        if spec.has("containers") and spec.items("containers"):
            spec.refuse("containers", "and spec.all exclude each other")
    else:
        targets = [_target(one, version, label) for one in spec.maps("containers")]
        if not targets:
            spec.refuse("containers", "is empty")
    names = [target.name for target in targets]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        spec.refuse("containers", f"has {twice!r} twice")
    strategy = _strategy(spec, label)
    deadline = spec.optional_number("activeDeadlineSeconds", 0 if version == OURS else _SHORTEST_DEADLINE)
    ttl = spec.optional_number("ttlSecondsAfterFinished", 0)
    spec.warn_unknown(label)
    return RecreateRequest(
        pod=pod,
        name=name,
        namespace=namespace,
        containers=targets,
        all=every,
        strategy=strategy,
        active_deadline_seconds=deadline,
        ttl_seconds_after_finished=ttl,
    )


def _only_ours(fields: Fields, name: str, version: str) -> bool:
    """Whether the field is there; refused unless the version of the object has it."""
    if not fields.has(name):
        return False
    if version != OURS:
        fields.refuse(name, f"is not a field of {version}; write apiVersion: {OURS}")
    return True


def _target(fields: Fields, version: str, label: str) -> RecreateTarget:
    name = fields.text("name")
    image = fields.text("image") if _only_ours(fields, "image", version) else ""
    env = [_variable(one) for one in fields.maps("env")] if _only_ours(fields, "env", version) else []
    probe = _probe(fields.map("probe"), label) if _only_ours(fields, "probe", version) else None
    for injected, why in _INJECTED.items():
        if fields.has(injected):
            fields.warn(injected, label, why)
    names = [variable.name for variable in env]
    if len(set(names)) < len(names):
        fields.refuse("env", f"has {next(name for name in names if names.count(name) > 1)!r} twice")
    fields.warn_unknown(label)
    return RecreateTarget(name=name, image=image, env=env, probe=probe)


def _variable(fields: Fields) -> EnvVar:
    """A variable is changed with ``value`` and taken away with ``unset: true``; nothing else, so that no typing error
    takes one away."""
    name = fields.text("name")
    if "=" in name:
        fields.refuse("name", f"{name.partition('=')[0]!r} and more: a name has no = in it")
    if fields.has("valueFrom"):
        fields.refuse("valueFrom", "is not supported: stokerd reads no ConfigMaps and Secrets; give the value")
    unset = fields.flag("unset")
    value = fields.any_text("value") if fields.has("value") else None
    if unset == (value is not None):
        fields.refuse("name", f"{name!r} has {'both value and unset' if unset else 'neither value nor unset: true'}")
    fields.refuse_unknown()
    return EnvVar(name=name, value=value)


def _probe(fields: Fields, label: str) -> Probe:
    command = fields.words("exec") if fields.has("exec") else []
    port = fields.optional_integer("tcpPort", 1) or 0
    if bool(command) == bool(port):
        fields.fail("needs exactly one of exec (a list of words) and tcpPort")
    if port > 65535:
        fields.refuse("tcpPort", f"is {port}, not a port")
    defaults = Probe()
    period = fields.optional_number("periodSeconds", 0.01)
    timeout = fields.optional_number("timeoutSeconds", 0.01)
    threshold = fields.optional_integer("failureThreshold", 1)
    fields.warn_unknown(label)
    return Probe(
        exec=command,
        tcp_port=port,
        period_seconds=defaults.period_seconds if period is None else period,
        timeout_seconds=defaults.timeout_seconds if timeout is None else timeout,
        failure_threshold=threshold or defaults.failure_threshold,
    )


def _strategy(spec: Fields, label: str) -> RecreateStrategy:
    fields = spec.optional_map("strategy")
    if fields is None:
        return RecreateStrategy()
    policy = fields.choice("failurePolicy", "Fail", "Ignore")
    unready = fields.optional_number("unreadyGracePeriodSeconds", 0)
    if unready is not None:
        fields.warn(
            "unreadyGracePeriodSeconds", label, "stokerd waits so long, but cannot mark the pod as not ready", part=True
        )
    strategy = RecreateStrategy(
        failure_policy="Ignore" if policy == "Ignore" else "Fail",
        ordered_recreate=fields.flag("orderedRecreate"),
        force_recreate=fields.flag("forceRecreate"),
        termination_grace_period_seconds=fields.optional_number("terminationGracePeriodSeconds", 0),
        unready_grace_period_seconds=unready or 0.0,
        min_started_seconds=fields.optional_number("minStartedSeconds", 0) or 0.0,
    )
    fields.warn_unknown(label)
    return strategy
