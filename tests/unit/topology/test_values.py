"""Single values: what sysfs writes of PCI and RDMA, and where a cloud says that a machine is."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.fabrics import foreign
from stokerd.topology import addresses, metadata, rdma_values
from stokerd.topology.addresses import PcieLink


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00000000:CA:00.0", "0000:ca:00.0"),
        ("3b:00.1", "0000:3b:00.1"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("0000:3b:00.8", ""),
        ("3b:00", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_addresses(text: str | None, address: str) -> None:
    assert addresses.pci_address(text) == address


def test_a_place_is_read_off_a_link() -> None:
    target = "../../../devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0"
    assert addresses.pci_path(target) == ("pci0000:15", "0000:15:01.0", "0000:16:00.0", "0000:17:00.0")
    assert addresses.pci_path(target + "/infiniband/mlx5_0")[-1] == "0000:17:00.0"
    assert addresses.pci_path("../../devices/virtual/net/lo") == ()
    assert addresses.pci_path("../../devices/pci0000:15") == ()


def test_links_of_pcie() -> None:
    assert addresses.pcie_link("16.0 GT/s PCIe\n", "32.0 GT/s PCIe", "8", "16") == PcieLink(16, 32, 8, 16)
    assert addresses.pcie_link("Unknown", "Unknown speed", "0", "255") == PcieLink()
    assert addresses.pcie_link(None, "8 GT/s", "63", None) == PcieLink(None, 8, 63, None)
    assert PcieLink(16, 32, 8, 16).degraded == "x8 of x16"
    assert PcieLink(2.5, 32, 16, 16).degraded == ""


def test_nobody_knows_the_numa_node() -> None:
    assert [addresses.numa_node(text) for text in ("0\n", "1", "-1", "", None)] == [0, 1, None, None, None]


def test_classes_of_devices() -> None:
    assert [addresses.pci_class(text) for text in ("0x030200\n", "0x1000000", "x", None)] == [0x030200, 0, 0, 0]


def config_space(*capabilities: tuple[int, bytes]) -> bytes:
    space = bytearray(4096)
    offset = 0x100
    for place, (kind, body) in enumerate(capabilities):
        after = offset + 16 if place + 1 < len(capabilities) else 0
        space[offset : offset + 4] = struct.pack("<I", after << 20 | 1 << 16 | kind)
        space[offset + 4 : offset + 4 + len(body)] = body
        offset += 16
    return bytes(space)


def test_access_control_services_are_found_in_the_config_space() -> None:
    aer = (0x0001, b"")
    assert addresses.acs_redirects(config_space(aer, (0x000D, b"\x1f\x00\x1d\x00"))) is True
    assert addresses.acs_redirects(config_space(aer, (0x000D, b"\x1f\x00\x00\x00"))) is False
    assert addresses.acs_redirects(config_space(aer)) is None
    assert addresses.acs_redirects(b"\x00" * 256) is None


def test_a_config_space_that_points_at_itself_ends() -> None:
    loop = bytearray(4096)
    loop[0x100:0x104] = struct.pack("<I", 0x100 << 20 | 1 << 16 | 1)
    assert addresses.acs_redirects(bytes(loop)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("400 Gb/sec (4X NDR)\n", (400, 4, "NDR")),
        ("25 Gb/sec (1X EDR)", (25, 1, "EDR")),
        ("2.5 Gb/sec (1X SDR)", (2.5, 1, "SDR")),
        ("800 Gb/sec (4X XDR)", (800, 4, "XDR")),
        ("100 Gb/sec (4X)", (100, 4, "")),
        ("garbage", (0, 0, "")),
        (None, (0, 0, "")),
    ],
)
def test_rates(text: str | None, expected: tuple[float, int, str]) -> None:
    rate = rdma_values.rate(text)
    assert (rate.gbps, rate.width, rate.speed) == expected


def test_states() -> None:
    assert [rdma_values.port_state(text) for text in ("4: ACTIVE", "1: DOWN\n", "2: INIT", "?", None)] == [
        "active",
        "down",
        "init",
        "unknown",
        "unknown",
    ]
    assert [rdma_values.physical_state(text) for text in ("5: LinkUp", "2: Polling", "9: x")] == [
        "linkup",
        "polling",
        "unknown",
    ]


def test_identities() -> None:
    assert foreign.guid("0a7f:bc12:45ef:d23b") == "0a7fbc1245efd23b"
    assert foreign.guid("0xc42a10300a9b026") == "0c42a10300a9b026"
    assert foreign.guid("0000:0000:0000:0000") == ""
    assert foreign.guid("not a guid") == ""
    assert [rdma_values.lid(text) for text in ("0x1a", "0xffff", "0x0", "", None)] == [26, 0, 0, 0, 0]
    assert rdma_values.gid("0000:0000:0000:0000:0000:ffff:0a00:0005") == "10.0.0.5"
    assert rdma_values.gid("fe80:0000:0000:0000:a288:c203:00ab:0000") == "fe80::a288:c203:ab:0"
    assert rdma_values.gid("fe80:0000:0000:0000:0000:0000:0000:0000") == ""
    assert rdma_values.gid_type("RoCE v2\n") == "v2"


def test_counters_that_cannot_be_read_are_counted() -> None:
    known, lost = rdma_values.counters({"b": "3846\n", "a": "0", "c": "N/A (no PMA)\n", "d": None})
    assert known == {"a": 0, "b": 3846}
    assert list(known) == ["a", "b"]
    assert lost == 2


def test_a_cloud_says_where_the_machine_is() -> None:
    document = {
        "compute": {"vmSize": "Standard_ND96isr_H200_v5", "location": "eastus", "platformFaultDomain": "3"},
        "networkNodes": ["nn-1", "nn-2", "nn-3"],
        "iam": {"secretAccessKey": "do-not-show", "token": "do-not-show"},
    }
    placed = metadata.parse(json.dumps(document))
    assert placed.facts == {
        "fault-domain": "3",
        "instance-type": "Standard_ND96isr_H200_v5",
        "network-path": "nn-1/nn-2/nn-3",
        "region": "eastus",
    }
    assert placed.ignored == 2


def test_an_environment_file_says_it_too() -> None:
    placed = metadata.parse(
        "# written at boot\nexport EC2_INSTANCE_ID='i-0123'\nOCI_RACK_ID=rack 7\nZONE_TOKEN=do-not-show\nwhat is this\n"
    )
    assert placed.facts == {"instance": "i-0123", "rack": "rack 7"}
    assert placed.unread.count == 1
    assert "what" not in str(placed.unread)


@given(st.binary(max_size=300) | st.text(max_size=300))
@settings(max_examples=200)
def test_nothing_makes_a_reader_of_values_raise(value: bytes | str) -> None:
    metadata.parse(value)
    metadata.parse("{" + value if isinstance(value, str) else b"{" + value)
    text = foreign.decode(value)
    addresses.pci_path(text)
    addresses.pcie_link(text, text, text, text)
    addresses.numa_node(text)
    addresses.pci_class(text)
    addresses.acs_redirects(text.encode() * 40)
    rdma_values.rate(text)
    rdma_values.port_state(text)
    rdma_values.gid(text)
    rdma_values.lid(text)
    rdma_values.counter(text)
    foreign.guid(text)
    assert foreign.plain(text).isprintable()
