"""The daemon's log: what it shares with the coordinator, under the name that its rooms know."""

from stoker.logs import RECENT_BYTES, RECENT_LINES, Recent, configure, goes_to_journal, recent

__all__ = ["RECENT_BYTES", "RECENT_LINES", "Recent", "configure", "goes_to_journal", "recent"]
