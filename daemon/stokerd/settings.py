"""Every setting of the daemon, one dataclass per part, one docstring per field.

The configuration is one TOML file; each part is a table, each field a key of the same name. Durations are strings such
as ``"90s"``, ``"10m"``, ``"24h"`` or numbers of seconds; sizes are strings such as ``"2GiB"`` or numbers of bytes.
`settings_file.load` reads a file and reports all of its errors at once. A field marked LIVE takes its new value when
the file is read again (``stoker reload``, SIGHUP); the others hold until stokerd is started anew. docs/configuration.md
is made from this module (`settings_reference`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

from stoker.toml_settings import (
    BodySize,
    Bytes,
    Count,
    Percent,
    PositiveCount,
    PositiveSeconds,
    Seconds,
    Share,
    Unit,
)


@dataclass(frozen=True, slots=True)
class Live:
    """Marks a field whose new value holds as soon as the file is read again."""


LIVE = Live()

LazySize = Annotated[int, Unit("bytes", 64 << 20, 1 << 60)]


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """``[daemon]``: the process itself."""

    state_dir: Path = Path("/var/lib/stoker")
    """Directory of the journal. It must survive a reboot, and belong to one stokerd alone."""

    log_level: Annotated[Literal["debug", "info", "warning", "error"], LIVE] = "info"
    """Least severity that is logged."""

    log_format: Annotated[Literal["auto", "json", "console"], LIVE] = "auto"
    """``auto`` writes lines for people on a terminal and JSON everywhere else."""

    stop_timeout: Annotated[PositiveSeconds, LIVE] = 20.0
    """How long running work may take to be parked when stokerd is told to stop."""


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """``[api]``: the local HTTP API."""

    socket: Path = Path("/run/stoker/stokerd.sock")
    """Unix socket of the API, made with mode 0660."""

    group: str = "stoker"
    """Group whose members may use the API beside root; where the group does not exist, root alone may."""

    max_body: BodySize = 16 << 20
    """Largest request body that is read."""

    heartbeat: PositiveSeconds = 15.0
    """Interval of the comments that keep event streams alive."""


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """``[runtime]``: how containerd is reached."""

    endpoint: str = ""
    """containerd's socket (a path or ``unix://`` path); empty: the usual places of containerd, k3s, rke2, microk8s."""

    call_timeout: PositiveSeconds = 10.0
    """Deadline of calls that only ask or change a record."""

    gc_timeout: PositiveSeconds = 120.0
    """Deadline of calls that wait for containerd's garbage collector."""

    connect_backoff_max: PositiveSeconds = 10.0
    """Longest pause between two tries to reach a containerd that does not answer."""

    registry_config_path: str = ""
    """Directory of containerd's hosts.toml files, as containerd sees it; empty: what containerd says, else
    /etc/containerd/certs.d."""


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """``[images]``: warm images."""

    max_parallel: Annotated[PositiveCount, LIVE] = 2
    """Images pulled at one time on this node."""

    max_parallel_per_registry: Annotated[PositiveCount, LIVE] = 2
    """Images pulled at one time from any one registry."""

    attempts: Annotated[PositiveCount, LIVE] = 5
    """Tries before an image counts as failed, unless the request says otherwise."""

    backoff_initial: Annotated[PositiveSeconds, LIVE] = 1.0
    """Pause after the first failed try; it doubles with each further one."""

    backoff_max: Annotated[PositiveSeconds, LIVE] = 60.0
    """Longest pause between two tries."""

    backoff_jitter: Annotated[Share, LIVE] = 0.5
    """Share of each pause that is random, so that nodes that failed together do not return together."""

    stall_timeout: Annotated[PositiveSeconds, LIVE] = 120.0
    """A pull in which for so long no byte arrives and nothing is unpacked is broken off and tried again."""

    poll_interval: Annotated[PositiveSeconds, LIVE] = 0.1
    """How often a running pull is looked at; longer pulls are looked at up to ten times less often."""

    disk_reserve: Annotated[Bytes, LIVE] = 1 << 30
    """Bytes that must be left on containerd's file system when an image has been pulled."""

    disk_floor: Annotated[Bytes, LIVE] = 512 << 20
    """A running pull is stopped when free bytes fall under this."""

    inode_reserve: Annotated[Count, LIVE] = 10_000
    """Inodes that must be left when an image has been pulled."""

    inode_floor: Annotated[Count, LIVE] = 5_000
    """A running pull is stopped when free inodes fall under this."""

    io_pressure_limit: Annotated[Percent, LIVE] = 80.0
    """No new pull starts while tasks wait for a disk for more than this share of the time (PSI, some, avg10);
    100 switches it off."""

    io_pressure_interval: Annotated[PositiveSeconds, LIVE] = 2.0
    """How often the pressure is read again while it holds pulls back."""

    pin_limit: Annotated[Percent, LIVE] = 50.0
    """Pinned images together may take so much of containerd's file system."""

    keep_interval: Annotated[PositiveSeconds, LIVE] = 300.0
    """How often kept images and pins are checked beside containerd's events."""

    keep_backoff_max: Annotated[PositiveSeconds, LIVE] = 3600.0
    """Longest pause before a kept image that is removed again and again is warmed again."""

    job_ttl: Annotated[Seconds, LIVE] = 3600.0
    """How long a finished job can still be asked for."""

    history_limit: Annotated[PositiveCount, LIVE] = 10_000
    """Attempts that the history keeps."""

    max_images_per_request: Annotated[PositiveCount, LIVE] = 20_000
    """Images that one request may name."""


