"""How ids of jobs and requests are written: a word, a hyphen, and what tells them apart. Pure."""

from __future__ import annotations


def begins(identity: str, start: str) -> bool:
    """Say whether *identity* is meant by *start*, its beginning, with the word and the hyphen left out or not."""
    return bool(start) and (identity.startswith(start) or identity.partition("-")[2].startswith(start))
