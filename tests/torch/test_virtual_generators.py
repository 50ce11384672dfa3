"""Random generators on the virtual device: made, seeded, copied and handed to everything that takes one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler, random_split

from elbowroom.capture import capture
from elbowroom.capture.virtual import VirtualDevice
from elbowroom.machine import Machine

H100 = Machine.of("h100-sxm")


def test_a_generator_says_where_it_is_and_is_one_of_torchs() -> None:
    # given the ways in which a script asks for one
    with VirtualDevice(H100, None):
        asked = [torch.Generator(device=each).device for each in ("cuda", "cuda:0", torch.device("cuda", 0), 0)]
        default, host = torch.cuda.default_generators[0], torch.Generator()

        # then it is where it was asked for (the CUDA build gives "cuda" no number), and all are generators
        assert [str(each) for each in asked] == ["cuda", "cuda:0", "cuda:0", "cuda:0"]
        assert (str(default.device), str(host.device)) == ("cuda:0", "cpu")
        assert all(isinstance(each, torch.Generator) for each in (default, host, torch.default_generator))
        assert not isinstance(0, torch.Generator)

    # and afterwards there is none on cuda
    assert torch.cuda.default_generators == ()
    with pytest.raises(RuntimeError):
        torch.Generator(device="cuda")


def test_a_generator_keeps_its_seed_and_state_through_every_way_to_copy_it() -> None:
    with VirtualDevice(H100, None):
        made = torch.Generator(device="cuda").manual_seed(7)
        again = torch.Generator(device="cuda")
        again.set_state(made.get_state())
        copies = [again, made.clone_state(), copy.deepcopy(made), pickle.loads(pickle.dumps(made))]

        assert made.initial_seed() == 7
        assert {str(each.device) for each in copies} == {"cuda"}
        assert all(torch.equal(each.get_state(), made.get_state()) for each in copies)
        assert made.seed() == made.initial_seed()
        assert made.set_offset(4).get_offset() == 0  # the CUDA build counts numbers drawn, and here none are


DRAWS: dict[str, tuple[Callable[[Any], torch.Tensor], int]] = {
    "randn": (lambda g: torch.randn(8, device="cuda", generator=g), 8 * 4),
    "rand": (lambda g: torch.rand(8, device="cuda", generator=g, dtype=torch.bfloat16), 8 * 2),
    "randint": (lambda g: torch.randint(0, 9, (8,), device="cuda", generator=g), 8 * 8),
    "normal": (lambda g: torch.normal(0.0, 1.0, (8,), device="cuda", generator=g), 8 * 4),
    "normal_": (lambda g: torch.empty(8, device="cuda").normal_(generator=g), 8 * 4),
    "bernoulli_": (lambda g: torch.empty(8, device="cuda").bernoulli_(0.5, generator=g), 8 * 4),
    "exponential_": (lambda g: torch.empty(8, device="cuda").exponential_(generator=g), 8 * 4),
    "kaiming_uniform_": (
        lambda g: torch.nn.init.kaiming_uniform_(torch.empty(8, 8, device="cuda"), generator=g),
        64 * 4,
    ),
}


@pytest.mark.parametrize("name", DRAWS)
def test_what_is_drawn_from_a_generator_is_one_tensor_on_the_device(name: str) -> None:
    draw, size_bytes = DRAWS[name]
    with VirtualDevice(H100, None) as on:
        made = draw(torch.Generator(device="cuda"))

        # then one block, of elements times bytes of one; the CUDA build has none for the generator (rig)
        assert (str(made.device), made.is_cuda) == ("cuda:0", True)
        assert [size for _, _, size in on.ledger.events] == [size_bytes]


def test_generators_order_data_on_the_host_as_they_do_without_the_device() -> None:
    # given the order that torch gives eight numbers with seed 0
    expected = torch.randperm(8, generator=torch.Generator().manual_seed(0)).tolist()
    numbers: Any = list(range(8))

    with VirtualDevice(H100, None) as on:
        host, device = torch.Generator().manual_seed(0), torch.Generator(device="cuda")
        sampled = list(RandomSampler(range(8), generator=host))
        loaded = [int(each) for batch in DataLoader(numbers, 4, shuffle=True, generator=device) for each in batch]
        parts = random_split(numbers, [6, 2], generator=device)

    # then real values, and nothing on the device
    assert sampled == expected
    assert sorted(loaded) == numbers
    assert [len(part) for part in parts] == [6, 2]
    assert on.ledger.events == []


def test_a_training_that_draws_from_a_generator_on_cuda_is_captured() -> None:
    # given noise of 64 x 32 floats drawn anew in each step, as diffusion does
    def setup() -> Callable[[], None]:
        net, noise = torch.nn.Linear(32, 32).cuda(), torch.Generator(device="cuda").manual_seed(0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

        def step() -> None:
            net(torch.randn(64, 32, device="cuda", generator=noise)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

        return step

    trace = capture(setup, machine=H100, steps=2)

    # then each step has the noise's 64 * 32 * 4 bytes
    first, end = trace.steps[-1]
    drawn = [op for op in trace.ops[first:end] if op.name == "aten.randn"]
    assert [trace.storages[op.writes[0]].size_bytes for op in drawn] == [8192]
