"""estimate: verdict, peaks with their intervals, what holds the memory and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elbowroom.answers.estimate import Estimate, Interval, estimate, moment_label
from elbowroom.answers.memory_by_module import ModuleShare, block_name
from elbowroom.machine import Machine, Tier
from elbowroom.step.workspaces import conv_workspaces
from elbowroom.trace import Category, Event, OnStream, Op, Phase, Step, Storage, Trace, Workspace

MIB = 2**20


def gpu(capacity_mib: int, *, outside: tuple[int, int, int] = (0, 0, 0), settings: str = "") -> Machine:
    least, likely, most = (each * MIB for each in outside)
    return Machine(
        name="test",
        tiers=(Tier(name="device", capacity_bytes=capacity_mib * MIB),),
        links=(),
        outside_bytes=likely,
        outside_range_bytes=(least, most),
        allocator=settings,
        compute_capability=80,
    )


class Story:
    """A trace by hand: storages by name, ops that say what they take and give back."""

    def __init__(self) -> None:
        self.ops: list[Op] = []
        self.storages: list[Storage] = []
        self.events: list[Event] = []
        self.ids: dict[str, int] = {}
        self.steps: list[Step] = []

    def there(self, name: str, size_mib: int, category: Category) -> None:
        """Take a storage now."""
        self.ids[name] = len(self.storages)
        self.storages.append(Storage(size_bytes=size_mib * MIB, category=category, dtype="float32"))
        self.events.append(Event(len(self.ops) - 1, self.ids[name], size_mib * MIB))

    def gone(self, *names: str) -> None:
        for name in names:
            storage = self.ids[name]
            self.events.append(Event(len(self.ops) - 1, storage, -self.storages[storage].size_bytes))

    def op(self, name: str, module: str = "", phase: Phase = "forward", reads: str = "", writes: str = "") -> None:
        """An op; what it takes and gives back is said after it."""
        of = [tuple(self.ids[each] for each in names.split()) for names in (reads, writes)]
        self.ops.append(Op(name=name, module=module, phase=phase, reads=of[0], writes=of[1], duration_ns=1))

    def end_step(self) -> None:
        self.steps.append(Step(self.steps[-1].end_op if self.steps else 0, len(self.ops)))

    def trace(self) -> Trace:
        return Trace(
            device="cuda:0",
            torch_version="0",
            ops=tuple(self.ops),
            storages=tuple(self.storages),
            events=tuple(self.events),
            saves=(),
            steps=tuple(self.steps),
        )


def two_layers(workspace_mib: int = 0) -> Trace:
    """A weight of 20 MiB, an activation of 100 MiB that conv1 makes, one of 60 MiB that conv2 makes, and backward."""
    story = Story()
    story.there("weight", 20, "parameter")
    story.op("aten.cudnn_convolution", "Net.conv1", reads="weight")
    story.there("first", 100, "activation")
    story.op("aten.cudnn_convolution", "Net.conv2")
    if workspace_mib:
        story.there("workspace", workspace_mib, "workspace")
    story.there("second", 60, "activation")
    if workspace_mib:
        story.gone("workspace")
    story.op("aten.convolution_backward", "Net.conv2", "backward")
    story.gone("second")
    story.op("aten._foreach_add_", "", "optimizer")
    story.gone("first")
    story.end_step()
    return story.trace()


def test_the_peaks_are_those_of_the_allocator_and_the_device_has_what_lies_outside_it_on_top() -> None:
    answer = estimate(two_layers(), gpu(1000, outside=(300, 500, 900)))

    # 20 + 100 + 60 MiB, each a segment of its own size as all are of 10 MiB and more
    assert answer.peak_allocated == Interval(180 * MIB, 180 * MIB, 180 * MIB)
    assert answer.peak_reserved == Interval(180 * MIB, 180 * MIB, 180 * MIB)
    assert answer.peak_device == Interval(480 * MIB, 680 * MIB, 1080 * MIB)
    assert (answer.peak_allocated_bytes, answer.peak_reserved_bytes, answer.peak_device_bytes) == (
        180 * MIB,
        180 * MIB,
        680 * MIB,
    )
    # 680 of 1000 MiB fit; with the high end, 1080 MiB, it would not
    assert (answer.fits, answer.sure, answer.retries) == (True, False, 0)
    assert (answer.needed_bytes, answer.free_bytes) == (680 * MIB, 320 * MIB)


def test_a_verdict_that_both_ends_of_the_intervals_share_is_sure() -> None:
    outside = (300, 500, 900)

    assert estimate(two_layers(), gpu(1080, outside=outside)).sure
    # 460 MiB are less than the 480 of the low end
    answer = estimate(two_layers(), gpu(460, outside=outside))
    assert (answer.fits, answer.sure) == (False, True)
    # 500 MiB lie between the low end and the likely figure
    answer = estimate(two_layers(), gpu(500, outside=outside))
    assert (answer.fits, answer.sure) == (False, False)


def test_where_it_does_not_fit_the_answer_has_what_is_missing_and_the_op_that_fails() -> None:
    answer = estimate(two_layers(), gpu(150))

    # the third block, 60 MiB, finds 150 - 120
    assert not answer.fits
    assert answer.failure is not None
    assert moment_label(answer.failure) == "step 1, forward, aten.cudnn_convolution in Net.conv2 (op 2 of 4)"
    assert answer.free_bytes == -30 * MIB
    # what happened until then
    assert answer.peak_reserved_within_bytes == 120 * MIB


def test_a_training_that_needs_its_cache_emptied_fits_with_retries() -> None:
    # given 40 MiB that are freed before 60 MiB are taken: 100 MiB with room, but 60 at a time
    story = Story()
    story.op("aten.mm", "Net.a")
    story.there("a", 40, "temporary")
    story.gone("a")
    story.op("aten.mm", "Net.b")
    story.there("b", 60, "temporary")
    story.gone("b")
    story.end_step()

    answer = estimate(story.trace(), gpu(70))

    assert (answer.fits, answer.retries) == (True, 1)
    assert (answer.peak_reserved_bytes, answer.peak_reserved_within_bytes) == (100 * MIB, 60 * MIB)
    assert answer.needed_bytes == 60 * MIB
    roomy = estimate(story.trace(), gpu(100))
    assert (roomy.fits, roomy.retries) == (True, 0)


def test_what_is_needed_is_on_the_side_of_the_verdict() -> None:
    story = Story()
    story.op("aten.mm")
    story.there("a", 1001, "temporary")
    story.gone("a")
    story.there("b", 1003, "temporary")
    story.end_step()
    trace = story.trace()

    # the bisection stops at 1/256, about 4 MiB: whatever it ends at, a capacity that fits is not less than the need
    for capacity_mib in range(1000, 1010):
        answer = estimate(trace, gpu(capacity_mib))
        assert answer.fits == (answer.needed_bytes <= capacity_mib * MIB) == (capacity_mib >= 1004)


def test_a_convolution_workspace_is_an_interval_from_none_to_twice_its_size() -> None:
    trace = two_layers(workspace_mib=30)
    assert conv_workspaces(trace) == {2}

    answer = estimate(trace, gpu(1000))

    # as modelled 20 + 100 + 30 + 60; without 180; doubled 240 MiB
    assert answer.peak_allocated == Interval(180 * MIB, 210 * MIB, 240 * MIB)
    assert answer.peak_device == answer.peak_reserved == Interval(180 * MIB, 210 * MIB, 240 * MIB)


def test_a_workspace_with_an_interval_of_its_own_is_taken_from_its_least_to_its_most_bytes() -> None:
    own = Workspace(storage=2, least_bytes=10 * MIB, most_bytes=500 * MIB)
    trace = replace(two_layers(workspace_mib=30), workspaces=(own,))

    answer = estimate(trace, gpu(1000))

    # 20 + 100 + 60 MiB, and a workspace of 10, 30 or 500
    assert answer.peak_allocated == Interval(190 * MIB, 210 * MIB, 680 * MIB)
    # 210 MiB fit into 600, 680 do not: the convolution runs with less then
    assert estimate(trace, gpu(600)).fits
    assert estimate(trace, gpu(600)).sure


def test_an_emptied_cache_is_not_held_where_the_next_allocation_comes() -> None:
    story = Story()
    story.op("aten.mm")
    story.there("a", 40, "temporary")
    story.gone("a")
    story.there("b", 60, "temporary")
    story.gone("b")
    story.end_step()
    trace = story.trace()

    # 40 MiB are in the cache when 60 come; emptied before the third event, they are not
    assert estimate(trace, gpu(1000)).peak_reserved_bytes == 100 * MIB
    assert estimate(replace(trace, empties=(2,)), gpu(1000)).peak_reserved_bytes == 60 * MIB
    # of another stream, it is not for them
    assert estimate(replace(trace, streams=(OnStream(0, 1),)), gpu(1000)).peak_reserved_bytes == 100 * MIB
    # the CPU's allocator has no cache
    exact = estimate(replace(trace, empties=(2,)), gpu(1000, settings="exact"))
    assert exact.peak_reserved_bytes == 60 * MIB


def test_a_workspace_that_stays_is_no_interval() -> None:
    story = Story()
    story.op("aten.mm", "Net.a")
    story.there("cublas", 8, "workspace")
    story.end_step()

    assert conv_workspaces(story.trace()) == frozenset()


def test_what_is_held_at_the_peak_is_told_by_category_and_by_module() -> None:
    answer = estimate(two_layers(), gpu(1000))

    assert answer.categories == (("activation", 160 * MIB), ("parameter", 20 * MIB))
    # the weight belongs to the module that reads it first
    assert answer.modules == (ModuleShare("Net.conv1", 1, 120 * MIB), ModuleShare("Net.conv2", 1, 60 * MIB))
    assert (answer.other_modules_bytes, answer.rounding_bytes) == (0, 0)
    assert moment_label(answer.peak) == "step 1, forward, aten.cudnn_convolution in Net.conv2 (op 2 of 4)"


def test_repeated_blocks_are_one_row_and_ten_rows_are_shown() -> None:
    story = Story()
    for block in range(3):
        story.op("aten.mm", f"Net.h.{block}.mlp")
        story.there(f"h{block}", 10, "activation")
    for layer in range(12):
        story.op("aten.mm", f"Net.{layer}")
        story.there(str(layer), 1, "activation")
    story.end_step()

    answer = estimate(story.trace(), gpu(1000))

    assert answer.modules[0] == ModuleShare("Net.h.*.mlp", 3, 30 * MIB)
    # 9 of the 12 single layers are shown
    assert len(answer.modules) == 10
    assert answer.other_modules_bytes == 3 * MIB


def test_the_own_number_of_a_module_stays() -> None:
    assert block_name("VGG.features.3") == "VGG.features.3"
    assert block_name("GPT.h.11.mlp.proj") == "GPT.h.*.mlp.proj"
    assert block_name("GPT.h.11", {"GPT.h", "GPT.h.11"}) == "GPT.h.*"
    assert block_name("") == ""


def test_rounding_is_what_blocks_have_more_than_was_asked_for() -> None:
    story = Story()
    story.there("a", 11, "parameter")
    story.op("aten.mm")
    story.end_step()

    # 11 MiB get a segment of 12 MiB, of which 1 MiB is too small to split off
    assert estimate(story.trace(), gpu(100)).rounding_bytes == MIB


def test_gradients_and_optimizer_state_belong_to_the_module_of_their_parameter() -> None:
    # given AdamW on one weight: the gradient is made outside any module, the state by zeros_like
    story = Story()
    story.there("w1", 20, "parameter")
    story.there("w2", 30, "parameter")
    story.op("aten.mm", "Net.one", reads="w1")
    story.op("aten.mm", "Net.two", reads="w2")
    story.op("aten.mm", "", "backward")
    story.there("g2", 30, "gradient")
    story.op("aten.mm", "", "backward")
    story.there("g1", 20, "gradient")
    for number in (1, 2):
        story.op("aten.zeros_like", "", "optimizer", reads=f"w{number}")
        story.there(f"m{number}", 10 * number + 10, "optimizer_state")
    story.op("aten._foreach_lerp_", "", "optimizer", reads="m1 m2 g1 g2", writes="m1 m2")
    story.op("aten._foreach_addcdiv_", "", "optimizer", reads="w1 w2 m1 m2", writes="w1 w2")
    story.end_step()

    answer = estimate(story.trace(), gpu(1000))

    # 3 x 20 MiB and 3 x 30 MiB
    assert answer.modules == (ModuleShare("Net.two", 1, 90 * MIB), ModuleShare("Net.one", 1, 60 * MIB))


def test_what_belongs_to_no_module_is_named_by_the_line_that_made_it() -> None:
    story = Story()
    story.op("aten.mm", "Net.one")
    story.there("a", 30, "activation")
    story.op("aten.mm")
    story.there("b", 20, "activation")
    story.op("aten.mm")
    story.there("c", 5, "activation")
    story.op("aten.mm")
    story.there("d", 1, "activation")
    story.end_step()
    lines = ("train.py:4 in Net.forward", "train.py:9 in attention")

    answer = estimate(replace(story.trace(), source_lines=lines, op_source_lines=(0, 1, 1, None)), gpu(1000))

    # 20 + 5 MiB of one line; the line of what a module made is not shown
    assert answer.modules == (
        ModuleShare("Net.one", 1, 30 * MIB),
        ModuleShare("", 1, 25 * MIB, "train.py:9 in attention"),
        ModuleShare("", 1, MIB),
    )


def test_on_a_machine_whose_allocator_is_exact_reserved_is_allocated() -> None:
    trace = two_layers()
    answer = estimate(trace, gpu(180, settings="exact"))

    assert (answer.fits, answer.peak_reserved_bytes, answer.needed_bytes) == (True, 180 * MIB, 180 * MIB)
    answer = estimate(trace, gpu(179, settings="exact"))
    assert not answer.fits
    assert answer.failure is not None
    assert answer.failure.module == "Net.conv2"
    # the 60 MiB that do not fit are not taken
    assert answer.peak_reserved_within_bytes == 120 * MIB


def test_a_device_smaller_than_what_lies_outside_the_allocator_fits_nothing() -> None:
    answer = estimate(two_layers(), gpu(100, outside=(400, 400, 400)))

    assert (answer.fits, answer.sure) == (False, True)
    assert answer.free_bytes == (100 - 580) * MIB


def test_a_trace_without_allocations_needs_nothing() -> None:
    story = Story()
    story.op("aten.mm")
    story.end_step()

    answer = estimate(story.trace(), gpu(1))

    assert (answer.fits, answer.peak_device_bytes, answer.needed_bytes, answer.categories) == (True, 0, 0, ())
    assert moment_label(answer.peak) == "before the first op"


def test_places_outside_the_steps_are_said_to_be_so() -> None:
    trace = replace(two_layers(), steps=(Step(2, 4),))

    peak = estimate(trace, gpu(1000)).peak

    assert (peak.step, peak.op, peak.op_of_step, peak.ops_in_step) == (0, 1, 0, 0)
    assert moment_label(peak) == "outside the recorded steps, forward, aten.cudnn_convolution in Net.conv2"


def test_settings_of_the_allocator_count() -> None:
    # given 12 MiB: a segment of its own; with expandable segments whole pages of 20 MiB
    story = Story()
    story.op("aten.mm")
    story.there("a", 12, "parameter")
    story.end_step()

    assert estimate(story.trace(), gpu(100)).peak_reserved_bytes == 12 * MIB
    expandable = estimate(story.trace(), gpu(100, settings="expandable_segments:True"))
    assert expandable.peak_reserved_bytes == 20 * MIB


@pytest.mark.parametrize("capacity_mib", [100, 179, 180, 500])
def test_fits_is_that_nothing_is_missing(capacity_mib: int) -> None:
    answer: Estimate = estimate(two_layers(), gpu(capacity_mib))

    assert answer.fits == (answer.free_bytes >= 0) == (capacity_mib >= 180) == (answer.failure is None)
