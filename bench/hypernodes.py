"""The trees of domains: built whole, and after one changed report, for 1 000, 3 000 and 10 000 nodes in three tiers.

Each node has eight compute ports (a leaf a rail), two storage ports and its place in an NVLink domain, so three trees
are built. A build begins with what is known of the nodes and with what a central source has said of all switches. A
delta begins with a node's report and ends with the domains that have changed. All of it is computing, so it is CPU time
that is measured: what else the machine does counts less.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from msgspec.structs import replace

from bench.figures import Figure
from stoker.objects.topology import Nic, NicPort, NvlinkDomain, PortHealth, PortNeighbour, TopologyReport
from stoker_coordinator.hypernodes.live import Live
from stoker_coordinator.hypernodes.model import NodeFacts, Port, SourceState
from stoker_coordinator.hypernodes.observe import observe
from tests.unit.coordinator.hypernodes.fabrics import THEN, Plan, facts_of, node_name, source_of, trunks_of

Say = Callable[[str], None]
SIZES = {"1k": 1000, "3k": 3000, "10k": 10_000}
NODES_PER_RACK = 20
BUILD_TARGET, DELTA_TARGET = 1000.0, 2.0
FLAPS = 400


async def run(workdir: Path, runs: int, say: Say) -> list[Figure]:
    """Measure builds and deltas, the smaller sizes first."""
    del workdir
    figures = []
    for size, nodes in SIZES.items():
        plan = Plan(
            racks=nodes // NODES_PER_RACK,
            nodes_per_rack=NODES_PER_RACK,
            rails=8,
            racks_per_pod=16,
            spines_per_rail=8,
            cores_per_spine=16,
        )
        facts, source = [known(plan, number) for number in range(plan.nodes)], source_of(trunks_of(plan))
        prefix = "hypernodes" if size == "10k" else f"hypernodes.{size}_nodes"
        live, builds = _builds(facts, source, max(runs, 5))
        links = sum(trunk.links for trunk in source.reading.trunks) if source.reading is not None else 0
        against = f"{plan.nodes} nodes, 3 tiers, {links} links between switches"
        figures.append(_figure(f"{prefix}.build_ms", builds, BUILD_TARGET * nodes / 10_000, against, say))
        deltas = sorted(_deltas(live, plan))
        figures.append(_figure(f"{prefix}.delta_ms", deltas, DELTA_TARGET, "a report with a changed link", say))
    return figures


def known(plan: Plan, number: int) -> NodeFacts:
    """Return what is known of a node: compute, storage, NVLink."""
    rack = number // plan.nodes_per_rack
    storage = [
        Port(f"mlx5_{8 + each}", 1, "roce-storage", f"5e:{each}:{rack // 4}", f"stor-{rack // 4}-{each}", gbps=200.0)
        for each in range(2)
    ]
    domain = f"7e3a9c51-2f0d-4b6e-9a51-{rack:012x}.1"
    nvlink = Port("nvlink", 0, "nvlink", domain, domain, state="healthy", since=THEN)
    healthy = [replace(port, state="healthy", since=THEN, source="report/lldp") for port in storage]
    return facts_of(plan, number, more=(*healthy, nvlink))


def _builds(facts: list[NodeFacts], source: SourceState, runs: int) -> tuple[Live, list[float]]:
    samples = []
    live = Live()
    for _ in range(runs):
        gc.collect()
        began = time.process_time()
        live = Live()
        live.central((source,))
        for each in facts:
            live.put(each)
        live.settle(THEN)
        samples.append((time.process_time() - began) * 1000)
    assert {each.tier for each in live.hypernodes("infiniband")} == {1, 2, 3}
    assert live.hypernodes("infiniband")[-1].node_count == len(facts)
    return live, samples


def _deltas(live: Live, plan: Plan) -> Iterator[float]:
    """Pull a cable here and there, and plug it in again."""
    step = max(1, plan.nodes // (FLAPS // 2))
    now = THEN
    for number in range(0, plan.nodes, step):
        for state in ("down", "healthy"):
            now += timedelta(seconds=1)
            report = report_of(plan, number, state)
            began = time.process_time()
            before = live.facts(node_name(number))
            live.put(observe(report, before))
            delta = live.settle(now)
            yield (time.process_time() - began) * 1000
            assert [each.tier for each in delta.changed] == [1, 2, 3]
            assert delta.changed[-1].unhealthy_link_count == (1 if state == "down" else 0)


def report_of(plan: Plan, number: int, state: str) -> TopologyReport:
    """Return a node's report in which the first port is in *state*."""
    nics = []
    for index, port in enumerate(port for port in known(plan, number).ports if port.fabric != "nvlink"):
        down = index == 0 and state == "down"
        neighbour = PortNeighbour(
            source="fabric",
            since=THEN,
            kind="switch",
            reason="the fabric's dump calls it a switch",
            chassis=port.switch,
            port=port.switch_port,
            name=port.switch_name,
        )
        nics.append(
            Nic(
                source="sysfs.rdma",
                since=THEN,
                name=port.nic,
                use="storage" if "storage" in port.fabric else "compute",
                use_reason="",
                rdma=True,
                ports=[
                    NicPort(
                        source="sysfs.rdma",
                        since=THEN,
                        number=1,
                        state="down" if down else "active",
                        health=PortHealth(source="sysfs.rdma", since=THEN, state="down" if down else "healthy"),
                        layer="ethernet" if "roce" in port.fabric else "infiniband",
                        gbps=0.0 if down else port.gbps,
                        guid=port.aliases[0] if port.aliases else "",
                        neighbours=[] if down else [neighbour],
                    )
                ],
            )
        )
    cluster = known(plan, number).ports[-1].switch
    domain = NvlinkDomain(source="nvidia-smi", since=THEN, name=cluster, gpus=[f"GPU{gpu}" for gpu in range(4)])
    return TopologyReport(version=1, node=node_name(number), since=THEN, nics=nics, domains=[domain])


def _figure(name: str, samples: list[float], target: float, against: str, say: Say) -> Figure:
    value = statistics.median(samples)
    detail = f"all: {min(samples):.2f}-{max(samples):.2f}"
    if len(samples) > 100:
        detail += f", 99 of 100 within {sorted(samples)[len(samples) * 99 // 100]:.2f}"
    say(f"{name}: {value:.2f} ms ({detail})")
    return Figure(name, round(value, 2), "ms", target, len(samples), against, detail=detail)
