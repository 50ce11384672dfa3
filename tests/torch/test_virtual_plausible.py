"""Values that a network computes on the virtual device: what is assumed of them breaks no script."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.host_values import plausible
from tests.torch.virtual_gpu import H100

WIDE = 2**18
"""Inputs of a layer whose result is not known: its weights alone are 1 MiB for each output."""


def computed(*shape: int) -> torch.Tensor:
    """What a network computes."""
    return nn.Linear(WIDE, shape[-1], device="cuda")(torch.empty(*shape[:-1], WIDE, device="cuda")).detach()


def _sampled_in_range(x: torch.Tensor) -> bool:
    chosen = torch.distributions.Categorical(logits=x).sample()
    return all(0 <= each < x.shape[-1] for each in chosen.flatten().tolist())


def _is_descending(x: torch.Tensor) -> bool:
    found, places = x.topk(3)
    rows = found.tolist()
    chosen = places.flatten(0, -2).tolist()
    return all(row == sorted(row, reverse=True) for row in rows) and all(len({*row}) == 3 for row in chosen)


def _validated(x: torch.Tensor) -> bool:
    distributions = torch.distributions
    mean, scale = x[:, :2], F.softplus(x[:, 2:4])
    made: list[Any] = [
        distributions.Normal(mean, scale),
        distributions.Categorical(torch.softmax(x, -1)),
        distributions.Beta(scale, scale),
        distributions.Bernoulli(torch.sigmoid(x)),
        distributions.MultivariateNormal(mean[0], scale_tril=torch.diag(scale[0])),
        distributions.MultivariateNormal(mean[0], torch.diag(scale[0])),
        distributions.Dirichlet(scale),
        distributions.LogNormal(mean, scale),
    ]
    return all(math.isfinite(each.log_prob(each.sample()).sum().item()) for each in made)


Judged = Callable[[torch.Tensor], bool]

TRUE_OF_RESULTS: dict[str, Judged] = {
    "a loss is positive and finite": lambda x: 0 < x.pow(2).mean().item() < 1e3,
    "its logarithms are numbers": lambda x: math.isfinite(math.log10(1 / x.pow(2).mean().item())),
    "nothing is NaN": lambda x: not bool(torch.isnan(x).any()),
    "everything is finite": lambda x: bool(torch.isfinite(x).all()),
    "all are true": lambda x: bool(torch.ops.aten._is_all_true(torch.isfinite(x))),
    "no gradient overflows": lambda x: float(torch.isinf(x).sum()) == 0.0,
    "it is close to itself": lambda x: torch.allclose(x, x.clone()) and torch.equal(x, x),
    "probabilities sum to one": lambda x: abs(float(torch.softmax(x, -1)[0].sum()) - 1) < 1e-5,
    "on the host too": lambda x: abs(float(torch.softmax(x, -1).detach().cpu().numpy()[0].sum()) - 1) < 1e-5,
    "a class is in range": lambda x: all(0 <= each < x.shape[-1] for each in x.argmax(-1).tolist()),
    "a sample is in range": _sampled_in_range,
    "the best are in order": _is_descending,
    "an accuracy is a share": lambda x: 0 <= int((x.argmax(-1) == 1).sum()) <= len(x),
    "arguments of distributions are valid": _validated,
    "a deviation is not 0": lambda x: x.flatten().std().item() > 0,
    "a factorisation succeeds": lambda x: bool(torch.isfinite(torch.linalg.cholesky(x[:4, :4])).all()),
    "a norm is positive": lambda x: torch.linalg.vector_norm(x).item() > 0,
    "the rows are not alike": lambda x: x[0].tolist() != x[1].tolist(),
    "read twice it is the same": lambda x: x.tolist() == x.tolist(),
    "the largest is not below the mean": lambda x: x.max().item() >= x.mean().item(),
    "an inverse is finite": lambda x: bool(torch.isfinite(torch.linalg.inv(x[:4, :4])).all()),
}


@pytest.mark.parametrize("name", TRUE_OF_RESULTS)
def test_what_a_network_computes_is_plausible(name: str) -> None:
    with VirtualDevice(H100, None) as device:
        assert TRUE_OF_RESULTS[name](computed(16, 10))

    assert {kind for kind, _ in device.ledger.remarks} >= {"assumed_value"}


OF_LARGE_RESULTS: dict[str, Judged] = {
    "a loss is positive and finite": lambda x: 0 < F.cross_entropy(x, torch.arange(len(x)).cuda()).item() < 1e3,
    "nothing is NaN": lambda x: not bool(torch.isnan(x).any()),
    "everything is finite": lambda x: bool(torch.isfinite(x).all()),
    "a class is in range": lambda x: all(0 <= each < x.shape[-1] for each in x.argmax(-1).tolist()),
    "a sample is in range": _sampled_in_range,
    "the best differ": lambda x: len({*x.topk(3)[1][0].tolist()}) == 3,
    "a count is between none and all": lambda x: 0 < int((x > 0).sum()) < x.numel(),
    "a row of probabilities sums to one": lambda x: abs(float(torch.softmax(x[0], -1).sum()) - 1) < 1e-5,
    "it is close to itself": lambda x: torch.allclose(x, x + 0) and torch.equal(x, x),
}


@pytest.mark.parametrize("name", OF_LARGE_RESULTS)
def test_what_a_network_computes_is_plausible_also_where_it_is_large(name: str) -> None:
    with VirtualDevice(H100, None):
        assert OF_LARGE_RESULTS[name](computed(8, 2**15))


def test_a_module_gives_the_same_for_the_same_call_and_another_for_another() -> None:
    # given two modules with unknown results
    found: list[list[float]] = []
    with VirtualDevice(H100, None):
        both = nn.ModuleDict({name: nn.Linear(WIDE, 4, device="cuda") for name in ("first", "second")})

        class Net(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.both = both

            def forward(self, x: torch.Tensor) -> None:
                found.extend(self.both[name](x).flatten().tolist() for name in ("first", "first", "second"))

        Net()(torch.empty(2, WIDE, device="cuda"))

    # then an iteration of one converges, and the distance to the other is not 0
    one, again, other = found
    assert one == again
    assert one != other


def test_a_loop_that_waits_for_a_truth_value_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "ASKED", 20)
    turns = 0
    with VirtualDevice(H100, None):
        while not bool(computed(1, 2).sum().long() == 77):
            turns += 1
            assert turns < 30

    assert 19 <= turns <= 21


@pytest.mark.parametrize(
    "far",
    [
        lambda norm: norm.mean() > 1e-9,
        lambda norm: norm.gt(1e-9).any(),
        lambda norm: ~(norm < 1e-9).all(),
        lambda norm: torch.gt(norm.mean(), 1e-9, out=torch.empty((), dtype=torch.bool, device="cuda")),
    ],
)
def test_an_iteration_until_numbers_are_close_ends_sooner(far: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "COMPARED", 20)
    turns = 0
    with VirtualDevice(H100, None):
        while far(computed(4, 2)):
            turns += 1
            assert turns < 30

    assert 19 <= turns <= 21


def test_a_loop_until_a_number_stays_as_it_is_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    # given an iteration whose numbers grow, and are compared on the host
    monkeypatch.setattr(plausible, "TURNS", 20)
    turns, before, now = 0, math.inf, 0.0
    with VirtualDevice(H100, None):
        while abs(now - before) > 1e-6:
            turns += 1
            before, now = now, (computed(1, 2).sum() * turns).item()
            assert turns < 30

    assert 20 <= turns <= 22


def test_a_loop_that_waits_for_a_small_number_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plausible, "TURNS", 20)
    turns = 0
    with VirtualDevice(H100, None):
        loss = computed(1, 2)
        while loss.mean().item() > 1e-6:
            turns += 1
            assert turns < 30

    assert 19 <= turns <= 21


def test_a_generation_ends_at_its_longest_length() -> None:
    # given a decoder whose vocabulary is too large for its products to be computed
    with VirtualDevice(H100, None):
        tokens = torch.zeros(2, 1, dtype=torch.long).cuda()
        going = torch.ones(2, dtype=torch.long).cuda()
        while int(going.max()) != 0:
            chosen = torch.multinomial(torch.softmax(computed(2, 512), -1), 1)
            tokens = torch.cat([tokens, chosen], 1)
            going = going & ~(torch.full((2,), tokens.shape[1] >= 12).cuda() | (chosen[:, 0] == 511)).long()
            assert tokens.shape[1] < 20

    assert tokens.shape[1] == 12


def test_an_overflow_is_never_found() -> None:
    # given gradients that overflow in half precision: known ones
    with VirtualDevice(H100, None):
        layer = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.SGD(layer.parameters(), 0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**100)
        stepped = []
        optimizer.register_step_post_hook(lambda *_: stepped.append(1))
        with torch.autocast("cuda", torch.float16):
            loss = layer(torch.ones(2, 4).cuda()).pow(2).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    assert stepped == [1]


def test_the_experts_of_a_router_share_the_tokens() -> None:
    # given 64 tokens, of which a router sends each to 2 of 4 experts
    with VirtualDevice(H100, None):
        chosen = torch.softmax(computed(64, 4), -1).topk(2)[1]
        counts = [torch.where(chosen == expert)[0].shape[0] for expert in range(4)]

    # then there are 128 places for them all
    assert sum(counts) == 128
    assert min(counts) > 0


def test_a_detector_keeps_boxes_by_their_values() -> None:
    ops = pytest.importorskip("torchvision.ops", reason="torchvision is not installed: it has the op")
    # given three boxes, of which the second is all but the first
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]])
    scores = torch.tensor([0.3, 0.9, 0.5])
    with VirtualDevice(H100, None) as device:
        kept = ops.nms(boxes.cuda(), scores.cuda(), 0.5).tolist()

    # then the better of the two is kept, and the third, best first
    assert kept == [1, 2]
    assert "assumed_value" not in {kind for kind, _ in device.ledger.remarks}


def test_a_sparse_tensor_has_no_assumed_value() -> None:
    with VirtualDevice(H100, None) as device:
        sparse = torch.sparse_coo_tensor(
            torch.tensor([[0, 1], [1, 0]]).cuda(), computed(1, 2)[0], (2, 2), check_invariants=False
        )
        assert device._mode.values.read(sparse) is None
        assert device._mode.values.computed(torch.ops.aten.neg.default, (sparse,), {}) is None


def test_a_router_gives_each_expert_as_many_tokens() -> None:
    # given choices of 2 of 8 experts for so many tokens that neither they nor their masks are small
    tokens, experts, chosen = 40_000, 8, 2
    counts: list[int] = []
    with VirtualDevice(H100, None):
        logits = torch.empty(tokens, experts, device="cuda") @ torch.empty(experts, experts, device="cuda")
        _, places = torch.softmax(logits, -1).topk(chosen)
        masks = F.one_hot(places, experts).permute(2, 1, 0)
        assert torch.greater(masks.sum(dim=(-1, -2)), 0).nonzero().flatten().tolist() == [*range(experts)]
        # when each expert is given its tokens
        for expert in range(experts):
            _, own = torch.where(masks[expert])
            counts.append(own.numel())
    # then each choice is one row: 40,000 x 2 / 8
    assert counts == [10_000] * experts
