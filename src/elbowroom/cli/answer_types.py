"""What the verbs answer with `--json`: one record for each kind of answer.

output.py writes them. tools/schemas.py makes a JSON Schema and the tables of docs/json.md from the fields, their types
and the words below. `SCHEMAS` has the name and the version that each object begins with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from elbowroom.answers.moved_bytes import MovedBytes
from elbowroom.hardware.gpu_table import Figure
from elbowroom.hardware.gpus import FigureSource
from elbowroom.machine import Link, Tier
from elbowroom.run_moment import RunMoment
from elbowroom.simulate.energy import Energy
from elbowroom.step.plan_summary import StorageShare
from elbowroom.timeline import Source
from elbowroom.trace import Category, Remark

FileKind = Literal["trace", "plan", "report", "curve"]

if TYPE_CHECKING:
    from elbowroom.answers.estimate import Moment
    from elbowroom.answers.exchange_memory import ExchangeMemory
    from elbowroom.answers.exchanges import Collectives
    from elbowroom.answers.largest import Failed, Probe
    from elbowroom.answers.link_study import StudiedLink
    from elbowroom.answers.memory_by_module import ModuleShare
    from elbowroom.answers.pareto import Pareto
    from elbowroom.answers.study_points import StudyPoint
    from elbowroom.report.rank_table import RankTimes
    from elbowroom.report.run_comparison import RunFigure
    from elbowroom.run.account import MeasuredEnergy, StepFigures
    from elbowroom.run.kind_totals import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesRange:
    """Bytes that may not be known exactly; the three are equal where they are.

    Attributes:
        low: the least bytes that are reckoned with.
        likely: the bytes that are expected.
        high: the most bytes that are reckoned with.
    """

    low: int
    likely: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFigures:
    """What a plan that was found quickly does for a script that does not fit. Times are simulated.

    Attributes:
        fits: whether the script trains there under the plan.
        means: what the plan may move: swap, state, gradient, and parameter if nothing less was enough.
        slowdown: how many times as long a step takes as with everything kept; null without a plan that fits.
        step_ns: simulated time of a step under the plan; null without one that fits.
        kept_step_ns: that time with everything kept, with room for it; null without a plan that fits.
        host_bytes: the most bytes on the host; null without a plan that fits.
        disk_bytes: the most bytes on the disk; null without a plan that fits.
        needed_bytes: device memory that the plan needs; without one, the least that was found to be enough.
    """

    fits: bool
    means: tuple[str, ...]
    slowdown: float | None
    step_ns: int | None
    kept_step_ns: int | None
    host_bytes: int | None
    disk_bytes: int | None
    needed_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineEstimate:
    """What a script needs on one GPU.

    Attributes:
        machine: name of the GPU.
        rank: the process of a job of many that it is the GPU of; null without --ranks.
        trace_id: names the trace that the figures come from.
        fits: whether the script runs in the GPU's memory.
        sure: whether both ends of the ranges give the same verdict.
        capacity_bytes: memory of the GPU.
        needed_bytes: the least memory in which no allocation fails.
        free_bytes: capacity less need; negative by what is missing.
        retries: how often the allocator empties its cache to fit.
        outside_bytes: memory outside torch's allocator: context, libraries, kernels.
        peak_allocated_bytes: the most in live blocks, as torch.cuda.max_memory_allocated has it.
        peak_reserved_bytes: the most that the allocator holds, with room for everything.
        peak_reserved_within_bytes: the same within the capacity; up to the failure where the script does not fit.
        peak_device_bytes: reserved and outside the allocator together, as nvidia-smi shows it.
        steps: training steps that were looked at.
        peak: where the allocated peak is.
        failure: where the first allocation fails; null where the script fits.
        categories: bytes at the allocated peak by category, the largest first.
        modules: bytes at the allocated peak by module, the ten largest first.
        other_modules_bytes: the same of all further modules.
        rounding_bytes: what the allocator's rounding adds to them.
        planned: how a script that does not fit would train there under a plan that was found quickly; null where it
            fits, and where no such plan was made.
        collectives: what the last step sends to other processes and receives, by kind, the most bytes first.
        interconnect: how the ranks reach each other; null where nothing is exchanged.
        step_ns: simulated time of the last step, with its collectives; null where nothing is exchanged.
        wait_ns: the part of it in which compute waits for collectives; null where nothing is exchanged.
        nccl: NCCL's own memory, which is in no other figure; null where nothing is exchanged.
        energy: simulated energy of the last step with everything kept; null where the board's power is not known.
        remarks: what the capture did not know, assumed or kept away.
    """

    machine: str
    rank: int | None
    trace_id: str
    fits: bool
    sure: bool
    capacity_bytes: int
    needed_bytes: int
    free_bytes: int
    retries: int
    outside_bytes: BytesRange
    peak_allocated_bytes: BytesRange
    peak_reserved_bytes: BytesRange
    peak_reserved_within_bytes: int
    peak_device_bytes: BytesRange
    steps: int
    peak: Moment
    failure: Moment | None
    categories: dict[Category, int]
    modules: tuple[ModuleShare, ...]
    other_modules_bytes: int
    rounding_bytes: int
    planned: PlannedFigures | None
    collectives: tuple[Collectives, ...]
    interconnect: str | None
    step_ns: int | None
    wait_ns: int | None
    nccl: ExchangeMemory | None
    energy: Energy | None
    remarks: tuple[Remark, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer:
    """What `elbowroom estimate --json` prints.

    Attributes:
        script: what was estimated, as it was given.
        fits: whether it fits every GPU that was named; the exit code is 0 then, else 1.
        ranks: processes of the job that was asked for with --ranks; null without.
        local_ranks: processes on each computer of that job; null without --ranks.
        estimates: one for each GPU, in the order they were named, and for each rank of it.
    """

    script: str
    fits: bool
    ranks: int | None
    local_ranks: int | None
    estimates: tuple[MachineEstimate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedValue:
    """What a plan makes of one value.

    Attributes:
        fits: whether a plan within the capacity is fast enough.
        needed_bytes: device memory for the slowdown that is allowed; rough unless it is near the capacity.
        kept_step_ns: simulated time of the step with everything kept.
        step_ns: the same with the plan for the whole capacity; null where there is no such plan.
        step_ns_per_value: nanoseconds of the planned step divided by the value; null where there is no such plan.
        slowdown: planned step divided by the step with everything kept; null where there is no such plan.
    """

    fits: bool
    needed_bytes: int
    kept_step_ns: int
    step_ns: int | None
    step_ns_per_value: float | None
    slowdown: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedValue:
    """What was found of one value.

    Attributes:
        value: value of what is varied.
        fits: whether the script fits with it, everything kept.
        sure: whether both ends of the ranges give the same verdict.
        needed_bytes: the least memory in which no allocation fails.
        peak_allocated_bytes: the most in live blocks.
        peak_reserved_bytes: the most that the allocator holds, with room for everything.
        retries: how often the allocator empties its cache to fit.
        planned: what a plan makes of it; null without --within.
    """

    value: int
    fits: bool
    sure: bool
    needed_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    retries: int
    planned: PlannedValue | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestAnswer:
    """What `elbowroom largest --json` prints.

    Attributes:
        script: what was searched, as it was given.
        machine: name of the GPU.
        kind: what is varied: an argument, an environment variable or a constant of the script.
        name: name of what is varied.
        capacity_bytes: memory of the GPU.
        largest: the largest value that fits, and its need; null where not even the smallest one does.
        next: the smallest value that is known not to fit, and its need; null where none was found.
        failed: the smallest value with which the script fails; null where it does not.
        too_slow: the largest value whose plan fits and is too slow, where a larger value is not; null without one.
        fast_from: the least value that is known to be fast enough, where smaller ones are not; null without one.
        changes_anything: false where the value changes nothing in the training; the exit code is 2 then.
        same_from: the value from which on nothing changes any more; null where each changes something.
        early: what was not tried, where the search ended early; "" where it did not.
        captures: number of captures of the script.
        within: the slowdown that --within allows; null without it.
        probes: every value that was looked at, in that order.
    """

    script: str
    machine: str
    kind: Literal["arg", "env", "const"]
    name: str
    capacity_bytes: int
    largest: Probe | None
    next: Probe | None
    failed: Failed | None
    too_slow: Probe | None
    fast_from: Probe | None
    changes_anything: bool
    same_from: int | None
    early: str
    captures: int
    within: float | None
    probes: tuple[ProbedValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineFigures:
    """One step in figures.

    Attributes:
        peak_allocated_bytes: the most in live blocks on the device.
        peak_reserved_bytes: the most that the allocator holds.
        peak_device_bytes: reserved peak and what lies outside the allocator.
        step_ns: time of the step.
        stall_ns: part of it in which compute waits for copies.
        utilisation: part of the step in which compute is busy, from 0 to 1.
        swapped_out_bytes: what leaves the device.
        swapped_back_bytes: what comes back.
        at_peak: bytes on the device at the allocated peak by category, the largest first.
        energy: simulated energy of the step; null for a measured step, and where the board's power is not known.
    """

    peak_allocated_bytes: int
    peak_reserved_bytes: int
    peak_device_bytes: int
    step_ns: int
    stall_ns: int
    utilisation: float
    swapped_out_bytes: int
    swapped_back_bytes: int
    at_peak: dict[Category, int]
    energy: Energy | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundFigures:
    """How good a plan is on one machine.

    Attributes:
        machine: name of the machine.
        step_ns: simulated time of the step under the plan.
        lower_bound_ns: no plan of the same means takes less.
        gap: how much longer the step takes, as a share of the bound; null where the bound is 0.
    """

    machine: str
    step_ns: int
    lower_bound_ns: int
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLayout:
    """What was found of one layout.

    Attributes:
        values: what it is, by the names of --vary; what is searched has the largest value that fits, else the least.
        ranks: processes of the job, each with a GPU.
        fits: whether each rank that was looked at fits, everything kept.
        sure: whether both ends of the ranges give the same verdict.
        needed_bytes: the least memory in which no allocation fails; null where the script fails.
        peak_allocated_bytes: the most in live blocks; null where the script fails.
        peak_reserved_bytes: the most that the allocator holds, with room for everything; null where the script fails.
        step_ns: simulated time of the slowest step of the ranks that were looked at; null where the script fails.
        work_flops: floating point operations of all ranks in a step; 0 if none is known.
        equal_work_ns: simulated time for the work of a step of the first layout that fits, else of the first one; null
            where the script fails.
        equal_work_gpu_ns: that time summed over the GPUs; null where the script fails.
        on_front: whether it fits, and no other layout that fits beats it in memory, time for equal work and GPUs.
        problem: why the script fails; empty if it does not.
    """

    values: dict[str, int]
    ranks: int
    fits: bool
    sure: bool
    needed_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    step_ns: int | None
    work_flops: int
    equal_work_ns: int | None
    equal_work_gpu_ns: int | None
    on_front: bool
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsAnswer:
    """What `elbowroom largest --json` prints for layouts.

    Attributes:
        script: what was looked at, as it was given.
        machine: name of the GPU.
        capacity_bytes: memory of the GPU.
        cheapest: number in `layouts`, from 0, of the fastest one that fits on the fewest GPUs; null where none fits.
        least_gpu_time: number of the one that fits and does equal work in the least time, summed over its GPUs; null
            where none fits.
        left_out: number of layouts whose degrees do not divide their ranks.
        early: what was not looked at, if the search ended early; empty if it did not.
        layouts: the layouts that were looked at.
    """

    script: str
    machine: str
    capacity_bytes: int
    cheapest: int | None
    least_gpu_time: int | None
    left_out: int
    early: str
    layouts: tuple[TriedLayout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyAnswer:
    """What `elbowroom study budget|batch|resolution|gpu --json` prints.

    Attributes:
        kind: what was asked.
        script: what was looked at, as it was given.
        machine: name of the GPU; null where GPUs are compared.
        varied: what differs between the points.
        answer: the answer in sentences, the one that was asked for first.
        own_bytes: for "budget": the budget that the GPU itself has; null for other studies.
        more_bytes: for "budget": the budget with the memory of --more; null without that.
        points: the cases by rising value; GPUs by rising memory.
        not_looked: GPUs of the list that the answer does not depend on.
        early: what was not looked at, if the study ended early; empty if it did not.
    """

    kind: Literal["budget", "batch", "resolution", "gpu"]
    script: str
    machine: str | None
    varied: str
    answer: tuple[str, ...]
    own_bytes: int | None
    more_bytes: int | None
    points: tuple[StudyPoint, ...]
    not_looked: tuple[str, ...]
    early: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkStudyAnswer:
    """What `elbowroom study links --json` prints.

    Attributes:
        script: what was looked at, as it was given.
        slowdown: the factor on the step time that the least budgets allow.
        answer: the answer in sentences.
        links: the GPUs, in the order in which they were named.
        early: what was not looked at, if the study ended early; empty if it did not.
    """

    script: str
    slowdown: float
    answer: tuple[str, ...]
    links: tuple[StudiedLink, ...]
    early: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportAnswer:
    """What `elbowroom report --json` prints; what no file says is null.

    Attributes:
        trace_id: names the trace; null without one.
        budget_bytes: budget of the plan; null without one.
        planner: which planner made it; null without a plan.
        swaps: how many storages are swapped; null without a plan.
        recomputes: how many recipes rebuild storages; null without a plan.
        algorithms: how many ops run with another algorithm; null without a plan.
        decided: what the plan does with storages, in counts and bytes; null without plan and trace.
        bound: how good the plan is; null where nothing was proven.
        everything_kept: the step with everything kept, simulated; null without trace and machine.
        simulated: the step under the plan, simulated; null without such a timeline.
        measured: the step as it was measured; null without such a timeline.
        pareto: budgets against step times; null without such a file.
    """

    trace_id: str | None
    budget_bytes: int | None
    planner: str | None
    swaps: int | None
    recomputes: int | None
    algorithms: int | None
    decided: tuple[StorageShare, ...] | None
    bound: BoundFigures | None
    everything_kept: TimelineFigures | None
    simulated: TimelineFigures | None
    measured: TimelineFigures | None
    pareto: Pareto | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A file that was written.

    Attributes:
        what: what is in the file.
        file: its path, as it was given.
    """

    what: FileKind
    file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksAnswer:
    """What `elbowroom report --json` prints for timelines or runs of several ranks, and what such a run merges.

    Attributes:
        source: whether they are simulated or measured.
        waited_for: the file of the rank that the others wait for; null where no rank does by a clear part of a step.
        ranks: a rank for each file, in the order in which they were given.
    """

    source: Source
    waited_for: str | None
    ranks: tuple[RankTimes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonAnswer:
    """What `elbowroom report --json` prints for two steps: of two runs, two plans or two traces.

    Attributes:
        source: whether both steps are simulated or measured.
        names: what each step is called: its file.
        answer: how they differ, in sentences.
        budgets_bytes: budget of each plan; null without one.
        steps: the figures of each step.
    """

    source: Source
    names: tuple[str, ...]
    answer: tuple[str, ...]
    budgets_bytes: tuple[int | None, ...]
    steps: tuple[TimelineFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPairAnswer:
    """What `elbowroom report --json` prints for two files of `elbowroom run --json`.

    Attributes:
        names: what each run is called: its file.
        answer: how they differ, in sentences.
        figures: what both measured; times and moved bytes of a step are medians over its steps.
    """

    names: tuple[str, str]
    answer: tuple[str, ...]
    figures: tuple[RunFigure, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer:
    """What `elbowroom plan --json` prints.

    Attributes:
        script: what was planned, as it was given.
        feasible: whether a plan meets the budget; the exit code is 0 then, else 1.
        machine: name of the GPU or computer.
        trace_id: names the trace that was planned.
        budget_bytes: what the device may hold.
        least_feasible_bytes: the least budget that can be met; null where the given one is.
        message: why no plan meets the budget; null where one does.
        planner: which planner was asked.
        min_size_bytes: smaller storages are kept.
        swaps: how many storages are swapped; null where no plan meets the budget.
        recomputes: how many recipes rebuild storages; null where no plan meets the budget.
        algorithms: how many ops run with another algorithm; null where no plan meets the budget.
        decided: what the plan does with storages, in counts and bytes; null where no plan meets the budget.
        bound: how good the plan is; null where nothing was proven.
        everything_kept: the step with everything kept, simulated.
        simulated: the step under the plan, simulated; null where no plan meets the budget.
        moved: what the step moves under the plan, by kind of storage and by link; null where no plan meets the budget.
        early: what was not tried, where the search ended early; "" where it did not.
        files: what was written, in that order.
    """

    script: str
    feasible: bool
    machine: str
    trace_id: str
    budget_bytes: int
    least_feasible_bytes: int | None
    message: str | None
    planner: str
    min_size_bytes: int
    swaps: int | None
    recomputes: int | None
    algorithms: int | None
    decided: tuple[StorageShare, ...] | None
    bound: BoundFigures | None
    everything_kept: TimelineFigures
    simulated: TimelineFigures | None
    moved: tuple[MovedBytes, ...] | None
    early: str
    files: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer:
    """What `elbowroom run --json FILE` writes when the script has ended.

    Attributes:
        script: the script or module that ran.
        exit_code: exit code of the command: the script's, or 3 if that is 0 and the budget was not held.
        budget_bytes: what the device may hold.
        min_size_bytes: smaller storages are kept.
        keep_all_bytes: what keeping everything takes; 0 where no step was recorded.
        planned_peak_bytes: what the plans hold at most; 0 where there was none.
        measured_peak_bytes: what was held at most, of what the budget counts; 0 where nothing was measured.
        over_budget_bytes: by how much that is over the budget; 0 where it is less than a hundredth of it.
        swaps: how many storages the last plan swaps.
        recomputes: how many recipes of the last plan rebuild storages.
        simulated_peak_allocated_bytes: peak of the last plan, simulated; null if there was none.
        measured_peak_allocated_bytes: the most that recorded steps held.
        measured_wait_ns: time of the last measured step in which compute waited for collectives of gloo; null if none
            was measured.
        energy: what the computer's own counter measured; null where none can be read.
        simulated_energy: energy of a step of the last plan, simulated; null without one, and where the power of the
            board is not known.
        kinds: kinds of steps, those that need most first.
        steps: the steps in their order; of a long training the last few thousand.
    """

    script: str
    exit_code: int
    budget_bytes: int
    min_size_bytes: int
    keep_all_bytes: int
    planned_peak_bytes: int
    measured_peak_bytes: int
    over_budget_bytes: int
    swaps: int
    recomputes: int
    simulated_peak_allocated_bytes: int | None
    measured_peak_allocated_bytes: int
    measured_wait_ns: int | None
    energy: MeasuredEnergy | None
    simulated_energy: Energy | None
    kinds: tuple[Kind, ...]
    steps: tuple[StepFigures, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAnswer:
    """What `elbowroom machine --json` prints.

    Attributes:
        name: "here", or the name of a GPU.
        title: the GPU as torch calls it; null for this computer.
        measured: whether links were measured now; false where rates are assumed or usual ones.
        tiers: where bytes can be, the fastest first; the first is the device.
        links: the ways between neighbouring tiers.
        memory_bytes_per_s: bandwidth of the device's memory; 0 where it is not known.
        compute_capability: 10 times major plus minor of an NVIDIA GPU, such as 89; 0 without one.
        multiprocessors: streaming multiprocessors; 0 where they are not known.
        rates: dense operations a second by dtype, as far as known.
        outside_bytes: device memory taken outside torch's allocator.
        outside_range_bytes: least and most of that; two zeros where it is known.
        allocator: settings as in PYTORCH_ALLOC_CONF; "exact" where each block is one request, as on a CPU.
        figures: each figure of the GPU, by name, with its source; null for this computer. A figure is null where it
            is not known.
    """

    name: str
    title: str | None
    measured: bool
    tiers: tuple[Tier, ...]
    links: tuple[Link, ...]
    memory_bytes_per_s: int
    compute_capability: int
    multiprocessors: int
    rates: dict[str, int]
    outside_bytes: int
    outside_range_bytes: tuple[int, int]
    allocator: str
    figures: dict[str, Figure | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGpu:
    """One GPU of the list.

    Attributes:
        name: by which it is asked for.
        title: as torch calls it.
        figures: each of its figures, by name, with its source; null where it is not known.
    """

    name: str
    title: str
    figures: dict[str, Figure | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineListAnswer:
    """What `elbowroom machine --list --json` prints.

    Attributes:
        gpus: all GPUs that are known.
        sources: what the figures come from, by the key that they name.
    """

    gpus: tuple[ListedGpu, ...]
    sources: dict[str, FigureSource]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptPlan:
    """One plan that a run has kept.

    Attributes:
        name: name of its file.
        budget_bytes: the budget that it was made for.
        size_bytes: bytes of the file.
        used_s: when it was made or used last, in seconds since 1970.
    """

    name: str
    budget_bytes: int
    size_bytes: int
    used_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheAnswer:
    """What `elbowroom cache --json` prints.

    Attributes:
        folder: folder of the cache.
        deleted: number of plans and captures that were deleted.
        plans: what is kept, the one used last first.
        captures: number of captures of scripts that are kept.
        captures_bytes: bytes of their files.
    """

    folder: str
    deleted: int
    plans: tuple[KeptPlan, ...]
    captures: int
    captures_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun(RunMoment):
    """One run that goes on.

    Attributes:
        process: number of its process.
        script: the script, as it was named.
        totals: sums over all steps: stall_ns, swapped_out_bytes, swapped_back_bytes, recomputed_bytes, mismatches.
    """

    process: int
    script: str
    totals: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchAnswer:
    """What `elbowroom watch --json` prints.

    Attributes:
        runs: this user's runs here that were started with --live or --live-port, the first one first.
    """

    runs: tuple[WatchedRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFigures:
    """One training of the demo.

    Attributes:
        failed: whether it ended before it was through.
        peak_allocated_bytes: the most in live storages; null where the trial did not get to it.
        peak_rss_bytes: the most resident memory of the process.
        step_ns: median time of a step; null where the trial did not get to it.
        losses: loss of each step that ended.
        swapped_out_bytes: what leaves the device in a step; null where nothing is swapped.
        swapped_back_bytes: what comes back in a step; null where nothing is swapped.
        stall_ns: time a step waits for copies; null where nothing is swapped.
        simulated_peak_allocated_bytes: the peak as it was simulated; null where nothing was.
    """

    failed: bool
    peak_allocated_bytes: int | None
    peak_rss_bytes: int
    step_ns: int | None
    losses: tuple[float, ...]
    swapped_out_bytes: int | None
    swapped_back_bytes: int | None
    stall_ns: int | None
    simulated_peak_allocated_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAnswer:
    """What `elbowroom demo --json` prints.

    Attributes:
        limit_bytes: the hard limit of the second and the third training.
        limit_kind: what enforces it.
        bare_bytes: what the process holds before it trains, counted as the limit counts.
        budget_bytes: what elbowroom was given.
        bit_equal: whether losses and weights are equal with and without elbowroom, bit by bit.
        step_ratio: elbowroom's step time divided by plain PyTorch's; null where one of them has none.
        plain: plain PyTorch without a limit.
        limited: plain PyTorch under the limit.
        within: elbowroom under the limit.
    """

    limit_bytes: int
    limit_kind: Literal["memory cgroup v2", "memory cgroup v1", "RLIMIT_DATA"]
    bare_bytes: int
    budget_bytes: int
    bit_equal: bool
    step_ratio: float | None
    plain: TrialFigures
    limited: TrialFigures
    within: TrialFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsAnswer:
    """What `elbowroom demo --weights --json` prints.

    Attributes:
        limit_bytes: the hard limit of all trainings but that of plain PyTorch with the smaller model.
        limit_kind: what enforces it.
        training_bytes: weights, gradients and optimizer states of the model.
        small_training_bytes: the same of the smaller model.
        loss_fell: whether the last losses are lower than the first, with elbowroom.
        bit_equal: whether losses and weights of the smaller model are equal with and without elbowroom, bit by bit.
        limited: plain PyTorch under the limit.
        within: elbowroom under the limit.
        small_plain: plain PyTorch without a limit, with the smaller model.
        small_within: elbowroom under the limit, with the smaller model.
    """

    limit_bytes: int
    limit_kind: Literal["memory cgroup v2", "memory cgroup v1", "RLIMIT_DATA"]
    training_bytes: int
    small_training_bytes: int
    loss_fell: bool
    bit_equal: bool
    limited: TrialFigures
    within: TrialFigures
    small_plain: TrialFigures
    small_within: TrialFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorFigures:
    """What went wrong.

    Attributes:
        type: name of the error, as in elbowroom.errors; "ScriptError" for an error of the script in a run, and
            "UnexpectedError" for one that elbowroom has no name for.
        message: what was given, what is allowed and what to do next.
        of_elbowroom: whether elbowroom failed, and not the script or the call; please report it.
        budget_bytes: the budget that cannot be met; null for other errors.
        least_feasible_bytes: the least that can be met; null for other errors.
    """

    type: str
    message: str
    of_elbowroom: bool
    budget_bytes: int | None
    least_feasible_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """What a verb prints with `--json` in the place of an answer, when it has none.

    Attributes:
        verb: the verb that was run.
        exit_code: exit code of the command.
        error: why there is no answer.
    """

    verb: str
    exit_code: int
    error: ErrorFigures


class Schema(NamedTuple):
    """What an answer begins with.

    Attributes:
        name: of its schema, after "elbowroom.answer.".
        version: rises when a field goes, or changes its name, type, unit or meaning.
    """

    name: str
    version: int


SCHEMAS: Mapping[type, Schema] = {
    EstimateAnswer: Schema("estimate", 1),
    LargestAnswer: Schema("largest", 1),
    LayoutsAnswer: Schema("layouts", 1),
    StudyAnswer: Schema("study", 1),
    LinkStudyAnswer: Schema("study-links", 1),
    PlanAnswer: Schema("plan", 1),
    RunAnswer: Schema("run", 1),
    ReportAnswer: Schema("report", 1),
    ComparisonAnswer: Schema("comparison", 1),
    RunPairAnswer: Schema("run-pair", 1),
    RanksAnswer: Schema("ranks", 1),
    MachineAnswer: Schema("machine", 1),
    MachineListAnswer: Schema("machine-list", 1),
    CacheAnswer: Schema("cache", 1),
    WatchAnswer: Schema("watch", 1),
    DemoAnswer: Schema("demo", 1),
    WeightsAnswer: Schema("demo-weights", 1),
    ErrorAnswer: Schema("error", 1),
}
