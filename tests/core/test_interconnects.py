"""Interconnects: the time of a collective, by hand from NCCL's constants, and what `--interconnect` may be."""

from __future__ import annotations

import pytest

from elbowroom.errors import InvalidRecord, UsageError
from elbowroom.hardware.interconnects import (
    INSIDE,
    NETWORKS,
    OF_GPU,
    Communicator,
    Interconnect,
    all_reduce_ns,
    bus_bytes_per_s,
    exchange_ns,
)
from elbowroom.machine import Machine

GB = 10**9
DGX = Interconnect.of("nvlink-3,8xhdr")
NODE = Communicator(8, 8, 8)
PCIE = Interconnect.of("pcie-4,1xethernet-25")


def test_names_and_rates_make_the_same_interconnect() -> None:
    named, given = Interconnect.of("nvlink-3, 8xhdr"), Interconnect.of("235GB/s,8x24GB/s")

    assert (named.inside_bytes_per_s, named.network_bytes_per_s) == (235 * GB, 192 * GB)
    assert (given.inside_bytes_per_s, given.network_bytes_per_s, given.is_nvlink) == (235 * GB, 192 * GB, True)
    assert Interconnect.of("pcie-3,500MB/s").network_bytes_per_s == 500 * 10**6


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nvlink-4", "given 'nvlink-4'; allowed is INSIDE,NETWORK"),
        ("nvlink-9,ndr", "given 'nvlink-9' in 'nvlink-9,ndr'; allowed are nvlink-1, nvlink-2"),
        ("pcie-3,0xndr", "given '0xndr'"),
        ("pcie-3,wifi", "allowed are ethernet-10"),
        ("2xnvlink-4,ndr", "allowed is a number before the network alone"),
        ("", "given ''"),
    ],
)
def test_another_text_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(UsageError) as problem:
        Interconnect.of(text)

    assert said in str(problem.value)


def test_a_rate_of_nothing_is_no_interconnect() -> None:
    with pytest.raises(InvalidRecord, match="network_bytes_per_s"):
        Interconnect(name="x", inside_bytes_per_s=1, is_nvlink=False, network_bytes_per_s=0)


def test_each_gpu_has_a_usual_one_and_every_rate_a_source() -> None:
    for name, text in OF_GPU.items():
        machine = Machine.of(name)
        assert Interconnect.of_gpu(machine.name, machine.compute_capability).name == text
    assert Interconnect.of_gpu("rtx4090", 89).name == "pcie-4,1xethernet-100"
    assert Interconnect.of_gpu("rtx5090", 120).name == "pcie-5,1xethernet-100"
    assert Interconnect.of_gpu("t4", 75).name == "pcie-3,1xethernet-100"
    assert all(rate.source for rate in (*INSIDE.values(), *NETWORKS.values()))


def test_a_large_all_reduce_moves_each_byte_almost_twice() -> None:
    # Simple ring: 8.4 us, 14 hops of 3.4 us; 1 GB * 14/8 / 235 GB/s = 7,446.8 us
    assert exchange_ns("all-reduce", GB, NODE, DGX) == pytest.approx(8_400 + 14 * 3_400 + 7_446_809, abs=1)


def test_a_gathering_and_a_scattering_move_it_almost_once() -> None:
    # 8.4 us, 7 hops of 3.4 us; 1 GB * 7/8 / 235 GB/s = 3,723.4 us
    for kind in ("all-gather", "reduce-scatter"):
        assert exchange_ns(kind, GB, NODE, DGX) == pytest.approx(8_400 + 7 * 3_400 + 3_723_404, abs=1)


def test_a_small_all_reduce_costs_the_latency_of_the_quickest_protocol() -> None:
    # LL tree: 4.4 us and 2 * 7 hops of 0.52 us; LL ring: 3.6 us and 14 hops of 0.47 us
    assert exchange_ns("all-reduce", 8, NODE, DGX) == round(3_600 + 14 * 470 + 8 * 14 / 8 / (235 * 0.25))


