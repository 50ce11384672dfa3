"""Trainings that change after their plan began to drop storages: rates, scales, schedules, branches, precision."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.databases.changes import FIRST, mismatches, recomputed_bytes, telling_all, train_changing
from tests.torch.helpers import Training

pytestmark = pytest.mark.filterwarnings("ignore")

BATCH, WIDTH = 24, 16
Between = Callable[["Net", Tensor], Any]


class Net(nn.Module):
    """Layers with something in between, which may look at how long the change has lasted.

    Args:
        between: works on what a layer gives.
        extra: a further module that it may use.

    Attributes:
        t: steps since the change began; 0 before.
    """

    def __init__(self, between: Between, extra: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.between, self.t = between, 0
        self.extra = extra if extra is not None else nn.Identity()
        self.register_buffer("factor", torch.ones(()))
        self.factor: Tensor

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.between(self, F.gelu(layer(x)))
        return x.square()


def training(
    between: Between,
    extra: Callable[[], nn.Module] | None = None,
    before: Callable[[Net], None] = lambda net: None,
    loss: Callable[[Net, Tensor], Tensor] = lambda net, out: out.mean(),
    around: Callable[[Net], Any] | None = None,
) -> Training:
    """SGD on a net; `before` is called before each step."""
    net = Net(between, None if extra is None else extra())
    x = torch.randn(BATCH, WIDTH)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    random.seed(1)

    def step(number: int) -> Tensor:
        net.t = max(0, number - FIRST + 1)
        before(net)
        optimizer.zero_grad(set_to_none=True)
        if around is None:
            found = loss(net, net(x))
        else:
            with around(net):
                out = net(x)
            found = loss(net, out.float())
        found.backward()
        optimizer.step()
        return telling_all(found, net)

    return Training(step, [net], [optimizer])


def lowered(net: Net) -> float:
    return 0.4 - 0.02 * net.t


def grown(net: Net) -> float:
    return 1.0 + 0.125 * net.t


def images(x: Tensor) -> Tensor:
    return x.reshape(BATCH, 4, 2, 2)


def drop_path(net: Net, x: Tensor) -> Tensor:
    """As in timm: a mask per sample, divided by its share."""
    kept = 1 - lowered(net)
    mask = x.new_empty(len(x), 1).bernoulli_(kept)
    return x + torch.tanh(x) * mask.div_(kept)


def drop_path_by_rand(net: Net, x: Tensor) -> Tensor:
    """As in the first papers' code: a random number per sample is rounded down."""
    kept = 1 - lowered(net)
    mask = (kept + torch.rand(len(x), 1)).floor_()
    return x + torch.sin(x).div(kept) * mask


def sets(**values: Callable[[Net], Any]) -> Callable[[Net], None]:
    """Set attributes of the further module before each step."""

    def before(net: Net) -> None:
        for module in net.extra.modules():
            for name, value in values.items():
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, value(net))

    return before


def through(net: Net, x: Tensor) -> Tensor:
    return net.extra(x)


def as_images(net: Net, x: Tensor) -> Tensor:
    return net.extra(images(x)).flatten(1)


def as_words(net: Net, x: Tensor) -> Tensor:
    return net.extra(x.reshape(4, 6, WIDTH)).reshape(BATCH, WIDTH)


def attended(net: Net, x: Tensor) -> Tensor:
    words = x.reshape(4, 6, WIDTH)
    return net.extra(words, words, words, need_weights=False)[0].reshape(BATCH, WIDTH)


def recurrent(net: Net, x: Tensor) -> Tensor:
    return net.extra(x.reshape(4, 6, WIDTH))[0].reshape(BATCH, WIDTH)


def sdpa(net: Net, x: Tensor) -> Tensor:
    words = x.reshape(2, 2, 6, WIDTH)
    mask = torch.ones(6, 6, dtype=torch.bool).tril(net.t % 3)
    return F.scaled_dot_product_attention(
        words, words.sin(), words, attn_mask=mask, dropout_p=lowered(net), scale=grown(net)
    ).reshape(BATCH, WIDTH)


def filled(net: Net) -> None:
    with torch.no_grad():
        net.factor.fill_(grown(net))


def replaced(net: Net) -> None:
    net.factor = torch.full((), grown(net))


def replaced_once(net: Net) -> None:
    if net.t == 1:
        net.factor = torch.full((), grown(net))


def seeded_mask(net: Net, x: Tensor) -> Tensor:
    """Draws with a seed of its own, once the change has begun."""
    if net.t:
        torch.manual_seed(net.t)
    return F.dropout(torch.tanh(x), 0.5)


