"""docs/topology.md has every field, finding and threshold."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from stoker.objects import topology as objects
from stokerd.topology import findings, gpu_findings
from stokerd.topology.health import THRESHOLDS

DOCS = (Path(__file__).parents[3] / "docs/topology.md").read_text(encoding="utf-8")


def test_every_field_is_described() -> None:
    kinds = [kind for kind in vars(objects).values() if isinstance(kind, type) and kind.__module__ == objects.__name__]
    fields = {name for kind in kinds if issubclass(kind, msgspec.Struct) for name in kind.__struct_encode_fields__}
    fields -= {"rows", "source", "nic", "ports", "domains", "findings"}
    assert {name for name in fields if not re.search(rf"[`.]{name}(\[\])?`", DOCS)} == set()


def test_every_finding_is_described() -> None:
    text = "".join(Path(str(each.__file__)).read_text(encoding="utf-8") for each in (findings, gpu_findings))
    codes = set(re.findall(r"code=\"(\w+)\"", text)) | set(re.findall(r"\"((?:Link|Pcie)[A-Z]\w+)\"", text))
    assert len(codes) >= 15
    assert {code for code in codes if f"`{code}`" not in DOCS} == set()


def test_every_threshold_is_described() -> None:
    rows = [line for line in DOCS.split("\n") if line.startswith("| `")]
    for name, limit in THRESHOLDS.items():
        (row,) = [line for line in rows if f"`{name}`" in line]
        assert row.split("|")[2:4] == [f" {limit.enter:g} ", f" {limit.leave:g} "]