def test_ranks_on_several_computers_share_their_adapters() -> None:
    whole = Communicator(16, 8, 8)  # two computers, each with all of its 8 ranks
    one_each = Communicator(16, 1, 8)  # one rank of each of 16 computers: an eighth of a network of 192 GB/s

    assert bus_bytes_per_s(NODE, DGX) == 235 * GB
    assert bus_bytes_per_s(whole, DGX) == 192 * GB
    assert bus_bytes_per_s(one_each, DGX) == 24 * GB
    assert (whole.nodes, one_each.nodes) == (2, 16)


def test_many_ranks_take_a_tree_where_its_latency_is_less() -> None:
    size_bytes, many = 2**20, Communicator(1024, 8, 8)

    # LL tree: 4.4 us, 2 * (7 * 0.52 us + 7 * 5 us), and twice the bytes at 0.9 / 3.8 of 192 GB/s
    tree = 4_400 + 2 * (7 * 520 + 7 * 5_000) + 2 * size_bytes / (192 * 0.9 / 3.8)
    assert exchange_ns("all-reduce", size_bytes, many, DGX) == round(tree)


def test_an_all_to_all_goes_inside_and_outside_at_once() -> None:
    # of 1 GB 8/16 leaves the computer, at 24 GB/s a rank; 7/16 stays, at 235 GB/s
    took = exchange_ns("all-to-all", GB, Communicator(16, 8, 8), DGX)

    assert took == pytest.approx(8_400 + 9_600 + 1e9 * 0.5 / 24, abs=1)


def test_a_message_takes_one_hop() -> None:
    # PCIe: 8.4 + 5.7 us and 24 GB/s; over the network one adapter of 3 GB/s that 4 ranks share
    assert exchange_ns("send", 24_000, Communicator(2, 2, 4), PCIE) == 8_400 + 5_700 + 1_000
    assert exchange_ns("receive", 750_000, Communicator(2, 1, 4), PCIE) == 8_400 + 9_600 + 1_000_000


def test_one_rank_alone_exchanges_nothing() -> None:
    assert exchange_ns("all-reduce", GB, Communicator(1, 1, 1), DGX) == 0


def test_time_grows_with_bytes_and_with_computers() -> None:
    for kind in ("all-reduce", "all-gather", "broadcast", "all-to-all", "send"):
        sizes = [exchange_ns(kind, 4**power, NODE, DGX) for power in range(16)]
        assert sizes == sorted(sizes)
        ranks = [exchange_ns(kind, GB, Communicator(8 * nodes, 8, 8), DGX) for nodes in (1, 2, 4, 64, 512)]
        assert ranks == sorted(ranks)


def test_a_hierarchical_all_reduce_scatters_inside_reduces_across_and_gathers_inside() -> None:
    whole = Communicator(64, 8, 8)
    across = Communicator(8, 1, 8)
    part = exchange_ns("all-reduce", GB // 8, across, DGX)

    both = 2 * exchange_ns("all-gather", GB, NODE, DGX)
    assert all_reduce_ns("hierarchical", GB, whole, DGX) == both + part
    # an eighth of the network for an eighth of the bytes, and 8.4 us and 14 hops of 9.6 us on the plateau
    assert part == pytest.approx(1e9 / 8 * 14 / 8 / 24 + 1.9 * (8_400 + 14 * 9_600), abs=1)


def test_nccl_takes_the_quicker_of_ring_and_tree() -> None:
    for size_bytes, group in ((64, NODE), (2**20, Communicator(1024, 8, 8)), (GB, Communicator(16, 8, 8))):
        ways = [all_reduce_ns(way, size_bytes, group, DGX) for way in ("ring", "tree")]
        assert exchange_ns("all-reduce", size_bytes, group, DGX) == min(ways)
    assert all_reduce_ns("hierarchical", GB, Communicator(1, 1, 1), DGX) == 0


def test_another_algorithm_is_refused() -> None:
    with pytest.raises(UsageError, match="given 'star'; allowed are ring, tree and hierarchical"):
        all_reduce_ns("star", GB, NODE, DGX)
