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
    groups: dict[tuple[str, int], list[int]] = {}
    plain: list[str] = []
    for name in sorted(set(names)):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            plain.append(name)
        else:
            width = len(match[2]) if match[2].startswith("0") else 0
            groups.setdefault((match[1], width), []).append(int(match[2]))
    folded = [_folded(head, width, sorted(numbers)) for (head, width), numbers in sorted(groups.items())]
    return ",".join([*folded, *plain])


def _folded(head: str, width: int, numbers: list[int]) -> str:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1 and len(str(number).zfill(width)) == len(str(runs[-1][0]).zfill(width)):
            runs[-1][1] = number
        else:
            runs.append([number, number])
    texts = [str(a).zfill(width) + (f"-{str(b).zfill(width)}" if b > a else "") for a, b in runs]
    return f"{head}{texts[0]}" if len(texts) == 1 and "-" not in texts[0] else f"{head}[{','.join(texts)}]"
