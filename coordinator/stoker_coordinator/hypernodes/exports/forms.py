"""All forms in which a fabric can be had, by the names that people ask for them by. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec import Struct

from stoker_coordinator.hypernodes.exports import document, graphviz, labels, slurm, svg
from stoker_coordinator.hypernodes.model import HyperNode


class Form(Struct, frozen=True):
    """A form: its media type, and what writes domains of one fabric in it."""

    media_type: str
    write: Callable[[Iterable[HyperNode], str], str]


def _labels(domains: Iterable[HyperNode], fabric: str) -> str:
    return msgspec.json.format(msgspec.json.encode(labels.labels(domains, fabric=fabric)), indent=1).decode() + "\n"


FORMS: Mapping[str, Form] = {
    "json": Form("application/json", lambda domains, _: document.encode(domains).decode()),
    "svg": Form("image/svg+xml", svg.svg),
    "dot": Form("text/vnd.graphviz", lambda domains, _: graphviz.dot(domains)),
    "slurm-tree": Form("text/plain", lambda domains, _: slurm.tree(domains)),
    "slurm-block": Form("text/plain", lambda domains, _: slurm.blocks(domains)),
    "labels": Form("application/json", _labels),
}