def _default_docker_configs() -> tuple[Path, ...]:
    return (Path("/root/.docker/config.json"), Path("/var/lib/kubelet/config.json"))


@dataclass(frozen=True, slots=True)
class CredentialSettings:
    """``[credentials]``: where registry credentials come from."""

    docker_configs: Annotated[tuple[Path, ...], LIVE] = field(default_factory=_default_docker_configs)
    """Docker config files (config.json or .dockerconfigjson), read again when they change."""

    helper_timeout: Annotated[PositiveSeconds, LIVE] = 10.0
    """Deadline of one call to a docker credential helper."""


@dataclass(frozen=True, slots=True)
class ContainerSettings:
    """``[containers]``: the inventory, and containers recreated in place."""

    resync_interval: Annotated[PositiveSeconds, LIVE] = 60.0
    """How often pods and containers are listed anew beside the runtime's events."""

    max_parallel: Annotated[PositiveCount, LIVE] = 32
    """Pods in which containers are recreated at one time; others wait for their turn."""

    active_deadline: Annotated[PositiveSeconds, LIVE] = 600.0
    """Time that a request to recreate has, unless it says otherwise."""

    grace: Annotated[Seconds, LIVE] = 30.0
    """Time between the stop signal and the kill where neither the request nor the pod says otherwise."""

    request_ttl: Annotated[Seconds, LIVE] = 3600.0
    """How long a finished request can still be asked for, unless it says otherwise."""


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """``[checkpoints]``: checkpoints, clones and images made of containers (docs/checkpoints.md)."""

    directory: Path = Path("/var/lib/stoker/checkpoints")
    """Directory of the node that checkpoints are kept in. It holds what containers had in memory; root alone can read
    it."""

    criu_config: Literal["manage", "leave"] = "manage"
    """``manage`` writes /etc/criu/runc.conf where nobody else has written one, which halves the freeze of small
    containers; ``leave`` leaves CRIU as it is."""

    tcp: Annotated[Literal["refuse", "close", "established"], LIVE] = "refuse"
    """What is done about established TCP connections, unless the request says otherwise: ``refuse`` the checkpoint,
    ``close`` them in what is restored, or keep them ``established``."""

    dump_timeout: Annotated[PositiveSeconds, LIVE] = 300.0
    """A dump that takes longer is broken off, and the container runs on; so long it may stand at most."""

    lazy_from: Annotated[LazySize, LIVE] = 64 << 20
    """From so much memory on a clone runs before its memory is in, unless the request says otherwise."""

    max_parallel: Annotated[PositiveCount, LIVE] = 2
    """Checkpoints, commits and verifications at one time; others wait for their turn."""

    max_parallel_clones: Annotated[PositiveCount, LIVE] = 8
    """Clones that are brought back at one time."""

    max_clones_per_request: Annotated[PositiveCount, LIVE] = 200
    """Clones that one request may ask for."""

    networks_ahead: Annotated[Count, LIVE] = 0
    """Networks that are made ahead: a clone that finds one starts sooner. Each holds an address of the node's."""

    keep_for: Annotated[Seconds, LIVE] = 0.0
    """Checkpoints are removed when they are older than this; 0: never. One that clones stand on stays, as it does with
    the two limits below."""

    keep_count: Annotated[Count, LIVE] = 0
    """The oldest checkpoints are removed while there are more than this; 0: any number."""

    keep_bytes: Annotated[Bytes, LIVE] = 0
    """The oldest checkpoints are removed while all together take more than this; 0: any size."""

    keep_interval: Annotated[PositiveSeconds, LIVE] = 60.0
    """How often these limits are looked at beside every new checkpoint."""

    operation_ttl: Annotated[Seconds, LIVE] = 3600.0
    """How long an operation that has ended can still be asked for."""