def seeded_draw(net: Net, x: Tensor) -> Tensor:
    """Draws with a seed of its own right before, once the change has begun."""
    made = torch.tanh(x)
    if net.t:
        torch.manual_seed(net.t)
    return F.dropout(made, 0.5)


def forked_mask(net: Net, x: Tensor) -> Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5 + net.t)
        mask = torch.rand_like(x) > lowered(net)
    return torch.tanh(x) * mask


def own_generator(net: Net, x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(net.t)
    return torch.tanh(x) * torch.rand(x.shape, generator=generator)


def mixed(net: Net, x: Tensor) -> Tensor:
    share = 0.5 + 0.02 * net.t
    return torch.lerp(torch.tanh(x), torch.sin(x.roll(1 + net.t, 0)), share)


def cut(net: Net, x: Tensor) -> Tensor:
    """A window at another place in each step."""
    at = net.t % 5
    window = torch.tanh(x)[:, at : at + 8]
    return torch.cat([window.sin() * 2, window.cos()], 1)


def cut_and_pasted(net: Net, x: Tensor) -> Tensor:
    """A box of another size in each step."""
    wide = 2 + net.t % 5
    made = torch.tanh(x).clone()
    with torch.no_grad():
        made[:, :wide] = made[:, :wide].flip(0)
    return made.sin()


def shuffled(net: Net, x: Tensor) -> Tensor:
    return torch.sin(torch.tanh(x)[:, torch.randperm(WIDTH)])


def masked(net: Net, x: Tensor) -> Tensor:
    mask = torch.ones(WIDTH, WIDTH).tril(net.t).bool()
    return (x @ x.t() @ x).masked_fill(mask.repeat(2, 1)[:BATCH], -1.0 - net.t).softmax(1) * x


def on_data(net: Net, x: Tensor) -> Tensor:
    made = torch.tanh(x)
    if net.t and float(made.detach().mean() * 1e4) % 2 > 1:
        return torch.sigmoid(made) * made
    return torch.sin(made) * made


def at_random(net: Net, x: Tensor) -> Tensor:
    if random.random() < 0.4 - lowered(net):
        return x
    return torch.sin(torch.tanh(x)) * x


def another(net: Net, x: Tensor) -> Tensor:
    made = torch.tanh(x)
    return (torch.sin(made) if not net.t else torch.cos(made)) * made


def another_way_of_gelu(net: Net, x: Tensor) -> Tensor:
    return torch.sin(F.gelu(x, approximate="tanh" if net.t % 2 else "none")) * x


def every_number(net: Net, x: Tensor) -> Tensor:
    """Activations with numbers of their own."""
    more = grown(net)
    x = F.leaky_relu(x * more, 0.01 * more) + F.elu(x, 1.0 * more) + F.celu(x, 0.9 * more)
    x = x + F.softplus(x, 1.0 * more, 20 * more) + F.threshold(x, 0.1 * more, 0.2 * more)
    x = x + F.rrelu(x, 0.1 * more, 0.3 * more, training=True) + F.hardtanh(x, -more, more)
    x = x + F.hardshrink(x, 0.1 * more) + F.softshrink(x, 0.1 * more) + F.logsigmoid(x / more)
    x = x.clamp(-3 * more, 2 * more) + x.clamp(min=-more) + torch.add(x, x.sin(), alpha=more) / 3
    x = F.layer_norm(x, (WIDTH,), eps=1e-5 * more)
    return x + F.normalize(x, eps=1e-12 * more) + F.gumbel_softmax(x, tau=more)


def noisy(net: Net, x: Tensor) -> Tensor:
    std = 0.1 * grown(net)
    x = torch.tanh(x + std * torch.randn_like(x))
    x = torch.tanh(x + torch.normal(torch.zeros_like(x), std))
    return torch.tanh(x * torch.empty_like(x).uniform_(1 - std, 1 + std))


def in_place(net: Net, x: Tensor) -> Tensor:
    return torch.sin(x.clone().mul_(grown(net)).add_(net.t * 0.5).relu_())


def checkpointed(net: Net, x: Tensor) -> Tensor:
    return checkpoint(
        lambda y: torch.tanh(F.dropout(y, lowered(net))) * y.exp().clamp(max=grown(net)), x, use_reentrant=False
    )


def resized(net: Net, x: Tensor) -> Tensor:
    mode = "nearest" if net.t else "bilinear"
    return F.interpolate(images(x), scale_factor=2, mode=mode).tanh().mean((2, 3)).repeat(1, 4) + x


def padded(net: Net, x: Tensor) -> Tensor:
    return torch.tanh(F.pad(x[:, 2:], (2, 0), value=grown(net))) * x


def smoothed(net: Net, out: Tensor) -> Tensor:
    return F.cross_entropy(out / grown(net), torch.arange(BATCH) % WIDTH, label_smoothing=0.05 + 0.01 * net.t)


def scaled(net: Net, out: Tensor) -> Tensor:
    return F.cross_entropy(torch.tanh(out) * grown(net), torch.arange(BATCH) % WIDTH) * 2.0**net.t


def distilled(net: Net, out: Tensor) -> Tensor:
    """A teacher's targets, at a temperature; the teacher follows the weights."""
    if not hasattr(net, "teacher"):
        object.__setattr__(net, "teacher", copy.deepcopy(net.layers))
    teacher: Any = net.teacher
    with torch.no_grad():
        x = out.detach()
        for theirs, ours in zip(teacher.parameters(), net.layers.parameters(), strict=True):
            theirs.lerp_(ours, 0.1 * min(grown(net), 2))
        for layer in teacher:
            x = torch.tanh(layer(x))
    student = F.log_softmax(out / grown(net), 1)
    return F.kl_div(student, F.softmax(x / grown(net), 1), reduction="batchmean") * grown(net) ** 2


def evaluated(net: Net) -> None:
    net.extra.train(not net.t)


def frozen(net: Net) -> None:
    net.layers[0].requires_grad_(not net.t)


def biases_frozen(net: Net) -> None:
    for layer in net.layers:
        layer.get_parameter("bias").requires_grad_(not net.t)


def loaded(net: Net) -> None:
    if net.t == 1:
        net.load_state_dict({name: value * 0.9 for name, value in net.state_dict().items()})


def new_data(net: Net) -> None:
    if net.t == 1:
        for parameter in net.parameters():
            parameter.data = parameter.data * 0.9


def assigned(net: Net) -> None:
    if net.t == 1:
        for each in net.layers:
            each.register_parameter("bias", nn.Parameter(each.get_parameter("bias").detach() * 0.9))


def validated(net: Net) -> None:
    if net.t % 2:
        net.eval()
        with torch.no_grad():
            net(torch.ones(BATCH, WIDTH))
        net.train()


def in_bfloat16(net: Net) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=net.t > 0)


