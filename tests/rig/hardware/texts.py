"""What the tools of a machine print: nvidia-smi, ibnetdiscover, lldpcli; and the LLDP frames on its wires."""

from __future__ import annotations

import json
import struct
from typing import Any

from tests.rig.hardware.machines import FakeNic, Machine


def nvidia_smi(machine: Machine) -> bytes:
    """Return what ``nvidia-smi -q -x`` prints, as far as anybody reads it."""
    gpus = "".join(
        f"""
	<gpu id="0000{gpu.address.upper()}">
		<product_name>{gpu.model}</product_name>
		<mig_mode><current_mig>Disabled</current_mig></mig_mode>
		<serial>{gpu.serial}</serial>
		<uuid>GPU-5ca1ab1e-0000-4000-8000-{index:012}</uuid>
		<minor_number>{index}</minor_number>
		<gpu_recovery_action>None</gpu_recovery_action>
		<pci><pci_gpu_link_info>
			<pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
			<link_widths><max_link_width>16x</max_link_width><current_link_width>{gpu.width}x</current_link_width></link_widths>
		</pci_gpu_link_info></pci>
		<clocks_event_reasons>
			<clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>{_slowed(gpu.slowed)}
		</clocks_event_reasons>
		<fb_memory_usage><total>{gpu.memory_mib} MiB</total></fb_memory_usage>
		<ecc_errors><volatile><dram_uncorrectable>{gpu.uncorrected}</dram_uncorrectable></volatile></ecc_errors>
		<remapped_rows>
			<remapped_row_pending>No</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
		</remapped_rows>
		<fabric>
			<state>{gpu.fabric[0]}</state><status>{gpu.fabric[1]}</status><cliqueId>{gpu.fabric[2]}</cliqueId>
			<clusterUuid>{gpu.fabric[3]}</clusterUuid><health><summary>{gpu.fabric[4]}</summary></health>
		</fabric>
	</gpu>"""
        for index, gpu in enumerate(machine.gpus)
        if not gpu.lost
    )
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
        f"	<driver_version>{machine.driver}</driver_version>{gpus}\n</nvidia_smi_log>\n"
    ).encode()


def _slowed(reasons: int) -> str:
    names = {0x08: "hw_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown"}
    found = [f"clocks_event_reason_{name}" for bit, name in names.items() if reasons & bit]
    return "".join(f"\n			<{name}>Active</{name}>" for name in found)


def topo_m(machine: Machine) -> str:
    """Return the part of ``nvidia-smi topo -m`` that only the driver knows: how GPUs are linked with each other."""
    names = [f"GPU{index}" for index in range(len(machine.gpus))]
    lines = ["\t" + "\t".join(names)]
    for name in names:
        lines.append("\t".join([name, *(" X " if name == other else machine.nvlink for other in names)]))
    return "\n".join(lines) + "\n"


SPINE = "2c5eab0400b80000"


