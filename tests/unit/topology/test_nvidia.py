"""What NVIDIA's tools print: GPUs, the fabric that they believe in, and the matrix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stokerd.topology import matrix, nvidia_xml
from stokerd.topology.accelerators import Accelerator, FabricState, domains, refusal
from tests.unit.topology.captures import capture

GOOD = FabricState("Completed", "Success", 2, "00000001-0000-0000-0000-000000000001", "Healthy", "Full")


def changed(**parts: object) -> FabricState:
    import msgspec

    return msgspec.structs.replace(GOOD, **parts)


def test_an_h100_has_no_domain_though_it_says_completed() -> None:
    report = nvidia_xml.parse(capture("nvidia-smi/qx-h100.xml"))
    assert (report.driver, len(report.gpus), report.unread.count) == ("580.105.08", 8, 0)
    first = report.gpus[0]
    assert (first.address, first.model) == ("0000:53:00.0", "NVIDIA H100 80GB HBM3")
    assert first.fabric.state == "Completed"
    assert first.memory_bytes == 81559 << 20
    assert (first.link_generation, first.link_width, first.link_width_max) == (5, 16, 16)
    assert (first.ecc_uncorrected, first.remap_pending, first.remap_failed) == (0, False, False)
    (none,) = domains(report.gpus)
    assert none.name == ""
    assert len(none.addresses) == 8
    assert "all zero" in none.refused


def test_a_gb200_has_its_clique() -> None:
    report = nvidia_xml.parse(capture("nvidia-smi/qx-gb200.xml"))
    assert (len(report.gpus), report.unread.count) == (4, 0)
    (domain,) = domains(report.gpus)
    assert domain.name == "00000001-0000-0000-0000-000000000001.2"
    assert domain.addresses == ("0000:29:00.0", "0000:3f:00.0", "0000:9c:00.0", "0000:b2:00.0")


@pytest.mark.parametrize(
    ("fabric", "words"),
    [
        (FabricState(), "says nothing"),
        (changed(state="In Progress"), "In Progress"),
        (changed(status="Insufficient Resources"), "Insufficient Resources"),
        (changed(cluster="00000000-0000-0000-0000-000000000000"), "all zero"),
        (changed(cluster=""), "is none"),
        (changed(clique=None), "no clique"),
        (changed(health="Unhealthy"), "Unhealthy"),
        (changed(health=""), "not reported"),
    ],
)
def test_what_makes_no_domain(fabric: FabricState, words: str) -> None:
    assert words in refusal(fabric)


def test_gpus_that_do_not_agree_are_not_one_domain() -> None:
    gpus = (
        Accelerator("0000:02:00.0", fabric=GOOD),
        Accelerator("0000:01:00.0", fabric=GOOD),
        Accelerator("0000:03:00.0", fabric=changed(clique=3)),
        Accelerator("0000:04:00.0", fabric=changed(health="Unhealthy")),
    )
    assert [(domain.clique, domain.addresses, bool(domain.refused)) for domain in domains(gpus)] == [
        (2, ("0000:01:00.0", "0000:02:00.0"), False),
        (3, ("0000:03:00.0",), False),
        (0, ("0000:04:00.0",), True),
    ]


def test_what_stands_before_a_break_counts() -> None:
    whole = capture("nvidia-smi/qx-h100.xml")
    report = nvidia_xml.parse(whole[: len(whole) // 2])
    assert len(report.gpus) == 4
    assert any("not complete" in sample for sample in report.unread.samples)


def test_entities_are_refused() -> None:
    bomb = b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><nvidia_smi_log>&b;</nvidia_smi_log>'
    report = nvidia_xml.parse(bomb)
    assert report.gpus == ()
    assert "entity" in report.unread.samples[0]


def test_a_gpu_without_an_address_is_counted() -> None:
    report = nvidia_xml.parse(b'<nvidia_smi_log><gpu id="?"><uuid>x</uuid></gpu></nvidia_smi_log>')
    assert report.unread.count == 1


@given(st.binary(max_size=400))
@settings(max_examples=100)
def test_no_bytes_make_the_parsers_raise(data: bytes) -> None:
    nvidia_xml.parse(data)
    nvidia_xml.parse(b'<nvidia_smi_log><gpu id="00000000:53:00.0">' + data)
    matrix.parse(data)
    matrix.parse(b"\tGPU0\tNIC0\n" + data)


# ---------------------------------------------------------------------------------------------- topo -m


def test_the_matrix_of_a_real_machine() -> None:
    text = capture("topo/nvidia-smi-topo-m-h200-12nic.txt").decode()
    read = matrix.parse(text)
    assert read.unread.count == 0
    assert len(read.devices) == 20
    assert len(read.rows) == 20
    assert read.between("GPU0", "NIC0") == "PXB"
    assert read.between("NIC1", "NIC2") == "PIX"
    assert read.between("GPU0", "GPU7") == "NV18"
    assert read.cpus["GPU7"] == "56-111,168-223"
    assert read.numa["GPU7"] == "1"
    assert read.names["NIC11"] == "mlx5_11"


def test_a_matrix_without_its_tabs_is_the_same() -> None:
    text = capture("topo/nvidia-smi-topo-m-h200-12nic.txt").decode()
    with_blanks = matrix.parse(text.replace("\t", "   "))
    assert (with_blanks.devices, with_blanks.rows) == (matrix.parse(text).devices, matrix.parse(text).rows)


def test_a_matrix_in_colour_is_the_same() -> None:
    text = capture("topo/nvidia-smi-topo-m-h200-12nic.txt").decode()
    head, rest = text.split("\n", 1)
    assert matrix.parse(f"\x1b[4m{head}\x1b[0m\n{rest}") == matrix.parse(text)


def test_what_is_read_is_written_the_same() -> None:
    text = capture("topo/nvidia-smi-topo-m-h200-12nic.txt").decode()
    written = matrix.render(matrix.parse(text))
    assert written.split("\n")[:21] == text.split("\n")[:21]
    assert matrix.parse(written) == matrix.parse(text)


def test_a_row_that_is_cut_is_counted() -> None:
    read = matrix.parse("\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\n")
    assert list(read.rows) == ["GPU0"]
    assert read.unread.count == 1
    assert read.between("GPU1", "GPU0") == ""


def test_what_slows_a_gpu_down_but_not_that_it_works_hard() -> None:
    reasons = "".join(
        f"<clocks_event_reason_{name}>{state}</clocks_event_reason_{name}>"
        for name, state in (
            ("sw_power_cap", "Active"),
            ("hw_thermal_slowdown", "Active"),
            ("hw_slowdown", "Not Active"),
        )
    )
    gpu = f'<gpu id="00000000:53:00.0"><clocks_event_reasons>{reasons}</clocks_event_reasons></gpu>'
    (read,) = nvidia_xml.parse(f"<nvidia_smi_log>{gpu}</nvidia_smi_log>".encode()).gpus
    assert read.throttled == ("hw_thermal_slowdown",)
