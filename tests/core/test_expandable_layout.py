"""The layout of expandable segments as requests: an empty allocator gets the same pages and blocks."""

from __future__ import annotations

from typing import Literal

from elbowroom.allocator.device_allocator import DeviceAllocator
from elbowroom.allocator.settings import parse_settings
from elbowroom.capture.recording.allocator_layout import BRIEF, HOLE, LayoutPiece, LayoutSegment, fills

MIB = 2**20

PAGE = 20 * MIB
BASE = 1 << 40


def run_of_pages(
    at: int, *pieces: tuple[str, int], kind: Literal["expandable", "fixed"] = "expandable"
) -> LayoutSegment:
    """A run of mapped pages of the large pool, beginning `at` bytes from the base."""
    address, made = BASE + at, list[LayoutPiece]()
    for what, size in pieces:
        made.append(LayoutPiece(address, size, size) if what == "block" else LayoutPiece(HOLE, size))
        address += size
    return LayoutSegment(BASE + at, address - BASE - at, small=False, kind=kind, pieces=tuple(made))


def laid_out(*segments: LayoutSegment) -> tuple[int, int]:
    """(allocated, reserved) bytes of an allocator that was given the requests of segments, its cache emptied."""
    device = DeviceAllocator(parse_settings("expandable_segments:True"), None, wait_for_synchronize=False)
    holes: list[int] = []
    for number, fill in enumerate(fills(segments)):
        device.allocate(number, fill.size_bytes)
        if fill.address == BRIEF:
            device.free(number)
        elif fill.address == HOLE:
            holes.append(number)
    for number in holes:
        device.free(number)
    device.empty_cache()
    live = sum(block.size for block in device.live.values() if block is not None)
    return live, device.reserved_bytes


def test_blocks_apart_hold_the_pages_that_they_lie_in() -> None:
    # given 5 MiB at the begin of one page, and 5 at the end of the third, in one run
    run = run_of_pages(0, ("block", 5 * MIB), ("hole", 50 * MIB), ("block", 5 * MIB))
    # then the page between them goes back, and both keep their own
    assert laid_out(run) == (10 * MIB, 2 * PAGE)


def test_a_gap_between_runs_keeps_their_blocks_on_pages_of_their_own() -> None:
    first = run_of_pages(0, ("block", 5 * MIB), ("hole", 15 * MIB))
    second = run_of_pages(5 * PAGE, ("block", 5 * MIB), ("hole", 15 * MIB))
    assert laid_out(first, second) == (10 * MIB, 2 * PAGE)


def test_a_hole_that_no_request_of_the_pool_fits_moves_what_is_behind_it() -> None:
    # given half a MiB between two blocks, which belongs to no request of the large pool
    run = run_of_pages(0, ("block", 5 * MIB), ("hole", MIB // 2), ("block", 5 * MIB), ("hole", 9 * MIB + MIB // 2))
    # then the blocks hold their bytes, on one page
    assert laid_out(run) == (10 * MIB, PAGE)


def test_the_holes_of_fixed_segments_count_as_held_beside_expandable_ones() -> None:
    fixed = run_of_pages(0, ("block", 5 * MIB), ("hole", 15 * MIB), kind="fixed")
    pages = run_of_pages(5 * PAGE, ("block", 20 * MIB))
    assert laid_out(fixed, pages) == (40 * MIB, 2 * PAGE)
