"""Lists of host names as Slurm writes them: ``n[01-03,7],login1``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
_PART = re.compile(r"(.*?)\[([\d,\-]+)\](.*)")
_NUMBERED = re.compile(r"(.*?)(\d{1,9})")
MOST = 100_000
"""Names of one list that are written out."""


def expand(text: str) -> list[str] | None:
    """Return the names of a list, in its order; None if it is none, or endless."""
    found: list[str] = []
    for word in _split(text):
        names = _expand(word, 4)
        if names is None or len(found) + len(names) > MOST:
            return None
        found += names
    return found


def _split(text: str) -> Iterator[str]:
    word, depth = "", 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            yield word
            word = ""
        else:
            word += char
    yield word


def _expand(word: str, dimensions: int) -> list[str] | None:
    word = word.strip()
    if not word:
        return []
    match = _PART.fullmatch(word)
    if match is None:
        return None if "[" in word or "]" in word else [word]
    if not dimensions:
        return None
    head, ranges, rest = match.groups()
    tails = _expand(rest, dimensions - 1) if rest else [""]
    numbers = _numbers(ranges)
    if tails is None or numbers is None or len(tails) * len(numbers) > MOST:
        return None
    return [f"{head}{number}{tail}" for number in numbers for tail in tails]


def _numbers(text: str) -> list[str] | None:
    found: list[str] = []
    for each in text.split(","):
        match = _RANGE.fullmatch(each)
        if match is None:
            return None
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < MOST - len(found):
            return None
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def fold(names: Iterable[str]) -> str:
    """Return names as a list, those that are alike but for their last number as ranges."""
    groups: dict[str, list[str]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            groups.setdefault(match[1], []).append(match[2])
    folded = [_folded(head, sorted(digits, key=lambda each: (len(each), each))) for head, digits in groups.items()]
    return ",".join([*folded, *plain])


def _folded(head: str, digits: list[str]) -> str:
    runs: list[list[str]] = []
    for each in digits:
        if runs and len(each) == len(runs[-1][1]) and int(each) == int(runs[-1][1]) + 1:
            runs[-1][1] = each
        else:
            runs.append([each, each])
    texts = [first if first == last else f"{first}-{last}" for first, last in runs]
    return f"{head}{digits[0]}" if len(digits) == 1 else f"{head}[{','.join(texts)}]"
