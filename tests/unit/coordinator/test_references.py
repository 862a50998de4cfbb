"""The pages in docs/ that are made from the code are whole and fresh."""

from __future__ import annotations

from dataclasses import fields

from stoker.objects.kinds import ALL
from stoker_coordinator import configuration, objects_reference, settings_reference
from stoker_coordinator.configuration import Settings
from tests.rig.paths import REPOSITORY


def test_the_pages_in_docs_are_fresh() -> None:
    docs = REPOSITORY / "docs"
    assert objects_reference.main(["--check", str(docs / "objects.md")]) == 0
    assert settings_reference.main(["--check", str(docs / "coordinator-configuration.md")]) == 0


def test_every_kind_and_field_has_its_place() -> None:
    page = objects_reference.render()

    assert all(f"\n## {kind.name}\n" in page for kind in ALL)
    assert "| `spec.containers[].env[].value` | text |  | It goes in and never comes out again. Sealed. |" in page
    assert "| `spec.sandboxConfig` | map |  | Has no effect: stokerd chooses" in page
    assert "| `spec.containers[].image` | text |  | Ours: a new image. Only in `stoker.dev/v1`. |" in page


def test_every_setting_has_its_row_with_a_default_that_can_be_read() -> None:
    page, text = settings_reference.render(), ""
    rows = iter([line.split(" | ") for line in page.splitlines() if line.startswith("| `")])
    for part in fields(Settings):
        text += f"[{part.name}]\n"
        for field in fields(getattr(Settings(), part.name)):
            row = next(rows)
            assert row[0].strip("| `") == field.name
            if row[1] != "none":
                text += f"{field.name} = {row[1].strip('`')}\n"
    assert configuration.parse(text, "x") == Settings()