@dataclass(frozen=True, slots=True)
class TopologySettings:
    """``[topology]``: what the node is made of, and what it hangs on (docs/topology.md)."""

    mode: Literal["on-demand", "always", "off"] = "on-demand"
    """``on-demand`` loads it at the first request for it and lets it run from then on, so that stokerd is small where
    nobody asks; ``always`` begins at the start; ``off`` refuses such requests."""

    node: str = ""
    """This node's name in the report; empty: its host name."""

    root: Path = Path("/")
    """Where sys and proc of the machine are: another one if the host's root is mounted elsewhere."""

    interval: Annotated[PositiveSeconds, LIVE] = 15.0
    """How often ports and their counters are read."""

    link_interval: Annotated[PositiveSeconds, LIVE] = 1.0
    """How often the state of the links alone is looked at, for what the kernel does not tell by itself."""

    hardware_interval: Annotated[PositiveSeconds, LIVE] = 60.0
    """How often GPUs, adapters, bridges and NUMA nodes are read."""

    source_interval: Annotated[PositiveSeconds, LIVE] = 30.0
    """How often lldpd is asked, and files that serve as sources are looked at."""

    gpu_interval: Annotated[PositiveSeconds, LIVE] = 300.0
    """How often what is slow is asked: NVIDIA's driver, and who is at the other ends of InfiniBand. What has changed
    is asked at once."""

    read_timeout: Annotated[PositiveSeconds, LIVE] = 10.0
    """A source that takes longer counts as failed."""

    amd_smi: str = "amd-smi"
    """Name or path of amd-smi; empty: it is not run."""

    nvidia_library: str = "libnvidia-ml.so.1"
    """Name or path of NVIDIA's management library (NVML), which a process of its own asks; empty: it is not asked."""

    nvidia_smi: str = "nvidia-smi"
    """Name or path of nvidia-smi, for where there is no library; empty: it is not run."""

    nvidia_file: str = ""
    """A file with what ``nvidia-smi -q -x`` printed, which is used instead of running it."""

    nvidia_matrix_file: str = ""
    """A file with what ``nvidia-smi topo -m`` printed, beside nvidia_file."""

    serial_numbers: Annotated[Literal["withheld", "told"], LIVE] = "withheld"
    """``told``: serial numbers of GPUs are in the report."""

    smpquery: str = "smpquery"
    """Name or path of smpquery (infiniband-diags), which asks who is at the other ends of InfiniBand; empty: it is
    not run."""

    lldpcli: str = "lldpcli"
    """Name or path of lldpd's lldpcli; empty: lldpd is not asked."""

    lldp_socket: str = ""
    """lldpd's socket; empty: the usual places."""

    lldp_listen: Literal["auto", "never"] = "auto"
    """``auto``: where no lldpd answers, stokerd itself listens for LLDP frames; it sends none."""

    neighbour_patience: Annotated[PositiveSeconds, LIVE] = 60.0
    """How long a link has to be up before a switch that does not show itself is missed: by LLDP most say every 30 s who
    they are."""

    lldp_file: str = ""
    """A file with what ``lldpcli -f json show neighbors`` printed, which is used instead of asking lldpd."""

    fabric_file: str = ""
    """A file with what ibnetdiscover or iblinkinfo printed; empty: none."""

    placement_file: str = ""
    """A JSON or environment file that tells where the machine is; empty: none."""

    labels: Annotated[tuple[str, ...], LIVE] = ()
    """Labels that are put into the report, each as ``name=value``."""

    rules: Annotated[tuple[str, ...], LIVE] = ()
    """What interfaces are for, the first that matches counts: ``storage name=ens*f0np0 vlan=100``; conditions are
    name=, vlan=, layer=, least-gbps=, most-gbps=, subnet= and near-gpu=yes or no."""


@dataclass(frozen=True, slots=True)
class UplinkSettings:
    """``[uplink]``: the stream to a coordinator (docs/coordinator-link.md). stokerd works without one, too."""

    coordinator: str = ""
    """Address of the coordinator's link: ``host:port``, or ``unix:/path``; empty: there is none, and nothing of the
    uplink is loaded."""

    ca: str = ""
    """File with the certificate (PEM) that the coordinator is known by; empty: no TLS, which only a loopback address
    and a unix socket may have."""

    token_file: str = ""
    """File with a join token, which is used when the node has no certificate that holds."""

    join: str = ""
    """Address at which the coordinator takes join tokens; empty: that of the link, at the next port."""

    server_name: str = ""
    """Name that the coordinator's certificate has to have; empty: the one in its address."""

    node: str = ""
    """This node's name; empty: its host name. With a certificate it must be the name in that."""

    topology: Literal["auto", "never"] = "auto"
    """``auto``: report the topology and its load, for which they are loaded, unless topology.mode is ``off``."""

    inventory_interval: PositiveSeconds = 5.0
    """How often images, pods and checkpoints are compared with what the coordinator knows, beside events."""

    load_interval: PositiveSeconds = 30.0
    """How often the coordinator is told what the ports carry."""

    reconnect_initial: PositiveSeconds = 2.0
    """Pause before the first try to reach the coordinator again; half of it is random. It doubles with each further
    one."""

    reconnect_max: PositiveSeconds = 60.0
    """Longest pause between two tries."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything together."""

    daemon: DaemonSettings = field(default_factory=DaemonSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    images: ImageSettings = field(default_factory=ImageSettings)
    credentials: CredentialSettings = field(default_factory=CredentialSettings)
    containers: ContainerSettings = field(default_factory=ContainerSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    topology: TopologySettings = field(default_factory=TopologySettings)
    uplink: UplinkSettings = field(default_factory=UplinkSettings)


def is_live(part: type[object], name: str) -> bool:
    """Say whether the field *name* of the part takes its new value at a reload."""
    hint = get_type_hints(part, include_extras=True)[name]
    return LIVE in getattr(hint, "__metadata__", ())
