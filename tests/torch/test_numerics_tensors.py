"""Saved tensors of every make come back bit for bit: views, masks, odd layouts, changed ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.torch.helpers import Training, assert_same_within, mlp, ordinary

Body = Callable[[Tensor], Tensor]


class Around(nn.Module):
    """Two linear layers with something between them, four times, so that there is something to swap."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.body(layer(x))
        return x


def around(body: Body) -> Callable[[], Training]:
    return lambda: ordinary(Around(body), torch.randn(96, 64))


def masked(x: Tensor) -> Tensor:
    return torch.where(x > 0, x.sin(), x.masked_fill(x < -0.5, 0.25) * 2)


def gathered(x: Tensor) -> Tensor:
    order = x.argsort(1)
    return x.gather(1, order).cumsum(1).scatter(1, order.flip(1), 0.5 * x)


def complex_product(x: Tensor) -> Tensor:
    z = torch.complex(x, x.roll(1, 1))
    return (z.conj() * z.exp() + z.conj().imag * z).abs()


def negative_view(x: Tensor) -> Tensor:
    z = torch.complex(x, x.square()).conj()
    return z.imag.sin() * z.imag * x


def fourier(x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(x, norm="ortho")
    return torch.fft.irfft(spectrum * spectrum.sigmoid(), norm="ortho")


def expanded(x: Tensor) -> Tensor:
    scale = x.mean(1, keepdim=True).expand(-1, 64)
    return x * scale.exp() + scale * x


def parts(x: Tensor) -> Tensor:
    left, right = x.chunk(2, 1)
    return torch.cat([left * right[:, ::2].repeat(1, 2), right.sigmoid() * left[:, 1:].sum(1, keepdim=True)], 1)


def transposed(x: Tensor) -> Tensor:
    return (x.t() @ x.t().sin().t()).softmax(0).expand(64, 64).t().matmul(x.t()).t() + x


def windows(x: Tensor) -> Tensor:
    return x.unfold(1, 8, 4).square().amax(2).repeat_interleave(5, 1)[:, :64] * x


def strided(x: Tensor) -> Tensor:
    rows = x.as_strided((48, 32), (128, 2), 1)
    return torch.cat([rows * rows.cos(), rows.tanh() * rows], 0).reshape(48, 64).repeat(2, 1) + x


def of_no_size(x: Tensor) -> Tensor:
    nothing = x[:0].exp() * x[:0].sin()
    return torch.cat([x, nothing]) * x + x[:, :0].exp().sum()


def scalars(x: Tensor) -> Tensor:
    return x / x.std() * x.amax().exp().tanh() + x.median()


def in_doubles(x: Tensor) -> Tensor:
    return (x.double().exp() * x.double()).to(torch.float32) + x.half().sigmoid().float() * x.bfloat16().tanh().float()


def saved_twice(x: Tensor) -> Tensor:
    y = x * x
    return y * y.view(-1, 8).sin().view_as(y) + y * y.detach() + y.t().mul(y.t()).t()


def packed(x: Tensor) -> Tensor:
    # one storage holds three tensors, each saved on its own
    storage = torch.cat([x, x.sin(), x.cos()], 1)
    a, b, c = storage.split(64, 1)
    return a * b + b * c + c * a


def larger(x: Tensor) -> Tensor:
    return torch.max(x, x.roll(1, 1)) * torch.min(x.sin(), x)


BODIES: dict[str, Body] = {
    "masks of bool": masked,
    "indices of int": gathered,
    "complex numbers and their conjugates": complex_product,
    "negative views": negative_view,
    "spectra": fourier,
    "expanded tensors": expanded,
    "parts with an offset": parts,
    "transposed views": transposed,
    "overlapping windows": windows,
    "strides by hand": strided,
    "tensors without elements": of_no_size,
    "scalars": scalars,
    "other precisions": in_doubles,
    "a tensor saved many times": saved_twice,
    "parts of one storage": packed,
    "the larger of two tensors": larger,
    "noise that an op fills after autograd has saved it": lambda x: F.rrelu(x.sin() * x, training=True),
    "dropout": lambda x: F.dropout(F.alpha_dropout(x, 0.1), 0.3),
    "a loss that reads the output": lambda x: x.log_softmax(1) * x.softmax(1),
    "a product of all": lambda x: x * (1 + 0.01 * x.abs()).prod(1, keepdim=True),
    "a decomposition": lambda x: x @ torch.linalg.qr(x.t() @ x + torch.eye(64))[0],
    "an interpolation": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear").amax((0, 1))[:96, :64],
}


@pytest.mark.parametrize("what", BODIES)
def test_a_saved_tensor_comes_back_as_it_was(what: str) -> None:
    assert_same_within(around(BODIES[what]))


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.contiguous(memory_format=torch.channels_last),
        lambda x: x.transpose(1, 3),
        lambda x: x[:, :, ::2, 1:].expand(2, -1, -1, -1),
    ],
    ids=["channels_last", "transposed", "every second row, expanded"],
)
def test_strides_and_offset_of_a_saved_tensor_come_back(layout: Callable[[Tensor], Tensor]) -> None:
    # given a function that tells how what it saved looks when it is read back
    seen: list[tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]] = []

    def look(x: Tensor) -> None:
        seen.append((tuple(x.shape), x.stride(), int(x.storage_offset()), x.dtype))

    class Looks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            saved = layout(x.clone())
            look(saved)
            ctx.save_for_backward(saved)
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            look(ctx.saved_tensors[0])
            return gradient * 2

    def setup() -> Training:
        return ordinary(mlp(), torch.randn(96, 64), loss=lambda y: Looks.apply(y.view(1, 8, 24, 32)).sum())

    assert_same_within(setup)
    assert len(set(seen)) == 1


