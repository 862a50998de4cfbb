"""Documents from outside as objects: what is wrong is refused with its path, what has no effect is named. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from stoker.objects.kinds import ALL, KINDS, Kind
from stoker.objects.meta import Object
from stoker_coordinator.errors import Invalid
from stoker_coordinator.objects import pull_secrets, rules, shapes, words

DEFAULT_NAMESPACE = "default"
SEALED = "[sealed]"
"""What is shown in place of a secret."""

_GIVEN = ("uid", "generation", "creationTimestamp", "deletionTimestamp")
_REFUSED = {
    "AdvancedCronJob": {
        "jobTemplate": "makes pods, which Stoker does not; only imageListPullJobTemplate can be run",
        "broadcastJobTemplate": "makes pods, which Stoker does not; only imageListPullJobTemplate can be run",
    }
}
_MOST_PROBLEMS = 20
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


class Admitted(Struct, frozen=True):
    """An object that may be kept, and what its sender should know."""

    object: Object
    warnings: tuple[str, ...] = ()


def kind_for(version: str, name: str) -> Kind:
    """Return the kind of an apiVersion and a kind; Invalid says which there are."""
    kind = KINDS.get(name)
    if kind is None:
        raise Invalid(
            f"kind: there is no kind {name[:80]!r} here", hint=f"there are {', '.join(each.name for each in ALL)}"
        )
    if version not in kind.versions:
        raise Invalid(
            f"apiVersion: {kind.name} has no version {version[:80]!r}", hint=f"it has {' and '.join(kind.versions)}"
        )
    return kind


def identify(document: Mapping[str, Any]) -> tuple[Kind, Mapping[str, Any]]:
    """Return the kind of a document that comes by itself, and the document in the form of that kind; Invalid."""
    if pull_secrets.is_secret(document):
        document = pull_secrets.converted(document)
    version, name = document.get("apiVersion"), document.get("kind")
    if not isinstance(version, str) or not isinstance(name, str):
        raise Invalid("apiVersion and kind must be there, and text")
    return kind_for(version, name), document


def admit(document: Mapping[str, Any], kind: Kind, version: str, namespace: str) -> Admitted:
    """Return the object that a document of *kind* is, to be made in *namespace*, or to replace what is there. Invalid.

    The object says *version*, as its sender does, since rules can depend on it; the store keeps it under its own. The
    status is not the sender's to give, and comes out as that of a new object.
    """
    plain = shapes.without_nulls(document)
    label = _label(plain, kind)
    notes = shapes.Notes()
    for name, expected in (("apiVersion", version), ("kind", kind.name)):
        if plain.get(name, expected) != expected:
            notes.problems.append(f"{name}: is {str(plain[name])[:80]!r}, and {expected!r} is expected")
    notes.warnings += [f"{name} is unknown and has no effect" for name in plain if name not in _TOP]
    meta = _metadata(plain, kind, namespace, notes)
    status = plain.pop("status", None)
    if status not in (None, {}):
        notes.warnings.append("status is not honoured here: the coordinator writes it")
    plain = {"apiVersion": version, "kind": kind.name, "metadata": meta, "spec": plain.get("spec", {})}
    _refuse(plain, kind, notes)
    found = shapes.examine(plain, kind.type, version, partial=False)
    notes.problems += found.problems
    notes.warnings += found.warnings
    if notes.problems:
        raise _invalid(label, notes.problems)
    try:
        obj = msgspec.convert(plain, kind.type)
    except msgspec.ValidationError as error:  # what the walk above does not know of
        raise _invalid(label, [str(error).replace("$.", "")]) from None
    if problems := [*rules.problems(obj), *_quoted(plain, kind)]:
        raise _invalid(label, problems)
    warnings = [*notes.warnings, *rules.remarks(obj)]
    return Admitted(obj, tuple(f"{label}: {text}" for text in warnings))


_TOP = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


def _metadata(plain: Mapping[str, Any], kind: Kind, namespace: str, notes: shapes.Notes) -> dict[str, Any]:
    found = plain.get("metadata", {})
    if not isinstance(found, dict):
        notes.problems.append("metadata: must be a map")
        return {}
    meta = {name: value for name, value in found.items() if name not in _GIVEN or name == "uid"}
    given = meta.pop("namespace", "")
    if not kind.namespaced:
        if given:
            notes.warnings.append(f"metadata.namespace is not honoured here: a {kind.name} is in none")
        return meta
    if given and namespace and given != namespace:
        notes.problems.append(f"metadata.namespace: is {str(given)[:80]!r}, and {namespace!r} was asked for")
    meta["namespace"] = given or namespace or DEFAULT_NAMESPACE
    if isinstance(meta["namespace"], str):
        notes.problems += words.namespace(meta["namespace"], "metadata.namespace")
    notes_map = meta.get("annotations")
    if isinstance(notes_map, dict) and _LAST_APPLIED in notes_map and shapes.has_secrets(kind.type):
        # kubectl keeps there what was applied: in the clear.
        meta["annotations"] = {name: value for name, value in notes_map.items() if name != _LAST_APPLIED}
        notes.warnings.append(f"metadata.annotations[{_LAST_APPLIED}] is left out: it holds secrets")
    return meta


def _refuse(plain: Mapping[str, Any], kind: Kind, notes: shapes.Notes) -> None:
    spec = plain["spec"]
    template = spec.get("template") if isinstance(spec, dict) else None
    for name, why in _REFUSED.get(kind.name, {}).items():
        if isinstance(template, dict) and template.pop(name, None) is not None:
            notes.problems.append(f"spec.template.{name}: {why}")


def _quoted(plain: Mapping[str, Any], kind: Kind) -> list[str]:
    """Return a problem for each secret that is only what is shown in its place."""
    problems: list[str] = []

    def look(path: str, text: str) -> str:
        if text == SEALED:
            problems.append(f"{path}: is what is shown instead of the secret; give the secret itself")
        return text

    shapes.map_secrets(plain, kind.type, look)
    return problems


def remarks_on_patch(patch: Mapping[str, Any], kind: Kind, version: str) -> tuple[str, ...]:
    """Return what of a merge patch has no effect; Invalid says what is wrong with it."""
    notes = shapes.examine(patch, kind.type, version, partial=True)
    problems = [*notes.problems, *_quoted(patch, kind)]
    if problems:
        raise _invalid(f"the patch of a {kind.name}", problems)
    return tuple(notes.warnings)


def check(obj: Object, version: str) -> None:
    """Invalid when an object that a patch made is none that may be kept; its sender speaks *version*."""
    if problems := rules.problems(replace(obj, api_version=version)):
        raise _invalid(str(obj.key), problems)


def check_change(old: Object, new: Object) -> None:
    """Invalid when what has changed may not change."""
    if problems := rules.changes(old, new):
        raise _invalid(str(old.key), problems)


def _label(plain: Mapping[str, Any], kind: Kind) -> str:
    meta = plain.get("metadata")
    name = meta.get("name") or meta.get("generateName") if isinstance(meta, dict) else None
    return f"{kind.name} {name[:80]!r}" if isinstance(name, str) and name else kind.name


def _invalid(what: str, problems: list[str]) -> Invalid:
    more = len(problems) - _MOST_PROBLEMS
    return Invalid(what, problems[:_MOST_PROBLEMS] + ([f"and {more} more"] if more > 0 else []))
