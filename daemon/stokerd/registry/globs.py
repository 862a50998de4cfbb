"""The patterns of Go's path.Match, which the kubelet applies to the labels of host names. Pure."""

from __future__ import annotations

import msgspec

_STAR = None


class _Class(msgspec.Struct, frozen=True):
    """One character: inside ``ranges``, or outside all of them if ``negated``."""

    ranges: tuple[tuple[str, str], ...] = ()
    negated: bool = False

    def has(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) != self.negated


class _Malformed(Exception):
    """The pattern is none."""


def glob_matches(pattern: str, text: str) -> bool:
    r"""Return whether all of *text*, which has no slash, matches *pattern*; a malformed pattern matches nothing.

    ``*`` is any text, ``?`` any character, ``[a-z]`` and ``[^a-z]`` one of a class, ``\c`` the character itself.
    Takes at most len(pattern) times len(text) steps.
    """
    try:
        tokens = _tokens(pattern)
    except _Malformed:
        return False
    at = position = 0
    star, resume = -1, 0
    while at < len(text):
        token = tokens[position] if position < len(tokens) else _Class()
        if token is _STAR:
            star, resume = position, at
            position += 1
        elif token.has(text[at]):
            position += 1
            at += 1
        elif star >= 0:
            # The last star takes one character more; an earlier one never needs to.
            resume += 1
            position, at = star + 1, resume
        else:
            return False
    return all(token is _STAR for token in tokens[position:])


def _tokens(pattern: str) -> list[_Class | None]:
    tokens: list[_Class | None] = []
    at = 0
    while at < len(pattern):
        if pattern[at] == "*":
            tokens.append(_STAR)
            at += 1
        elif pattern[at] == "?":
            tokens.append(_Class(negated=True))
            at += 1
        elif pattern[at] == "[":
            token, at = _class(pattern, at + 1)
            tokens.append(token)
        else:
            character, at = _character(pattern, at)
            tokens.append(_Class(((character, character),)))
    return tokens


def _class(pattern: str, at: int) -> tuple[_Class, int]:
    """Read from behind "[" to behind "]"."""
    negated = pattern.startswith("^", at)
    at += negated
    ranges: list[tuple[str, str]] = []
    while not (ranges and pattern.startswith("]", at)):
        low, at = _member(pattern, at)
        high = low
        if pattern.startswith("-", at):
            high, at = _member(pattern, at + 1)
        ranges.append((low, high))
    return _Class(tuple(ranges), negated), at + 1


def _member(pattern: str, at: int) -> tuple[str, int]:
    if pattern.startswith(("-", "]"), at):
        raise _Malformed
    return _character(pattern, at)


def _character(pattern: str, at: int) -> tuple[str, int]:
    """Return the character at *at*, or the one that is escaped there, and where the next one is."""
    at += pattern.startswith("\\", at)
    if at >= len(pattern):
        raise _Malformed
    return pattern[at], at + 1