def ibnetdiscover(*machines: Machine, named: bool = True, spine: bool = False) -> str:
    """Return a dump of the fabric, as far as these machines' NICs hang on it.

    *named*: somebody has named its adapters; *spine*: one more switch joins all others.
    """
    ports: dict[tuple[str, str], list[tuple[Machine, FakeNic]]] = {}
    for machine in machines:
        for nic in machine.nics:
            if nic.switch is not None and nic.layer == "InfiniBand" and nic.up:
                ports.setdefault((nic.switch.chassis, nic.switch.name), []).append((machine, nic))
    lines = ["#", "# Topology file: generated on Wed Aug  6 16:11:23 2025", "#"]
    for (guid, name), adapters in sorted(ports.items()):
        places = _places([nic for _, nic in adapters])
        lines += [
            "",
            f"switchguid=0x{guid}({guid})",
            f'Switch\t65 "S-{guid}"\t\t# "{name}" enhanced port 0 lid 3 lmc 0',
        ]
        for (machine, nic), place in zip(adapters, places, strict=True):
            description = _description(machine, nic, named)
            lines.append(
                f'[{place}]\t"H-{nic.guid}"[1]({nic.guid}) \t\t# "{description}" '
                f"lid {0x100 + nic.number} {nic.width}x{nic.speed}"
            )
        for (machine, nic), place in zip(adapters, places, strict=True):
            description = _description(machine, nic, named)
            lines += ["", f"caguid=0x{nic.guid}", f'Ca\t1 "H-{nic.guid}"\t\t# "{description}"']
            peer = f'"S-{guid}"[{place}]'
            lines.append(f'[1]({nic.guid}) \t{peer}\t\t# lid 7 lmc 0 "{name}" lid 3 {nic.width}x{nic.speed}')
        if spine:
            up = sorted(ports).index((guid, name)) + 1
            leaf = next(place for place, line in enumerate(lines) if line.startswith(f'Switch\t65 "S-{guid}"'))
            lines.insert(leaf + 1, f'[64]\t"S-{SPINE}"[{up}]\t\t# "MF0;spine:MQM9700/U1" lid 2 4xNDR')
    if spine:
        head = f'Switch\t65 "S-{SPINE}"\t\t# "MF0;spine:MQM9700/U1" lid 2 lmc 0'
        lines += ["", f"switchguid=0x{SPINE}({SPINE})", head]
        lines += [
            f'[{place}]\t"S-{guid}"[64]\t\t# "{name}" lid 3 4xNDR'
            for place, (guid, name) in enumerate(sorted(ports), start=1)
        ]
    return "\n".join(lines) + "\n"


def _places(nics: list[FakeNic]) -> list[int]:
    """Return the ports of a switch that NICs hang on; where two say the same, the second has the next that is free."""
    taken: list[int] = []
    for nic in nics:
        assert nic.switch is not None
        place = int(nic.switch.port)
        while place in taken:
            place += 1
        taken.append(place)
    return taken


def _description(machine: Machine, nic: FakeNic, named: bool) -> str:
    return f"{machine.name} {nic.rdma}" if named else "MT4129 ConnectX7   Mellanox Technologies"


def lldpcli(machine: Machine) -> str:
    """Return what ``lldpcli -f json show neighbors`` prints."""
    interfaces: list[dict[str, Any]] = []
    for nic in _on_ethernet(machine):
        assert nic.switch is not None
        chassis = {
            "id": {"type": "mac", "value": nic.switch.chassis},
            "descr": "switch operating system 1.2",
            "ttl": "120",
            "mgmt-ip": "10.3.147.9",
            "capability": [{"type": "Bridge", "enabled": nic.switch.bridge}, {"type": "Router", "enabled": True}],
        }
        port = {"id": {"type": "ifname", "value": nic.switch.port}, "descr": f"to {machine.name}", "mfs": "9236"}
        interfaces.append({nic.netdev: {"via": "LLDP", "chassis": {nic.switch.name: chassis}, "port": port}})
    if not interfaces:
        return json.dumps({"lldp": {}})
    return json.dumps({"lldp": {"interface": interfaces if len(interfaces) > 1 else interfaces[0]}}, indent=1)


def lldp_frames(machine: Machine) -> dict[str, bytes]:
    """Return the frame that each switch sends, by the network device that gets it."""
    return {nic.netdev: _frame(nic) for nic in _on_ethernet(machine)}


def _on_ethernet(machine: Machine) -> list[FakeNic]:
    return [nic for nic in machine.nics if nic.switch is not None and nic.layer == "Ethernet" and nic.up]


def _frame(nic: FakeNic) -> bytes:
    assert nic.switch is not None
    mac = bytes.fromhex(nic.switch.chassis.replace(":", ""))
    parts = (
        (1, b"\x04" + mac),
        (2, b"\x05" + nic.switch.port.encode()),
        (3, struct.pack("!H", 120)),
        (5, nic.switch.name.encode()),
        (7, struct.pack("!HH", 0b10100, 0b10100 if nic.switch.bridge else 0b10000)),
        (0, b""),
    )
    body = b"".join(struct.pack("!H", kind << 9 | len(value)) + value for kind, value in parts)
    return bytes.fromhex("0180c200000e") + mac + b"\x88\xcc" + body
