"""Settings of the fabrics: ``[fabric]``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.toml_settings import PositiveSeconds


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

    slurm: Path | None = None
    """A topology.conf of Slurm."""

    static: Path | None = None
    """A YAML or TOML file that says itself what hangs on what (docs/hypernodes.md)."""

    interval: PositiveSeconds = 60.0
    """How often the sources are looked at."""

    timeout: PositiveSeconds = 30.0
    """How long one of them may take."""
