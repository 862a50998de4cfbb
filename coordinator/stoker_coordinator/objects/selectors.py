"""Which objects are meant: by labels, and by fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from stoker.objects.kinds import Kind
from stoker.objects.meta import LabelSelector, Object, Operator, Requirement
from stoker_coordinator.errors import Invalid

_TERM = re.compile(
    r"""\s*(?:
        (?P<absent>!)\s*(?P<name0>[\w./-]+)
      | (?P<name1>[\w./-]+)\s+(?P<set>in|notin)\s*\((?P<values>[^()]*)\)
      | (?P<name2>[\w./-]+)\s*(?P<sign>==|=|!=)\s*(?P<value>[\w.:@/-]*)
      | (?P<name3>[\w./-]+)
    )\s*(?:,|$)""",
    re.VERBOSE,
)
_LONGEST = 4096


class Selector(Struct, frozen=True):
    """Conditions on labels, all of which must hold; none means everything."""

    requirements: tuple[Requirement, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.requirements)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Say whether an object with these labels is meant."""
        return all(_holds(each, labels) for each in self.requirements)


EVERYTHING = Selector()


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value is not None and value in requirement.values
        case "NotIn":
            return value is None or value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None


def of_labels(selector: LabelSelector) -> Selector:
    """Return an object's selector as a Selector."""
    equal = [Requirement(key=key, operator="In", values=(value,)) for key, value in selector.match_labels.items()]
    return Selector((*equal, *selector.match_expressions))


def parse_labels(text: str) -> Selector:
    """Read ``app=x,tier!=y,zone in (a,b),gpu,!old``. Invalid says what is wrong."""
    found = []
    for term in _terms(text, "label selector"):
        if term["absent"]:
            found.append(Requirement(key=term["name0"], operator="DoesNotExist"))
        elif term["set"]:
            values = tuple(value.strip() for value in term["values"].split(","))
            found.append(
                Requirement(key=term["name1"], operator="In" if term["set"] == "in" else "NotIn", values=values)
            )
        elif term["sign"]:
            operator: Operator = "NotIn" if term["sign"] == "!=" else "In"
            found.append(Requirement(key=term["name2"], operator=operator, values=(term["value"],)))
        else:
            found.append(Requirement(key=term["name3"], operator="Exists"))
    return Selector(tuple(found))


def _terms(text: str, what: str) -> list[dict[str, Any]]:
    if len(text) > _LONGEST:
        raise Invalid(f"the {what} is longer than {_LONGEST} characters")
    terms, position = [], 0
    while position < len(text):
        match = _TERM.match(text, position)
        if match is None:
            raise Invalid(
                f"the {what} {text!r} cannot be read from {text[position : position + 40]!r} on",
                hint="it is like app=x,tier!=y,zone in (a,b),gpu,!old",
            )
        terms.append(match.groupdict())
        position = match.end()
    return terms


class FieldTerm(Struct, frozen=True):
    """One condition on one field."""

    path: tuple[str, ...]
    """Names of attributes."""
    value: str
    equal: bool = True


class FieldSelector(Struct, frozen=True):
    """Conditions on fields, all of which must hold; none means everything."""

    terms: tuple[FieldTerm, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.terms)

    def matches(self, obj: Object) -> bool:
        """Say whether the object is meant."""
        return all((_text(obj, term.path) == term.value) is term.equal for term in self.terms)


ANY_FIELDS = FieldSelector()


def parse_fields(text: str, kind: Kind) -> FieldSelector:
    """Read ``metadata.name=x,status.phase!=Failed`` for objects of *kind*; Invalid."""
    allowed = ("metadata.name", "metadata.namespace", *kind.selectable)
    terms = []
    for term in _terms(text, "field selector"):
        name = term["name2"]
        if not name:
            raise Invalid(f"the field selector {text!r} is not like metadata.name=x")
        if name not in allowed:
            raise Invalid(f"{kind.plural} cannot be selected by {name}", hint=f"by {', '.join(allowed)}")
        terms.append(FieldTerm(_attributes(kind.type, name), term["value"], term["sign"] != "!="))
    return FieldSelector(tuple(terms))


def _attributes(kind: type[Struct], path: str) -> tuple[str, ...]:
    """Return the attributes that a path of JSON names leads by."""
    names: list[str] = []
    current: Any = kind
    for part in path.split("."):
        info = next(each for each in msgspec.structs.fields(current) if each.encode_name == part)
        names.append(info.name)
        current = info.type
    return tuple(names)


def _text(obj: Any, path: Sequence[str]) -> str:
    for name in path:
        obj = getattr(obj, name)
    if isinstance(obj, bool):
        return "true" if obj else "false"
    return str(obj)


def predicate(
    namespace: str | None, labels: Selector = EVERYTHING, fields: FieldSelector = ANY_FIELDS
) -> Callable[[Object], bool]:
    """Return what says whether an object is meant by all three; *namespace* None: of any."""

    def meant(obj: Object) -> bool:
        return (
            (namespace is None or obj.metadata.namespace == namespace)
            and labels.matches(obj.metadata.labels)
            and fields.matches(obj)
        )

    return meant
