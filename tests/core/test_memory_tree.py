"""Memory tree and icicle: what is held at the peak, by module and by line, to the byte; and where its boxes are."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from elbowroom.answers.memory_tree import LEAST_SHARE, MemoryNode, line_bytes, memory_tree, module_bytes
from elbowroom.plan import Plan
from elbowroom.report import subject_of
from elbowroom.report.icicle import BOX, boxes_of, icicle, named
from elbowroom.report.peak_section import held_of
from elbowroom.simulate.simulate import held_storages, simulate
from elbowroom.trace import Trace
from elbowroom.units import NONE
from tests.core.report_case import DISK, MIB, chain, swapping


def plans() -> list[Plan | None]:
    return [None, swapping(chain())]


@pytest.mark.parametrize("plan", plans(), ids=["kept", "swapping"])
def test_what_is_held_adds_up_to_the_peak_and_its_categories(plan: Plan | None) -> None:
    trace = chain()
    line = simulate(trace, DISK, plan)

    held = held_storages(trace, DISK, plan)

    assert sum(size for _, size in held) == line.peak_allocated_bytes
    total: dict[str, int] = {}
    for storage, size in held:
        total[trace.storages[storage].category] = total.get(trace.storages[storage].category, 0) + size
    assert total == line.breakdown()


def test_what_is_held_needs_no_machine() -> None:
    trace, plan = chain(), swapping(chain())

    without, with_one = (held_of(subject_of(trace, plan, *machine)) for machine in ((), (DISK,)))

    assert [sorted(each.held) for each in without] == [sorted(each.held) for each in with_one]
    assert [sum(size for _, size in each.held) for each in without] == [228 * MIB, 132 * MIB]


def test_a_plan_for_another_machine_has_the_picture_of_keeping_everything_alone() -> None:
    trace, plan = chain(), swapping(chain())  # which swaps to a disk
    no_disk = replace(DISK, tiers=DISK.tiers[:1], links=())

    assert [each.title for each in held_of(subject_of(trace, plan, no_disk))] == ["everything kept, simulated"]


def test_each_node_has_the_bytes_of_its_parts() -> None:
    trace = chain(layers=5, name="net.block")

    tree = memory_tree(trace, held_storages(trace, DISK))

    for _, node in tree.walk():
        assert not node.parts or sum(part.size_bytes for part in node.parts) == node.size_bytes
        assert all(one.size_bytes >= other.size_bytes for one, other in pairwise(node.parts))


def test_a_chain_of_modules_is_one_node_and_its_storages_are_leaves_by_category() -> None:
    # given 5 outputs of 32 MiB, of net.block.0 to .4, a parameter of .0 of 4 MiB, and the first gradient, made by .4
    trace = chain(layers=5, name="net.block")

    tree = memory_tree(trace, held_storages(trace, DISK))

    (net,) = tree.parts
    assert (net.name, net.path, net.size_bytes) == ("net.block", "net.block", 5 * 32 * MIB + 4 * MIB + 32 * MIB)
    first = net.parts[0]
    assert (first.name, [(part.category, part.size_bytes) for part in first.parts]) == (
        "4",
        [("activation", 32 * MIB), ("temporary", 32 * MIB)],
    )
    assert named(first) == "net.block.4"
    assert named(first.parts[1]) == "net.block.4 temporary"


def test_small_parts_are_one_node_that_has_all_their_bytes() -> None:
    # given two of 1000 modules' outputs that are large, and 998 of one byte: each is below 1/400 of all
    trace = chain(layers=1000, size_bytes=1)
    held = [(1, 1000), (2, 1000), *((n, 1) for n in range(3, 1001))]
    assert LEAST_SHARE * 2998 > 1

    (net,) = memory_tree(trace, held).parts

    assert [(part.name, part.size_bytes) for part in net.parts] == [("0", 1000), ("1", 1000), ("998 smaller", 998)]


def test_a_workspace_without_a_storage_and_what_no_module_owns_stand_outside_modules() -> None:
    trace = chain()
    nobodys = replace(trace, ops=tuple(replace(op, module="") for op in trace.ops))

    tree = memory_tree(nobodys, [(NONE, 5), (1, 3)])

    (outside,) = tree.parts
    assert outside.name == "outside modules"
    assert [(part.category, part.size_bytes) for part in outside.parts] == [("workspace", 5), ("activation", 3)]
    assert module_bytes(nobodys, [(NONE, 5), (1, 3)]) == {"": 8}


def with_lines(trace: Trace) -> Trace:
    lines = tuple(0 if op.phase == "forward" else None for op in trace.ops)
    return replace(trace, source_lines=("net.py:7 in forward",), op_source_lines=lines)


def test_bytes_by_line_are_those_of_the_op_that_made_the_storage() -> None:
    # given 6 outputs of 32 MiB made on one line; the parameter and the first gradient have none
    trace = with_lines(chain())

    found = line_bytes(trace, held_storages(trace, DISK))

    assert found == {"net.py:7 in forward": 6 * 32 * MIB, "": 4 * MIB + 32 * MIB}
    assert next(iter(found)) == "net.py:7 in forward"
    assert line_bytes(chain(), held_storages(chain(), DISK)) == {}


def test_boxes_stand_next_to_each_other_within_the_box_above() -> None:
    trace = chain()

    boxes = list(boxes_of(memory_tree(trace, held_storages(trace, DISK))))

    above = {0: boxes[0]}
    for box in boxes[1:]:
        outer = above[box.depth - 1]
        assert outer.left - 1e-9 <= box.left
        assert box.left + box.width <= outer.left + outer.width + 1e-9
        assert 1 <= box.number <= box.count
        above[box.depth] = box
    leaves = [box for box in boxes if not box.node.parts]
    assert sum(box.width for box in leaves) == pytest.approx(1)


def test_a_name_from_a_record_cannot_leave_its_place_in_the_picture() -> None:
    node = MemoryNode(name='<img onerror="x">', path='"><script>', size_bytes=8)

    drawn = icicle(node, "what holds <8 B>")

    assert "<img" not in drawn
    assert "<script" not in drawn
    assert f'height="{BOX}"' in drawn
    assert len(re.findall('role="treeitem"', drawn)) == 1


def test_a_tree_without_bytes_has_no_picture() -> None:
    assert icicle(MemoryNode(name="all", path="", size_bytes=0), "nothing") == ""
