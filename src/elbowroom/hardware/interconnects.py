"""Interconnects: how long a collective of ranks takes, by links inside a computer and a network between computers.

Computes: the shortest of NCCL's own estimates for a collective: latency plus bytes over bandwidth, for each algorithm
(ring, and tree for an all-reduce) and protocol (LL, LL128, Simple). The bandwidth of ranks on several computers is the
smaller of the links inside and the part of the computer's adapters that belongs to the group's ranks.
Reference: `ncclTopoTuneModel` and `ncclTopoGetAlgoTime` in src/graph/tuning.cc of NCCL 2.12, and the bandwidths of
src/graph/topo.h; Hockney's alpha-beta model of messages.
When right: for large messages, within the spread of published bus bandwidths (docs/scaling.md).
Ignores: NVLS and SHARP (switches that add), congestion, ranks that arrive late, NCCL's corrections for middle sizes.
Cost: constant for a collective.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import log2
from typing import NamedTuple

from elbowroom.errors import UsageError
from elbowroom.files import field_rules as rules

GB = 10**9


class LinkRate(NamedTuple):
    """One GPU's way to others.

    Attributes:
        bytes_per_s: bandwidth that NCCL counts with.
        is_nvlink: whether its hops have the latency of NVLink, else of PCIe.
        source: where the bandwidth is from.
    """

    bytes_per_s: int
    is_nvlink: bool
    source: str


_TOPO = "NCCL src/graph/topo.h: {} GB/s a link, {} links"
INSIDE: Mapping[str, LinkRate] = {
    "nvlink-1": LinkRate(72 * GB, True, _TOPO.format("18", 4)),
    "nvlink-2": LinkRate(120 * GB, True, _TOPO.format("20", 6)),
    "nvlink-3": LinkRate(235 * GB, True, "NCCL src/graph/tuning.cc: at most 235 GB/s on compute capability 8.0"),
    "nvlink-4": LinkRate(370_800_000_000, True, _TOPO.format("20.6", 18)),
    "nvlink-5": LinkRate(721_800_000_000, True, _TOPO.format("40.1", 18)),
    "pcie-3": LinkRate(12 * GB, False, "NCCL src/graph/topo.h: PCI Gen3 x16, 12 GB/s"),
    "pcie-4": LinkRate(24 * GB, False, "twice PCI Gen3 x16"),
    "pcie-5": LinkRate(48 * GB, False, "four times PCI Gen3 x16"),
}
"""Links between the GPUs of a computer, by name."""

_NET = "NCCL src/graph/topo.h: 12 GB/s for 100 Gbit"
NETWORKS: Mapping[str, LinkRate] = {
    "ethernet-10": LinkRate(1_200_000_000, False, _NET),
    "ethernet-25": LinkRate(3 * GB, False, _NET),
    "ethernet-100": LinkRate(12 * GB, False, _NET),
    "ethernet-400": LinkRate(48 * GB, False, _NET),
    "edr": LinkRate(12 * GB, False, _NET),
    "hdr": LinkRate(24 * GB, False, _NET),
    "ndr": LinkRate(48 * GB, False, _NET),
    "xdr": LinkRate(96 * GB, False, _NET),
}
"""Network adapters of a computer, by name: Ethernet by Gbit/s, InfiniBand by generation."""

OF_GPU: Mapping[str, str] = {
    "p100-sxm2-16gb": "nvlink-1,4xedr",
    "v100-sxm2-16gb": "nvlink-2,4xedr",
    "v100-sxm2-32gb": "nvlink-2,4xedr",
    "v100-nvlink-power9": "nvlink-2,2xedr",
    "v100-nvlink-power9-32gb": "nvlink-2,2xedr",
    "a100-40gb": "nvlink-3,8xhdr",
    "a100-80gb": "nvlink-3,8xhdr",
    "h100-sxm": "nvlink-4,8xndr",
    "h200": "nvlink-4,8xndr",
    "gh200": "nvlink-4,1xndr",
    "b200": "nvlink-5,8xndr",
}
"""By GPU: the parts of NVIDIA's own computers with it (DGX-1, DGX A100, DGX H100, DGX B200, IBM's AC922)."""
OTHERS = {8: "pcie-4,1xethernet-100", 9: "pcie-5,1xethernet-100"}
"""By the first digit of the compute capability; older GPUs have PCIe 3."""

_BASE_NS = {"tree": (4400, 4400, 0), "ring": (3600, 10000, 8400)}
_NVLINK_NS = {"tree": (520, 1200, 28000), "ring": (470, 1900, 3400)}
_PCIE_NS = {"tree": (1000, 1900, 28000), "ring": (1000, 2500, 5700)}
_NET_NS = {"tree": (5000, 8500, 50000), "ring": (2700, 4000, 9600)}
"""Latencies of LL, LL128 and Simple: of a collective, and of a hop; NCCL src/graph/tuning.cc, baseLat and hwLat."""
_SHARES = {"tree": (0.9 / 3.8, 0.9 * 7 / 9, 0.9), "ring": (0.25, 0.92, 1.0)}
"""Share of the bandwidth that each protocol reaches; NCCL src/graph/tuning.cc."""
_PLATEAU = 1.9
"""Factor on the latency of a Simple ring of several computers for an all-reduce, where a rank has 64 KiB / 16."""

_RATE = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)\s*(GB|MB)/s", re.IGNORECASE)
_NAMED = re.compile(r"(?:(\d+)x)?([a-z]+[a-z0-9-]*)")
_FORM = "INSIDE,NETWORK, each a name or a rate, the network with the number of a computer's adapters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interconnect:
    """How the ranks of a job reach each other.

    Attributes:
        name: as it was asked for.
        inside_bytes_per_s: bandwidth of one GPU to the others of its computer.
        is_nvlink: whether that is NVLink, else PCIe.
        network_bytes_per_s: bandwidth of all network adapters of a computer.
    """

    name: str
    inside_bytes_per_s: int
    is_nvlink: bool
    network_bytes_per_s: int

    def __post_init__(self) -> None:
        rules.text("Interconnect.name", self.name)
        rules.integer("Interconnect.inside_bytes_per_s", self.inside_bytes_per_s, least=1)
        rules.integer("Interconnect.network_bytes_per_s", self.network_bytes_per_s, least=1)

    @classmethod
    def of(cls, text: str) -> Interconnect:
        """Read "nvlink-4,8xndr", "pcie-4,1xethernet-25" or "300GB/s,8x25GB/s".

        Raises:
            UsageError: it is not of this form, or a name is unknown.
        """
        parts = [part.strip() for part in text.split(",")]
        if len(parts) != 2:
            raise UsageError(
                f"interconnect: given {text!r}; allowed is {_FORM}; write for example nvlink-4,8xndr or "
                "300GB/s,8x25GB/s"
            )
        inside, network = _read(parts[0], INSIDE, text), _read(parts[1], NETWORKS, text)
        if inside[0] != 1:
            raise UsageError(f"interconnect: given {parts[0]!r}; allowed is a number before the network alone")
        return cls(
            name=text,
            inside_bytes_per_s=inside[1].bytes_per_s,
            is_nvlink=inside[1].is_nvlink,
            network_bytes_per_s=network[0] * network[1].bytes_per_s,
        )

    @classmethod
    def of_gpu(cls, name: str, compute_capability: int, asked: str | None = None) -> Interconnect:
        """Return the one that is asked for, else the usual one of a GPU.

        That is of NVIDIA's own computers, else PCIe and one adapter of 100 Gbit/s.

        Raises:
            UsageError: what is asked for is no interconnect.
        """
        usual = OTHERS.get(min(compute_capability // 10, 9), "pcie-3,1xethernet-100")
        return cls.of(asked or OF_GPU.get(name, usual))


class Communicator(NamedTuple):
    """A group of ranks that exchange tensors, as one of its ranks sees it.

    Attributes:
        ranks: processes of the group.
        local_ranks: of these on this rank's computer.
        node_ranks: processes of the whole job on this rank's computer.
    """

    ranks: int
    local_ranks: int
    node_ranks: int

    @property
    def nodes(self) -> int:
        """Computers that the group is on."""
        return -(-self.ranks // max(1, self.local_ranks))


def _read(text: str, names: Mapping[str, LinkRate], whole: str) -> tuple[int, LinkRate]:
    """Return how many there are of a link, and one of them."""
    found = _RATE.fullmatch(text)
    if found:
        rate = int(float(found[2]) * (GB if found[3].upper() == "GB" else 10**6))
        return int(found[1] or 1), LinkRate(max(1, rate), rate >= INSIDE["nvlink-1"].bytes_per_s, "given")
    named = _NAMED.fullmatch(text.lower())
    if not named or named[2] not in names or named[1] == "0":
        raise UsageError(
            f"interconnect: given {text!r} in {whole!r}; allowed are {', '.join(names)}, or a rate such as 25GB/s; "
            "take one of these"
        )
    return int(named[1] or 1), names[named[2]]


def exchange_ns(kind: str, size_bytes: int, group: Communicator, wires: Interconnect) -> int:
    """Return the time of a collective.

    Args:
        kind: as in answers/exchanges.py: "all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all" and
            others.
        size_bytes: what is gathered, scattered, reduced or sent.
        group: its ranks.
        wires: how they reach each other.
    """
    if group.ranks < 2:
        return 0
    if kind in ("all-to-all", "send", "receive"):
        return _direct_ns(kind, size_bytes, group, wires)
    ways = ("ring", "tree") if kind == "all-reduce" else ("ring",)
    return round(min(_way_ns(way, p, kind, size_bytes, group, wires) for way in ways for p in _protocols(wires)))


def all_reduce_ns(algorithm: str, size_bytes: int, group: Communicator, wires: Interconnect) -> int:
    """Return the time of an all-reduce with one algorithm.

    Args:
        algorithm: "ring", "tree", or "hierarchical": scattered inside each computer, reduced over the computers by as
            many groups as one has ranks, gathered inside again.
        size_bytes: what is reduced.
        group: its ranks.
        wires: how they reach each other.

    Raises:
        UsageError: there is no such algorithm.
    """
    if algorithm not in ("ring", "tree", "hierarchical"):
        raise UsageError(f"algorithm: given {algorithm!r}; allowed are ring, tree and hierarchical; take one of these")
    if group.ranks < 2:
        return 0
    if algorithm != "hierarchical":
        return round(min(_way_ns(algorithm, p, "all-reduce", size_bytes, group, wires) for p in _protocols(wires)))
    inside = Communicator(group.local_ranks, group.local_ranks, group.node_ranks)
    across = Communicator(group.nodes, 1, group.node_ranks)
    part_bytes = -(-size_bytes // group.local_ranks)
    both_ns = (exchange_ns(kind, size_bytes, inside, wires) for kind in ("reduce-scatter", "all-gather"))
    return sum(both_ns) + exchange_ns("all-reduce", part_bytes, across, wires)


def _protocols(wires: Interconnect) -> tuple[int, ...]:
    return (0, 1, 2) if wires.is_nvlink else (0, 2)


def bus_bytes_per_s(group: Communicator, wires: Interconnect) -> float:
    """Return the bandwidth at which data goes round a ring of the group."""
    if group.nodes == 1:
        return wires.inside_bytes_per_s
    return min(wires.inside_bytes_per_s, network_share(group, wires) * group.local_ranks)


def network_share(group: Communicator, wires: Interconnect) -> float:
    """Return the bandwidth of one rank into the network, if all ranks of its computer use it."""
    return wires.network_bytes_per_s / max(1, group.node_ranks)


def _way_ns(way: str, protocol: int, kind: str, size_bytes: int, group: Communicator, wires: Interconnect) -> float:
    """Return the time with one algorithm and one protocol."""
    rate = bus_bytes_per_s(group, wires) * _SHARES[way][protocol]
    inside_ns = (_NVLINK_NS if wires.is_nvlink else _PCIE_NS)[way][protocol]
    between_ns = _NET_NS[way][protocol]
    ranks, nodes = group.ranks, group.nodes
    latency_ns: float = _BASE_NS[way][protocol]
    if way == "tree":
        latency_ns += 2 * ((ranks / nodes - 1) * inside_ns + log2(max(1, nodes)) * between_ns)
        return latency_ns + 2e9 * size_bytes / rate
    rounds = 2 if kind == "all-reduce" else 1
    hops = rounds * (ranks - 1)
    across = rounds * (nodes - 1)
    latency_ns += (hops - across) * inside_ns + across * between_ns
    if kind == "all-reduce" and protocol == 2 and nodes > 1 and size_bytes >= ranks * 4096:
        latency_ns *= _PLATEAU
    share = hops / ranks if kind in ("all-reduce", "all-gather", "reduce-scatter", "gather", "scatter") else 1.0
    return latency_ns + 1e9 * size_bytes * share / rate


def _direct_ns(kind: str, size_bytes: int, group: Communicator, wires: Interconnect) -> int:
    """Return the time of messages from rank to rank, to all at once or to one."""
    hop_ns = _NET_NS if group.nodes > 1 else _NVLINK_NS if wires.is_nvlink else _PCIE_NS
    latency_ns = _BASE_NS["ring"][2] + hop_ns["ring"][2]
    if kind != "all-to-all":
        rate = network_share(group, wires) if group.nodes > 1 else wires.inside_bytes_per_s
        return round(latency_ns + 1e9 * size_bytes / rate)
    inside = size_bytes * (group.local_ranks - 1) / group.ranks / wires.inside_bytes_per_s
    between = size_bytes * (group.ranks - group.local_ranks) / group.ranks / network_share(group, wires)
    return round(latency_ns + 1e9 * max(inside, between))
