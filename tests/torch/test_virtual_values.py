"""Values on the virtual device: what came from the host is known there."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from elbowroom.capture.virtual import VirtualDevice
from elbowroom.capture.virtual.host_values import known_values
from tests.torch.virtual_gpu import H100


def on_device() -> VirtualDevice:
    return VirtualDevice(H100, None)


def assumed(device: VirtualDevice) -> list[str]:
    return [name for kind, name in device.ledger.remarks if kind == "assumed_value"]


Reading = Callable[[torch.Tensor, torch.Tensor], Any]

READINGS: dict[str, Reading] = {
    "item": lambda x, _: (x[2] + 1).item(),
    "max plus one": lambda x, _: int(x.max()) + 1,
    "sum of a mask": lambda _, m: int(m.sum()),
    "all": lambda x, _: bool((x > 0).all()),
    "any": lambda x, _: bool((x > 4).any()),
    "a comparison": lambda x, _: bool(x[0] > 1) or bool(x[0] <= 1),
    "tolist": lambda x, _: (x * 2).tolist(),
    "numpy": lambda x, _: x.cpu().numpy().tolist(),
    "equal": lambda x, _: (torch.equal(x, x.clone()), torch.equal(x, x + 1)),
    "nonzero": lambda _, m: m.nonzero().tolist(),
    "where": lambda _, m: torch.where(m)[0].tolist(),
    "a mask as index": lambda x, m: x[m].tolist(),
    "a mask of two dimensions": lambda x, m: x.view(2, 3)[m.view(2, 3)].tolist(),
    "masked select": lambda x, m: torch.masked_select(x, m).tolist(),
    "unique": lambda x, _: [each.tolist() for each in torch.unique(x % 3, return_inverse=True, return_counts=True)],
    "unique consecutive": lambda x, _: torch.unique_consecutive(x // 4).tolist(),
    "bincount": lambda x, _: torch.bincount(x, minlength=9).tolist(),
    "repeat interleave": lambda x, _: x.repeat_interleave(x).shape[0],
    "sort": lambda x, _: torch.sort(x, descending=True)[0].tolist(),
    "one hot": lambda x, _: torch.nn.functional.one_hot(x).shape,
    "change in place": lambda x, _: x.add_(1).tolist(),
    "store into a part": lambda x, _: (x.__setitem__(slice(0, 2), 7), x.tolist())[1],
    "store through a mask": lambda x, m: (x.__setitem__(m, 0), x.tolist())[1],
    "scatter": lambda x, _: torch.zeros(7, dtype=torch.long, device=x.device).scatter_(0, x, 1).tolist(),
    "count of lengths": lambda x, _: torch.arange(6, device=x.device)[None].lt(x[:, None]).sum(1).tolist(),
    "stack and concatenate": lambda x, _: torch.cat([torch.stack([x, x]).flatten(), x[:1]]).tolist(),
    "floats": lambda x, _: (x.float() / 2).mean().item(),
    "print": lambda x, _: f"{x.max()} {x.float().mean():.2f}",
    "split by a list": lambda x, m: [each.tolist() for each in x.split([int(m.sum()), int((~m).sum())])],
}


@pytest.mark.parametrize("name", READINGS)
def test_what_came_from_the_host_is_read_as_it_is(name: str) -> None:
    # given integers and truth values of the host, and what they give there
    x, mask = torch.tensor([1, 3, 2, 5, 4, 6]), torch.tensor([True, False, True, True, False, True])
    wanted = READINGS[name](x.clone(), mask)

    # when they are copied to the device first
    with on_device() as device:
        found = READINGS[name](x.cuda(), mask.cuda())

    # then the same is read, and nothing was assumed
    assert found == wanted
    assert assumed(device) == []


def test_a_change_in_place_by_something_unknown_makes_the_value_unknown() -> None:
    with on_device() as device:
        count = torch.zeros(1, dtype=torch.long).cuda()
        view = count.view(())
        assert view.item() == 0
        count += torch.nn.Linear(4, 4).cuda()(torch.empty(2**18, 4).cuda()).argmax(1)[:1]
        view.item()

    assert assumed(device) == ["aten.item"]


def test_known_values_change_no_allocation() -> None:
    # given the same work on values that are known and on values that are not
    def events(is_known: bool) -> list[int]:
        with on_device() as device:
            x = torch.arange(4096).cuda()
            if not is_known:
                device._mode.values.drop(x)
            kept = (x > 2).sum() + x.max()
            x.add_(kept).clamp_(max=9)
            del x, kept
            gc.collect()
        return [size for _, _, size in device.ledger.events]

    # then the events are the same
    assert events(is_known=True) == events(is_known=False)


def test_values_die_with_their_storages_and_are_bounded() -> None:
    with on_device() as device:
        values = device._mode.values
        kept = torch.arange(1000).cuda()
        assert values.held_bytes == 8000
        del kept
        assert values.held_bytes == 0
        large = torch.zeros(2**21, dtype=torch.long).cuda()  # 16 MiB: the least that has no value
        assert values.of(large) is None


def test_drawing_on_the_device_leaves_the_random_numbers_of_the_host_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with on_device() as device:
        chosen = torch.randint(0, 10, (1000,), device="cuda")
        kept = torch.rand(1000, device="cuda") < 0.15
        order = torch.randperm(100, device="cuda")
        share = kept.float().mean().item()
        assert 0 <= int(chosen.min()) <= int(chosen.max()) < 10
        assert sorted(order.tolist()) == list(range(100))

    # then 15 % of the mask are true, within 4 times sqrt(0.15 * 0.85 / 1000) = 0.045
    assert abs(share - 0.15) < 0.045
    assert assumed(device) == []
    assert torch.equal(torch.get_rng_state(), before)


def test_parameters_of_the_host_are_drawn_from_the_scripts_own_numbers() -> None:
    def drawn() -> list[list[float]]:
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(200, 100), torch.nn.Embedding(10, 4), torch.nn.LSTM(8, 8))
        torch.nn.init.trunc_normal_(next(net.parameters()))
        return [*(each.tolist() for each in net.parameters()), torch.rand(4).tolist()]

    wanted = drawn()
    with on_device():
        found = drawn()

    # then each is the same, and so is what is drawn after them
    assert found == wanted


def test_small_parameters_of_the_host_get_gradients_from_inputs_without_bytes() -> None:
    with on_device():
        # given parameters below 1 MiB, and an input of 8 MB
        layer = torch.nn.Linear(500, 500)
        # when
        layer(torch.randn(4000, 500)).relu().pow(2).sum().backward()
        # then
        assert layer.weight.grad is not None
        assert layer.weight.grad.device == layer.weight.device == torch.device("cpu")


def test_a_loss_can_be_put_into_logarithms_and_reciprocals() -> None:
    with on_device():
        loss = torch.nn.Linear(8, 8).cuda()(torch.randn(4, 8).cuda()).pow(2).mean()
        value = loss.item()

    assert math.isfinite(math.exp(value) + math.log(value) + math.log10(1 / value) + math.log(1 - value))


def test_lists_that_change_in_place_stay_known() -> None:
    # given a small network on known data, and an optimizer that updates lists of tensors
    def losses(device: str) -> list[float]:
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)).to(device)
        optimizer = torch.optim.Adam(net.parameters(), foreach=True)
        x, found = torch.randn(4, 8).to(device), []
        for _ in range(3):
            loss = net(x).pow(2).mean()
            found.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return found

    wanted = losses("cpu")
    with on_device() as device:
        found = losses("cuda")

    # then its losses are those of a real run
    assert found == pytest.approx(wanted, rel=1e-5)
    assert assumed(device) == []


def test_a_computation_leaves_the_number_of_threads() -> None:
    before = torch.get_num_threads()
    with on_device():
        torch.arange(10).cuda().sum().item()

    assert torch.get_num_threads() == before


def test_small_values_stay_known_where_all_others_have_taken_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # given nothing left for values
    monkeypatch.setattr(known_values, "TOTAL_WORK", 0)
    monkeypatch.setattr(known_values, "TOTAL_BYTES", 0)
    with VirtualDevice(H100):
        times = torch.linspace(0, 1, 11, device="cuda")
        # when a solver goes through the times in smaller steps
        now, steps = times[0], 0
        for end in times[1:]:
            while now < end:
                before, now = now, min(now + 0.03, times[-1])
                steps += 1
            assert before <= end <= now
        # then it ends where it would
        assert steps == 34
