"""Is CRI answering? Asked without generated code: an empty VersionRequest is no bytes at all."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import cast


def cri_answers(endpoint: Path, timeout: float = 1.0) -> bool:
    """True once the CRI plugin answers Version on the socket."""
    import grpc  # late, so that importing the rig stays cheap

    options = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.use_local_subchannel_pool", 1)]
    with grpc.insecure_channel(f"unix:{endpoint}", options=options) as channel:
        version = cast("Callable[..., bytes]", channel.unary_unary("/runtime.v1.RuntimeService/Version"))
        with contextlib.suppress(grpc.RpcError):
            return bool(version(b"", timeout=timeout, wait_for_ready=True))
    return False
