"""One training, run plain and run within a budget, and what came out of each."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import elbowroom as er
from elbowroom.planners import Means
from elbowroom.run.room import Room
from elbowroom.timeline import Mode

SEED = 20
MIN_SIZE_BYTES = 1024
STEPS = 5


@dataclass(slots=True, eq=False)
class Training:
    """A training in the making.

    Attributes:
        step: does the step of the given number and returns its loss.
        modules, optimizers, tensors: what it changes.
    """

    step: Callable[[int], Tensor]
    modules: Sequence[Any] = ()
    optimizers: Sequence[torch.optim.Optimizer] = ()
    tensors: Sequence[Tensor] = ()

    def state(self) -> dict[str, Tensor]:
        """Copies of every parameter, buffer, gradient and state of an optimizer."""
        found: dict[str, Tensor] = {}
        for m, module in enumerate(self.modules):
            found.update({f"{m}.{name}": value for name, value in module.state_dict().items()})
            found.update({f"{m}.{name}.grad": p.grad for name, p in module.named_parameters() if p.grad is not None})
        for o, optimizer in enumerate(self.optimizers):
            for p, values in enumerate(optimizer.state.values()):
                found.update({f"optimizer {o}.{p}.{name}": v for name, v in values.items() if isinstance(v, Tensor)})
        for t, tensor in enumerate(self.tensors):
            found[f"tensor {t}"] = tensor
            if tensor.grad is not None:
                found[f"tensor {t}.grad"] = tensor.grad
        return {name: value.detach().clone() for name, value in found.items()}


Setup = Callable[[], Training]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came out of a training."""

    losses: list[Tensor] = field(default_factory=list[Tensor])
    state: dict[str, Tensor] = field(default_factory=dict[str, Tensor])


def finish(training: Training, steps: int, first: int = 0) -> Outcome:
    """Do the steps from `first` on."""
    losses = [training.step(i).detach().clone() for i in range(first, steps)]
    return Outcome(losses, training.state())


def seeded(setup: Setup) -> Training:
    """A training whose random numbers begin anew."""
    torch.manual_seed(SEED)
    return setup()


def train(setup: Setup, steps: int = STEPS) -> Outcome:
    """Without elbowroom."""
    return finish(seeded(setup), steps)


def train_within(
    setup: Setup, steps: int = STEPS, budget: int | Callable[[Setup], int] | None = None, **options: Any
) -> tuple[Outcome, Room]:
    """Within a budget, or what a function says by now; without one it is chosen so that much must be swapped."""
    budget = budget or tight_budget
    limit = budget(setup) if callable(budget) else budget
    gc.collect()
    options.setdefault("min_size", MIN_SIZE_BYTES)
    with er.within(limit, **options) as room:
        outcome = finish(seeded(setup), steps)
    return outcome, room


def captured(setup: Setup, steps: int = 3, *, in_parts: bool = False, machine: str = "here") -> er.Trace:
    """The trace of a training; on this computer everything that is alive now included."""
    gc.collect()

    def counted() -> Callable[[], Tensor]:
        training = seeded(setup)
        numbers = iter(range(steps))
        return lambda: training.step(next(numbers))

    return er.capture(counted, machine, steps=steps, min_size=MIN_SIZE_BYTES, in_parts=in_parts)


def needs(setup: Setup, steps: int = 3, allow: Sequence[Means] = ("swap",)) -> tuple[int, int]:
    """(least feasible, keep-all peak) allocated bytes of a training, everything that is alive now included."""
    trace = captured(setup, steps, in_parts="state" in allow)
    machine = er.Machine.here(device="cpu")
    try:
        planner = "swap_greedy" if allow == ("swap",) else "optimal"
        er.plan(trace, machine, 1, planner, MIN_SIZE_BYTES, allow=allow)
    except er.Infeasible as error:
        return error.least_feasible_bytes, er.simulate(trace, machine).peak_allocated_bytes
    raise AssertionError("a training fits into one byte")


