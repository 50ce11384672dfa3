"""Trainings of many kinds give the same numbers, bit for bit, within a budget that makes them swap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

import elbowroom as er
from tests.torch.helpers import (
    MIN_SIZE_BYTES,
    Training,
    assert_equal,
    assert_same_within,
    assert_swapped,
    finish,
    mean_square,
    mlp,
    ordinary,
    same_within,
    seeded,
    tight_budget,
    train,
    train_within,
)


class Images(nn.Module):
    """Convolutions with batch norm, dropout, pooling and a residual."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        conv = nn.Conv2d if dims == 2 else nn.Conv3d
        norm = nn.BatchNorm2d if dims == 2 else nn.BatchNorm3d
        self.pool = nn.MaxPool2d(2) if dims == 2 else nn.MaxPool3d(2)
        self.drop = nn.Dropout2d(0.2) if dims == 2 else nn.Dropout3d(0.2)
        self.first = nn.Sequential(conv(3, 8, 3, padding=1), norm(8), nn.ReLU(inplace=True))
        self.second = nn.ModuleList(nn.Sequential(conv(8, 8, 3, padding=1), norm(8), nn.GELU()) for _ in range(4))
        self.head = nn.Linear(8, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = self.first(images)
        for block in self.second:
            found = self.drop(found + block(found))
        found = self.pool(found)
        return self.head(found.flatten(2).mean(2))


class Tied(nn.Module):
    """A character model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32, padding_idx=0)
        self.body = nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.LayerNorm(32))
        self.head = nn.Linear(32, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(tokens))).flatten(0, 1)


class Attention(nn.Module):
    """One block of a transformer: `nn.MultiheadAttention`, or scaled_dot_product_attention by hand."""

    def __init__(self, by_hand: bool) -> None:
        super().__init__()
        self.by_hand = by_hand
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.queries = nn.Linear(32, 96)
        self.mlp = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.SiLU(), nn.Dropout(0.1), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        if self.by_hand:
            q, k, v = (part.unflatten(2, (4, 8)).transpose(1, 2) for part in self.queries(x).chunk(3, 2))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        else:
            mixed = self.attention(x, x, x, need_weights=False)[0]
        return x + self.mlp(x + mixed)


class Language(nn.Module):
    """An LSTM language model."""

    def __init__(self, kind: type[nn.LSTM | nn.GRU]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.rnn = kind(16, 32, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(32, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0]).flatten(0, 1)


def images(dims: int, memory_format: torch.memory_format) -> Training:
    size = (4, 3, 16, 16) if dims == 2 else (2, 3, 8, 8, 8)
    model: nn.Module = Images(dims).to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]
    batch = torch.randn(size).to(memory_format=memory_format)
    labels = torch.randint(0, 5, size[:1])
    return ordinary(model, batch, loss=lambda scores: F.cross_entropy(scores, labels))


def tokens(model: nn.Module) -> Training:
    text = torch.randint(0, 40, (16, 9))
    targets = text[:, 1:].flatten()
    return ordinary(model, text[:, :-1], loss=lambda scores: F.cross_entropy(scores, targets))


def matrix_factors() -> Training:
    u, v = nn.Parameter(torch.randn(80, 16)), nn.Parameter(torch.randn(16, 80))
    optimizer = torch.optim.LBFGS([u, v], max_iter=3, history_size=1)
    target = torch.randn(80, 80)

    def step(_: int) -> Tensor:
        def closure() -> Tensor:
            optimizer.zero_grad()
            found = u @ v
            for _ in range(6):
                found = found.tanh() * 2
            loss = F.smooth_l1_loss(found, target)
            loss.backward()
            return loss

        return torch.as_tensor(optimizer.step(closure))

    return Training(step, optimizers=[optimizer], tensors=[u, v])


TRAININGS: dict[str, Callable[[], Training]] = {
    "a perceptron": lambda: ordinary(mlp(), torch.randn(128, 64)),
    "a CNN with batch norm and dropout": lambda: images(2, torch.contiguous_format),
    "a CNN in channels_last": lambda: images(2, torch.channels_last),
    "a 3D CNN": lambda: images(3, torch.contiguous_format),
    "a 3D CNN in channels_last_3d": lambda: images(3, torch.channels_last_3d),
    "tied weights": lambda: tokens(Tied()),
    "an LSTM": lambda: tokens(Language(nn.LSTM)),
    "a GRU": lambda: tokens(Language(nn.GRU)),
    "multi-head attention": lambda: ordinary(Attention(by_hand=False), torch.randn(4, 24, 32)),
    "scaled dot product attention": lambda: ordinary(Attention(by_hand=True), torch.randn(4, 24, 32)),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_a_model_trains_to_the_same_numbers(name: str) -> None:
    assert_same_within(TRAININGS[name])


def test_two_threads_of_compute_give_the_same_numbers() -> None:
    torch.set_num_threads(2)
    try:
        plain = train(TRAININGS["a perceptron"])
        inside, room = train_within(TRAININGS["a perceptron"])
    finally:
        torch.set_num_threads(1)

    assert_equal(inside, plain)
    assert_swapped(room)


def test_an_optimizer_that_runs_the_model_itself_gives_the_same_numbers() -> None:
    # LBFGS calls forward and backward several times in one step: three times, which are a step each
    assert_swapped(same_within(matrix_factors), 15)


def test_autocast_to_bfloat16_gives_the_same_numbers() -> None:
    def setup() -> Training:
        model, batch = nn.Sequential(mlp(), nn.LayerNorm(64), nn.Linear(64, 64)), torch.randn(128, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                loss = mean_square(model(batch))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss

        return Training(step, [model], [optimizer])

    plain = train(setup)
    inside, room = train_within(setup)

    assert_equal(inside, plain)
    assert_swapped(room)
    assert room.trace is not None
    assert room.plan is not None
    assert {room.trace.storages[swap.storage].dtype for swap in room.plan.swaps} >= {"bfloat16"}


def test_gradient_accumulation_gives_the_same_numbers() -> None:
    def setup() -> Training:
        model, batches = mlp(), torch.randn(3, 96, 64)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(_: int) -> Tensor:
            optimizer.zero_grad(set_to_none=True)
            total = torch.zeros(())
            for batch in batches:
                loss = mean_square(model(batch)) / len(batches)
                loss.backward()
                total += loss.detach()
            optimizer.step()
            return total

        return Training(step, [model], [optimizer])

    assert_same_within(setup)


def test_two_models_with_an_optimizer_each_give_the_same_numbers() -> None:
    def setup() -> Training:
        encoder, decoder, batch = mlp(), mlp(), torch.randn(128, 64)
        optimizers = [torch.optim.AdamW(encoder.parameters()), torch.optim.SGD(decoder.parameters(), momentum=0.9)]

        def step(_: int) -> Tensor:
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = F.mse_loss(decoder(encoder(batch)), batch)
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            return loss

        return Training(step, [encoder, decoder], optimizers)

    assert_same_within(setup)


def adversaries() -> Training:
    generator, critic, real = mlp(), nn.Sequential(mlp(), nn.Linear(64, 1)), torch.randn(128, 64)
    makes = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.9))
    judges = torch.optim.Adam(critic.parameters(), betas=(0.5, 0.9))

    def step(_: int) -> Tensor:
        judges.zero_grad()
        fake = generator(torch.randn(128, 64))
        wrong = F.softplus(critic(fake.detach())).mean() + F.softplus(-critic(real)).mean()
        wrong.backward()
        judges.step()
        makes.zero_grad()
        found_out = F.softplus(-critic(generator(torch.randn(128, 64)))).mean()
        found_out.backward()
        makes.step()
        return wrong.detach() + found_out.detach()

    return Training(step, [generator, critic], [makes, judges])


def test_a_generator_and_a_critic_in_turn_give_the_same_numbers() -> None:
    plain = train(adversaries)
    # given so little that the critic's step does not fit either, which holds nothing of the generator's
    inside, room = train_within(adversaries, budget=partial(tight_budget, share=0.0))

    assert_equal(inside, plain)
    # every round is two steps, each of its own kind
    assert len(room.steps) == 10
    assert [step.mode for step in room.steps[-2:]] == ["plan", "plan"]
    assert sum(step.swapped_back_bytes for step in room.steps[-2:]) > 0


def test_training_functions_without_modules_and_optimizers_gives_the_same_numbers() -> None:
    def setup(end_step: Callable[[], None] = lambda: None) -> Training:
        weights = [torch.randn(64, 64).mul_(0.1).requires_grad_() for _ in range(4)]
        batch = torch.randn(128, 64)

        def step(_: int) -> Tensor:
            found = batch
            for weight in weights:
                found = torch.relu(found @ weight)
            loss = mean_square(found)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(gradient, alpha=0.1)
            end_step()
            return loss

        return Training(step, tensors=weights)

    plain = train(setup)
    budget = tight_budget(setup)
    with er.within(budget, min_size=MIN_SIZE_BYTES) as room:
        inside = finish(seeded(lambda: setup(room.end_step)), 5)

    assert_equal(inside, plain)
    assert_swapped(room)


def test_an_evaluation_between_steps_gives_the_same_numbers() -> None:
    def setup() -> Training:
        training = images(2, torch.contiguous_format)
        (model,), steps = training.modules, training.step
        held_out = torch.randn(6, 3, 16, 16)

        def step(number: int) -> Tensor:
            trained = steps(number)
            model.eval()
            with torch.no_grad():
                scores = mean_square(model(held_out))
            model.train()
            return torch.stack([trained, scores])

        training.step = step
        return training

    assert_same_within(setup)


def test_an_evaluation_within_a_step_gives_the_same_numbers() -> None:
    def setup() -> Training:
        model, batch = mlp(), torch.randn(128, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            with torch.no_grad():
                weight = mean_square(model(batch)) + 1
            loss = mean_square(model(batch)) / weight
            with torch.inference_mode():
                model(batch[:4])
            loss.backward()
            optimizer.step()
            return loss

        return Training(step, [model], [optimizer])

    assert_same_within(setup)


def test_parameters_without_a_shape_yet_are_left_alone() -> None:
    # given: somebody's lazy module, not called so far
    lazy = nn.LazyLinear(3)

    # then
    assert_same_within(TRAININGS["a perceptron"])
    assert is_lazy(lazy.weight)