def in_float32(net: Net) -> Any:
    return torch.autocast("cpu", torch.bfloat16, enabled=net.t == 0)


def plain(net: Net, x: Tensor) -> Tensor:
    return torch.sin(torch.tanh(x)) * x


def bilinear(net: Net, x: Tensor) -> Tensor:
    """An op that calls others, which autocast casts."""
    return torch.sin(torch.tanh(net.extra(x.float(), x.float().clone())))


def by_factor(net: Net, x: Tensor) -> Tensor:
    return torch.sin(torch.tanh(x * net.factor)) * net.factor


def layer(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.4, batch_first=True, **options)


TRAININGS: dict[str, Callable[[], Training]] = {
    "nn.Dropout": lambda: training(through, lambda: nn.Sequential(nn.Tanh(), nn.Dropout(0.4)), sets(p=lowered)),
    "F.dropout": lambda: training(lambda net, x: F.dropout(torch.tanh(x), lowered(net)) * x),
    "F.dropout in place": lambda: training(lambda net, x: F.dropout(torch.tanh(x) * 2, lowered(net), inplace=True) * x),
    "nn.Dropout2d": lambda: training(as_images, lambda: nn.Sequential(nn.Tanh(), nn.Dropout2d(0.4)), sets(p=lowered)),
    "nn.AlphaDropout": lambda: training(
        through, lambda: nn.Sequential(nn.SELU(), nn.AlphaDropout(0.4)), sets(p=lowered)
    ),
    "nn.FeatureAlphaDropout": lambda: training(
        as_images, lambda: nn.Sequential(nn.SELU(), nn.FeatureAlphaDropout(0.4)), sets(p=lowered)
    ),
    "a dropout rate that reaches nought": lambda: training(
        lambda net, x: F.dropout(torch.tanh(x), max(0.0, 0.3 - 0.1 * net.t)) * x
    ),
    "attention": lambda: training(
        attended, lambda: nn.MultiheadAttention(WIDTH, 2, dropout=0.4, batch_first=True), sets(dropout=lowered)
    ),
    "an encoder layer": lambda: training(as_words, layer, sets(p=lowered, dropout=lowered)),
    "an encoder layer with norms first": lambda: training(
        as_words, lambda: layer(norm_first=True, activation=F.gelu), sets(p=lowered, eps=lambda net: 1e-5 * grown(net))
    ),
    "LSTM": lambda: training(recurrent, lambda: nn.LSTM(WIDTH, WIDTH, 2, dropout=0.4), sets(dropout=lowered)),
    "GRU": lambda: training(recurrent, lambda: nn.GRU(WIDTH, WIDTH, 2, dropout=0.4), sets(dropout=lowered)),
    "RNN": lambda: training(recurrent, lambda: nn.RNN(WIDTH, WIDTH, 2, dropout=0.4), sets(dropout=lowered)),
    "scaled products with another mask": lambda: training(sdpa),
    "drop path": lambda: training(drop_path),
    "drop path by torch.rand": lambda: training(drop_path_by_rand),
    "batch norm": lambda: training(
        as_images,
        lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Tanh(), nn.BatchNorm2d(4)),
        sets(momentum=lambda net: 0.1 * grown(net), eps=lambda net: 1e-5 * grown(net)),
    ),
    "batch norm that averages over all steps": lambda: training(
        as_images, lambda: nn.Sequential(nn.BatchNorm2d(4, momentum=None), nn.Tanh())
    ),
    "batch norm that is frozen": lambda: training(
        as_images, lambda: nn.Sequential(nn.BatchNorm2d(4), nn.Tanh()), evaluated
    ),
    "group norm": lambda: training(
        as_images, lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Tanh()), sets(eps=lambda net: 1e-5 * grown(net))
    ),
    "numbers of activations": lambda: training(every_number),
    "noise": lambda: training(noisy),
    "numbers in place": lambda: training(in_place),
    "gelu": lambda: training(another_way_of_gelu),
    "a mask": lambda: training(masked),
    "mixed samples": lambda: training(mixed),
    "a window": lambda: training(cut),
    "a box of another size": lambda: training(cut_and_pasted),
    "shuffled channels": lambda: training(shuffled),
    "a pad's value": lambda: training(padded),
    "interpolation": lambda: training(resized),
    "a checkpoint inside": lambda: training(checkpointed),
    "a branch on data": lambda: training(on_data),
    "layers left out at random": lambda: training(at_random),
    "another function": lambda: training(another),
    "a buffer that is filled": lambda: training(by_factor, before=filled),
    "a buffer that is replaced": lambda: training(by_factor, before=replaced),
    "a buffer that is replaced once": lambda: training(by_factor, before=replaced_once),
    "a seed inside": lambda: training(seeded_mask),
    "a seed right before a draw": lambda: training(seeded_draw),
    "a generator that is forked": lambda: training(forked_mask),
    "a generator of its own": lambda: training(own_generator),
    "label smoothing": lambda: training(plain, loss=smoothed),
    "a scale of the loss": lambda: training(plain, loss=scaled),
    "a teacher": lambda: training(plain, loss=distilled),
    "a frozen layer": lambda: training(plain, before=frozen),
    "frozen biases": lambda: training(plain, before=biases_frozen),
    "weights that are loaded": lambda: training(plain, before=loaded),
    "weights with new data": lambda: training(plain, before=new_data),
    "weights that are replaced": lambda: training(plain, before=assigned),
    "a validation in between": lambda: training(plain, before=validated),
    "bfloat16 from a step on": lambda: training(plain, around=in_bfloat16),
    "bfloat16 up to a step": lambda: training(plain, around=in_float32),
    "bfloat16 in an op of ops": lambda: training(
        bilinear, lambda: nn.Bilinear(WIDTH, WIDTH, WIDTH), around=in_bfloat16
    ),
}


OTHER_CALLS = {
    "a box of another size": "other shapes in each step",
    "interpolation": "another op",
    "a branch on data": "other ops in some steps",
    "layers left out at random": "other saves in some steps",
    "another function": "another op",
    "frozen biases": "another input that learns",
    "weights that are replaced": "other parameters",
    "a dropout rate that reaches nought": "other saves",
    "batch norm that is frozen": "other saves",
    "a buffer that is replaced": "a buffer that no module has when the step is recorded, in each step",
    "a buffer that is replaced once": "other saves",
    "a frozen layer": "other saves",
    "bfloat16 from a step on": "other saves",
    "bfloat16 up to a step": "other saves",
    "bfloat16 in an op of ops": "other saves",
}
"""Changes that no argument of a call shows."""


@pytest.mark.parametrize("name", TRAININGS)
def test_a_training_that_changes_while_its_plan_drops_gives_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # when
    room = train_changing(TRAININGS[name], monkeypatch)
    # then the plan goes on where a change is one of arguments, and is made anew where another change stays
    again = recomputed_bytes(room)
    if name not in OTHER_CALLS:
        assert mismatches(room) == 0
        assert again == [again[0]] * len(again)
    assert again[-1] > 0 or name == "a buffer that is replaced"