def changed_behind_autograds_back(change: Callable[[Tensor], None]) -> Callable[[], Training]:
    """Each hidden layer's output is changed after it was saved, in a way that autograd does not notice."""

    class Changes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for number, layer in enumerate(self.layers):
                y = layer(x).tanh()
                x = y * y
                if number % 3 == 1:
                    change(y)
            return x

    return lambda: ordinary(Changes(), torch.randn(96, 64))


@pytest.mark.parametrize(
    "change",
    [
        lambda y: y.data.mul_(0.5),
        lambda y: y.data[3:7].zero_(),
        lambda y: y.detach().data.clamp_(-0.1, 0.1),
        lambda y: torch.nn.init.constant_(y.data, 0.25),
    ],
    ids=["all", "some rows", "through two aliases", "by an initializer"],
)
def test_a_change_in_place_that_autograd_does_not_notice_counts_as_it_does_without_hooks(
    change: Callable[[Tensor], None],
) -> None:
    setup = changed_behind_autograds_back(change)
    assert_same_within(setup)


def test_changes_in_place_that_autograd_allows_give_the_same_numbers() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                y = F.leaky_relu_(layer(x), 0.1)  # its backward reads the changed tensor
                z = y.clone().add_(x).mul_(2)
                z[:, :8] = y[:, 8:16]
                z[3:5].fill_(0.5)
                x = z.sigmoid_()
                self.seen += x.detach().mean(0)
            return x

    def setup() -> Training:
        return ordinary(InPlace(), torch.randn(96, 64))

    assert_same_within(setup)


def test_a_buffer_that_changes_while_a_step_reads_it_gives_the_same_numbers() -> None:
    class Remembers(nn.Module):
        """A memory of past outputs, written after every use, as in momentum encoders."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = mlp()
            self.memory: Tensor
            self.register_buffer("memory", torch.zeros(96, 64))

        def forward(self, x: Tensor) -> Tensor:
            y = self.inner(x)
            found = y * self.memory.clone()
            self.memory.lerp_(y.detach(), 0.5)
            return found + y

    def setup() -> Training:
        return ordinary(Remembers(), torch.randn(96, 64))

    assert_same_within(setup)


def test_inputs_that_share_memory_with_numpy_give_the_same_numbers() -> None:
    def setup() -> Training:
        source = np.random.default_rng(0).standard_normal((5, 96, 64)).astype(np.float32)
        training = ordinary(model := mlp(), torch.zeros(96, 64))
        (optimizer,) = training.optimizers

        def step(number: int) -> Tensor:
            optimizer.zero_grad()
            batch = torch.from_numpy(source[number % 5])
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        training.step = step
        return training

    assert_same_within(setup)


def test_an_input_that_wants_a_gradient_gets_the_same_one() -> None:
    def setup() -> Training:
        training = ordinary(model := mlp(), torch.zeros(96, 64))
        (optimizer,), image = training.optimizers, torch.randn(96, 64, requires_grad=True)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            image.grad = None
            loss = model(image).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        training.step, training.tensors = step, [image]
        return training

    assert_same_within(setup)


def test_sparse_gradients_of_an_embedding_stay_the_same() -> None:
    def setup() -> Training:
        embedding, model, words = nn.Embedding(100, 64, sparse=True), mlp(), torch.randint(0, 100, (96,))
        optimizers = [torch.optim.SparseAdam(embedding.parameters()), torch.optim.AdamW(model.parameters())]

        def step(_: int) -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = model(embedding(words)).square().mean()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            embedding.weight.grad = None
            return loss

        return Training(step, [embedding, model], optimizers)

    assert_same_within(setup)
