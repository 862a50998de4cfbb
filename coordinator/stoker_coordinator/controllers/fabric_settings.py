"""Settings of the fabrics: ``[fabric]``. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.toml_settings import PositiveSeconds
from stoker_coordinator.hypernodes.central import layer_of
from stoker_coordinator.hypernodes.labels import LabelTopology
from stoker_coordinator.hypernodes.live import Options
from stoker_coordinator.hypernodes.naming import slug
from stoker_coordinator.objects.words import qualified

_OTHERS = frozenset(("infiniband", "ethernet", "nvlink", "slurm", "static"))
"""Layers of fabrics that nodes and other sources tell of."""


@dataclass(frozen=True, slots=True)
class FabricSettings:
    """``[fabric]``: central sources beside what nodes report, for the tree of HyperNodes."""

    ibnetdiscover: Path | None = None
    """A dump of ibnetdiscover or iblinkinfo, written by somebody else; it is read again when it changes."""

    ufm_url: str = ""
    """NVIDIA UFM, as https://ufm.example; it is asked for all ports."""

    ufm_credentials: Path | None = None
    """File with ``user:password``, or with a token alone, for root only. Read anew each time."""

    ufm_ca: Path | None = None
    """Certificates (PEM) that UFM's is checked by; none: those of the system."""

    netq: Path | None = None
    """A file with NetQ's topology graph as JSON."""

    nmx: Path | None = None
    """A file with NMX's compute nodes (``nmx/v1/compute-nodes``) as JSON, which tells NVLink domains."""

    slurm: Path | None = None
    """A topology.conf of Slurm."""

    static: Path | None = None
    """A YAML or TOML file that says itself what hangs on what (docs/hypernodes.md)."""

    labels: tuple[str, ...] = ()
    """Trees that labels of nodes tell: a name, and labels from the root down, as in
    ``"rooms: example.com/room, example.com/row, example.com/rack"``."""

    strangers: bool = False
    """Whether hosts that only central sources know are members of HyperNodes, too."""

    interval: PositiveSeconds = 60.0
    """How often the sources are looked at."""

    timeout: PositiveSeconds = 30.0
    """How long one of them may take."""


def options(settings: FabricSettings) -> Options:
    """Return what is to be built; of settings that are right."""
    return Options(labels=tuple(map(_topology, settings.labels)), strangers=settings.strangers)


def problems(settings: FabricSettings) -> Iterator[str]:
    """Yield what is wrong with the settings."""
    named: set[str] = set()
    for index, text in enumerate(settings.labels):
        where, found = f"fabric.labels[{index}]", _topology(text)
        if not found.fabric or not found.keys:
            yield f'{where}: {text!r} is not like "rooms: example.com/room, example.com/rack"'
            continue
        if layer_of(found.fabric) in _OTHERS or found.fabric in named:
            yield f"{where}: the name {found.fabric!r} is taken; call the tree otherwise"
        named.add(found.fabric)
        for key in found.keys:
            yield from qualified(key, where)


def _topology(text: str) -> LabelTopology:
    name, _, keys = text.partition(":")
    return LabelTopology(slug(name), tuple(filter(None, (key.strip() for key in keys.split(",")))))