def tight_budget(setup: Setup, share: float = 0.3, steps: int = 3) -> int:
    """A budget between what the training needs at least (share 0) and what it needs when all is kept (share 1)."""
    least, peak = needs(setup, steps)
    assert peak - least >= 8 * MIN_SIZE_BYTES, "this training holds as much at its peak whatever is swapped"
    return least + int(share * (peak - least))


def assert_equal(one: Outcome, other: Outcome) -> None:
    """Every loss, parameter, buffer, gradient and optimizer state is the same, bit for bit."""
    assert len(one.losses) == len(other.losses)
    for i, (mine, theirs) in enumerate(zip(one.losses, other.losses, strict=True)):
        assert same_bits(mine, theirs), f"loss of step {i}: {mine.tolist()} and {theirs.tolist()}"
    assert one.state.keys() == other.state.keys()
    for name, mine in one.state.items():
        assert same_bits(mine, other.state[name]), f"{name} differs"


def same_bits(one: Tensor, other: Tensor) -> bool:
    """As torch.equal, but NaNs are compared by their bits too."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def assert_swapped(room: Room, steps: int = STEPS, *, first: Mode = "observe") -> None:
    """All steps were seen; the first had this mode, the last followed a plan that moved bytes out and back."""
    modes = [step.mode for step in room.steps]
    assert (len(modes), modes[0], modes[-1]) == (steps, first, "plan"), modes
    assert room.steps[-1].swapped_out_bytes > 0
    assert room.steps[-1].swapped_back_bytes > 0
    assert sum(step.mismatches for step in room.steps) == 0


def same_within(
    setup: Setup, steps: int = STEPS, budget: int | Callable[[Setup], int] | None = None, **options: Any
) -> Room:
    """As train_within, beside a plain training; no number differs."""
    plain = train(setup, steps)
    inside, room = train_within(setup, steps, budget, **options)
    assert_equal(inside, plain)
    return room


def assert_same_within(setup: Setup) -> None:
    """A budget in which much must be swapped changes no number."""
    assert_swapped(same_within(setup))


def moved_categories(room: Room) -> set[str]:
    """What the plan of a room swaps."""
    assert room.trace is not None
    assert room.plan is not None
    return {room.trace.storages[swap.storage].category for swap in room.plan.swaps}


def moved_as_planned(room: Room) -> set[str]:
    """As moved_categories, once no step differed from its trace and the last one followed a plan."""
    assert [step.mismatches for step in room.steps] == [0] * len(room.steps)
    assert room.steps[-1].mode == "plan"
    return moved_categories(room)


def assert_follows(room: Room, given: er.Plan) -> None:
    """A room has moved what the plan moves that it was given."""
    assert room.plan is not None
    assert [swap.storage for swap in room.plan.swaps] == [swap.storage for swap in given.swaps]


def mlp(width: int = 64, depth: int = 4) -> nn.Sequential:
    """Linear layers with a ReLU after each."""
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())])


def ordinary(
    model: nn.Module, *inputs: Tensor, loss: Callable[[Tensor], Tensor] | None = None, optimizer: Any = None
) -> Training:
    """Forward, backward, the optimizer (AdamW where none is given) on one fixed batch."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    return by_loss(lambda _: (loss or mean_square)(model(*inputs)), model, optimizer)


def by_loss(loss: Callable[[int], Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> Training:
    """The loss of the step of the given number, backward, the optimizer."""

    def step(number: int) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        found = loss(number)
        found.backward()
        optimizer.step()
        return found.detach()

    return Training(step, [model], [optimizer])


def telling(
    model: nn.Module, batch: Tensor, optimizer: torch.optim.Optimizer, plain: Callable[[Any], Tensor]
) -> Training:
    """One whose losses tell of every gradient too; `plain` makes plain tensors of those that wrap others."""

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = mean_square(model(batch))
        loss.backward()
        gradients = [plain(p.grad).double().square().sum() for p in model.parameters()]
        optimizer.step()
        return torch.cat([plain(loss.detach()).double().flatten(), torch.stack(gradients)])

    return Training(step)


def mean_square(output: Tensor) -> Tensor:
    """A loss of any output."""
    return output.float().square().mean()
