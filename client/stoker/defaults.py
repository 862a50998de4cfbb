"""What the programs agree on without asking. Cheap to import."""

from __future__ import annotations

from pathlib import Path

DEFAULT_SOCKET = Path("/run/stoker/stokerd.sock")
"""Unix socket of stokerd's local API."""
