"""LLDP: frames as they come off the wire, and what lldpcli makes of them."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stokerd.topology import lldp_frames, lldpcli
from stokerd.topology.neighbours import MOST_PER_INTERFACE, Hearsay, Neighbour, kind_of
from tests.unit.topology.captures import capture

LLDPD = Path(__file__).parents[2] / "data/topology/lldpd"
SWITCH = bytes.fromhex("a293f13d411f")


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack("!H", kind << 9 | len(value)) + value


def frame(*optional: bytes, ttl: int = 120, tag: bytes = b"", port: bytes = b"\x05swp1") -> bytes:
    mandatory = tlv(1, b"\x04" + SWITCH) + tlv(2, port) + tlv(3, struct.pack("!H", ttl))
    head = bytes.fromhex("0180c200000e") + SWITCH + tag + b"\x88\xcc"
    return head + mandatory + b"".join(optional) + tlv(0, b"")


FULL = frame(
    tlv(4, b"to node01"),
    tlv(5, b"leaf-01"),
    tlv(6, b"switch operating system 1.2"),
    tlv(7, struct.pack("!HH", 0b10100, 0b10100)),
    tlv(8, bytes([5, 1, 10, 3, 147, 9, 2, 0, 0, 0, 1, 0])),
    tlv(8, bytes([17, 2]) + bytes.fromhex("fc000000000000000000000000000001") + bytes([2, 0, 0, 0, 1, 0])),
    tlv(127, bytes.fromhex("0080c201") + struct.pack("!H", 146)),
    tlv(127, bytes.fromhex("0080c203") + struct.pack("!HB", 146, 7) + b"storage"),
    tlv(127, bytes.fromhex("00120f03") + b"\x03" + struct.pack("!I", 12)),
    tlv(127, bytes.fromhex("00120f04") + struct.pack("!H", 9236)),
    tlv(127, bytes.fromhex("00123401") + b"some vendor's own"),
)
SENT_BY_LLDPD = bytes.fromhex(
    "0180c200000e26122855398a88cc02070426122855398a04070326122855398a060200780a026e310c0b6c6561662073"
    "77697463680e04009c008010181102fe80000000000000241228fffe55398a02000000020008027662fe0900120f0301"
    "00000000fe0900120f0100800000360000"
)


def test_a_switch_tells_everything() -> None:
    read = lldp_frames.parse(FULL)
    assert read.problem == ""
    assert read.unread == 0
    assert read.source == "a2:93:f1:3d:41:1f"
    assert read.neighbour == Neighbour(
        chassis="a2:93:f1:3d:41:1f",
        chassis_type="mac",
        port="swp1",
        port_type="ifname",
        name="leaf-01",
        description="switch operating system 1.2",
        port_description="to node01",
        management=("10.3.147.9", "fc00::1"),
        capabilities=("Bridge", "Router"),
        vlan=146,
        vlan_names=("storage",),
        aggregated=True,
        aggregate=12,
        frame_size=9236,
    )


def test_a_frame_that_the_real_lldpd_sent() -> None:
    read = lldp_frames.parse(SENT_BY_LLDPD)
    assert (read.problem, read.unread) == ("", 0)
    assert read.neighbour == Neighbour(
        chassis="26:12:28:55:39:8a",
        chassis_type="mac",
        port="26:12:28:55:39:8a",
        port_type="mac",
        name="n1",
        description="leaf switch",
        port_description="vb",
        management=("fe80::2412:28ff:fe55:398a",),
        capabilities=("Station",),
        aggregated=False,
    )


def test_a_tagged_frame_is_read() -> None:
    assert lldp_frames.parse(frame(tag=b"\x81\x00\x00\x05")).neighbour is not None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        FULL[:10],
        FULL[:12] + b"\x08\x00" + FULL[14:],
        FULL[:14] + tlv(2, b"\x05swp1"),
        FULL[:14] + tlv(1, b"\x04" + SWITCH) + tlv(3, b"\x00\x78"),
        FULL[:14] + tlv(1, b"\x04" + SWITCH) + tlv(2, b"\x05swp1") + tlv(3, b"\x00"),
        FULL[:14] + tlv(1, b"\x04") + tlv(2, b"\x05swp1") + tlv(3, b"\x00\x78"),
        b"\x00" * 10_000,
    ],
)
def test_what_is_no_lldp_frame_tells_of_nobody_and_says_why(data: bytes) -> None:
    read = lldp_frames.parse(data)
    assert read.neighbour is None
    assert read.problem


def test_a_broken_part_does_no_harm_to_the_others() -> None:
    cut = tlv(8, b"\x09\x01\x0a")
    read = lldp_frames.parse(frame(tlv(7, b"\x00"), cut, tlv(5, b"leaf-01"), tlv(9, b"?"), tlv(127, b"\x00\x80")))
    assert read.neighbour is not None
    assert read.neighbour.name == "leaf-01"
    assert read.unread == 4


def test_a_length_beyond_the_end_is_counted() -> None:
    read = lldp_frames.parse(frame()[:-2] + struct.pack("!H", 5 << 9 | 500) + b"leaf")
    assert read.neighbour is not None
    assert read.neighbour.name == ""
    assert read.unread == 1


def test_names_cannot_draw_on_a_terminal() -> None:
    read = lldp_frames.parse(frame(tlv(5, b"leaf\x1b[2J\n\x00" + "\u202e".encode() + b"x" * 400)))
    assert read.neighbour is not None
    assert read.neighbour.name.isprintable()
    assert len(read.neighbour.name) <= 128


@given(st.binary(max_size=1600))
@settings(max_examples=200)
def test_no_frame_makes_the_parser_raise(data: bytes) -> None:
    lldp_frames.parse(data)
    lldp_frames.parse(FULL[:14] + data)


@given(st.data())
@settings(max_examples=200)
def test_no_flipped_byte_makes_the_parser_raise(data: st.DataObject) -> None:
    damaged = bytearray(FULL)
    for _ in range(data.draw(st.integers(1, 6))):
        damaged[data.draw(st.integers(0, len(FULL) - 1))] = data.draw(st.integers(0, 255))
    read = lldp_frames.parse(bytes(damaged))
    assert (read.neighbour is None) == bool(read.problem)


# ---------------------------------------------------------------------------------------------- lldpcli


def test_one_neighbour_is_an_object() -> None:
    read = lldpcli.parse(capture("lldp/neighbors-as-object.json"))
    assert read.unread.count == 0
    ((interface, neighbour),) = read.pairs
    assert interface == "veth-n"
    assert (neighbour.name, neighbour.chassis_type, neighbour.port_description) == ("leaf-01", "mac", "swp1")
    assert neighbour.management == ("fe80::a093:f1ff:fe3d:411f",)
    assert neighbour.capabilities == ("Router",)
    assert neighbour.ttl == 8


def test_several_neighbours_are_a_list() -> None:
    read = lldpcli.parse(capture("lldp/neighbors-as-list.json"))
    assert read.unread.count == 0
    assert [(interface, neighbour.name) for interface, neighbour in read.pairs] == [
        ("eth0", "mgmt-sw-7"),
        ("eth2", "leaf-12"),
        ("eth3", "leaf-13"),
        ("eth2", ""),
    ]
    assert read.pairs[1][1].management == ("10.3.147.11", "fc00::1")
    assert read.pairs[0][1].vlan == 146
    assert read.pairs[0][1].frame_size == 9236


def test_no_neighbours_are_nothing() -> None:
    read = lldpcli.parse(capture("lldp/no-neighbors.json"))
    assert read.pairs == ()
    assert read.unread.count == 0


def test_everything_is_a_list() -> None:
    chassis = {
        "id": [{"type": "mac", "value": "00:11:22:33:44:AA"}],
        "name": [{"value": "leaf-7"}],
        "ttl": [{"value": "120"}],
        "mgmt-ip": [{"value": "10.0.0.7"}],
        "capability": [{"type": "Bridge", "enabled": True}, {"type": "Router", "enabled": False}],
    }
    port = {"id": [{"type": "ifname", "value": "Ethernet7"}], "descr": [{"value": "node01 eth0"}]}
    document = {"lldp": [{"interface": [{"name": "eth0", "via": "LLDP", "chassis": [chassis], "port": [port]}]}]}
    ((interface, neighbour),) = lldpcli.parse(json.dumps(document)).pairs
    assert interface == "eth0"
    assert (neighbour.name, neighbour.chassis, neighbour.port) == ("leaf-7", "00:11:22:33:44:aa", "Ethernet7")
    assert (neighbour.management, neighbour.capabilities) == (("10.0.0.7",), ("Bridge",))


@pytest.mark.parametrize("name", ["json0", "json0-details", "json-details"])
def test_what_the_real_lldpd_prints(name: str) -> None:
    read = lldpcli.parse((LLDPD / f"{name}.json").read_bytes())
    assert read.unread.count == 0
    ((interface, neighbour),) = read.pairs
    assert interface == "va"
    assert (neighbour.name, neighbour.description) == ("node-b", "leaf switch")
    assert (neighbour.chassis, neighbour.port, neighbour.port_description) == (*["66:cf:d4:9e:46:93"] * 2, "vb")
    assert (neighbour.ttl, neighbour.capabilities) == (4, ("Station",))
    assert kind_of(neighbour)[0] == "host"


def test_a_neighbour_that_is_not_understood_is_counted() -> None:
    read = lldpcli.parse('{"lldp": {"interface": [{"eth0": {"via": "CDP"}}, 7, {"eth1": []}]}}')
    assert read.pairs == ()
    assert read.unread.count == 3
    assert lldpcli.parse("Error: no lldpd").unread.count == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["lldp", "interface", "chassis", "port", "id", "type", "value", "vlan"]), inner
        )
    ),
    max_leaves=20,
)


@given(json_values | st.binary())
@settings(max_examples=200)
def test_no_document_makes_the_reader_raise(value: object) -> None:
    lldpcli.parse(value if isinstance(value, bytes) else json.dumps({"lldp": {"interface": value}}))
    lldpcli.parse(value if isinstance(value, bytes) else json.dumps(value))


# ---------------------------------------------------------------------------------------------- who they are


@pytest.mark.parametrize(
    ("neighbour", "kind"),
    [
        (Neighbour("00:11:22:33:44:10", "mac", capabilities=("Bridge", "Router")), "switch"),
        (Neighbour("00:11:22:33:44:10", "mac", capabilities=("Router",)), "switch"),
        (Neighbour("00:11:22:33:44:10", "mac", capabilities=("Station",)), "host"),
        (Neighbour("00:11:22:33:44:10", "mac", capabilities=()), "host"),
        (Neighbour("00:11:22:33:44:10", "mac"), "unknown"),
        (Neighbour("hypervisor-guest", "local", port="7", port_description="vnet7"), "virtual"),
        (Neighbour("00:11:22:33:44:10", "mac", description="VMware ESXi 8", capabilities=("Bridge",)), "virtual"),
        (Neighbour("52:54:00:11:22:33", "mac", capabilities=("Bridge",)), "virtual"),
        (
            Neighbour("00:11:22:33:44:10", "mac", name="tap-room-switch", port="Eth1", capabilities=("Bridge",)),
            "switch",
        ),
        (Neighbour("02:00:00:00:00:01", "mac", capabilities=("Bridge",)), "self"),
    ],
)
def test_what_a_neighbour_is(neighbour: Neighbour, kind: str) -> None:
    found, reason = kind_of(neighbour, ["02:00:00:00:00:01"])
    assert found == kind
    assert reason


# ---------------------------------------------------------------------------------------------- what was heard


LEAF = Neighbour("00:11:22:33:44:10", "mac", "swp1", "ifname", ttl=120)


def test_a_neighbour_stays_as_long_as_it_said() -> None:
    heard = Hearsay().hear("eth0", LEAF, now=100)
    assert heard.at(219) == {"eth0": (LEAF,)}
    assert heard.at(220) == {}
    assert heard.hear("eth0", LEAF, now=200).at(300) == {"eth0": (LEAF,)}


def test_a_neighbour_says_farewell_or_its_link_goes_down() -> None:
    heard = Hearsay().hear("eth0", LEAF, 0).hear("eth1", LEAF, 0)
    gone = heard.hear("eth0", Neighbour("00:11:22:33:44:10", "mac", "swp1", "ifname", ttl=0), 1)
    assert gone.at(2) == {"eth1": (LEAF,)}
    assert heard.forget("eth1").at(2) == {"eth0": (LEAF,)}


def test_a_renamed_switch_is_the_same_neighbour() -> None:
    renamed = Neighbour("00:11:22:33:44:10", "mac", "swp1", "ifname", name="leaf-02")
    assert Hearsay().hear("eth0", LEAF, 0).hear("eth0", renamed, 1).at(2) == {"eth0": (renamed,)}


def test_nobody_fills_the_memory() -> None:
    heard = Hearsay()
    for number in range(1000):
        heard = heard.hear("eth0", Neighbour(f"chassis-{number}", "local", "1", "local"), now=0)
    assert len(heard.at(1)["eth0"]) == MOST_PER_INTERFACE
    assert heard.refused == 1000 - MOST_PER_INTERFACE
