"""Training steps of JAX by four libraries: each gives a step as it is written, and its arguments without bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import flax.linen as nn
import haiku as hk
import jax
import jax.numpy as jnp
import optax
from flax import nnx

KEY = jax.random.key(0)


class JaxCase(NamedTuple):
    """A step and its arguments."""

    step: Callable[..., Any]
    arguments: tuple[Any, ...]


def _step(loss: Callable[..., Any], rule: optax.GradientTransformation) -> Callable[..., Any]:
    def step(params: Any, states: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, states = rule.update(gradients, states, params)
        return optax.apply_updates(params, updates), states, value

    return jax.jit(step, donate_argnums=(0, 1))


def _case(loss: Any, params: Any, *batch: Any, rule: Any = None) -> JaxCase:
    rule = rule or optax.adamw(1e-3)
    return JaxCase(_step(loss, rule), (params, jax.eval_shape(rule.init, params), *batch))


def _floats(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _numbers(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


class FlaxMlp(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        for _ in range(4):
            x = nn.gelu(nn.Dense(1024)(x))
        return nn.Dense(10)(x)


def flax_mlp() -> JaxCase:
    model = FlaxMlp()
    images, labels = _floats(1024, 784), _numbers(1024)
    params = jax.eval_shape(model.init, KEY, images)
    return _case(lambda p, x, y: _cross_entropy(model.apply(p, x), y), params, images, labels)


class FlaxResidual(nn.Module):
    features: int
    stride: int

    @nn.compact
    def __call__(self, x: Any) -> Any:
        stride = (self.stride, self.stride)
        y = nn.Conv(self.features, (3, 3), stride, use_bias=False)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
        y = nn.BatchNorm(use_running_average=False)(nn.Conv(self.features, (3, 3), use_bias=False)(y))
        if y.shape != x.shape:
            x = nn.Conv(self.features, (1, 1), stride, use_bias=False)(x)
        return nn.relu(x + y)


class FlaxResNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.Conv(32, (3, 3))(x)
        for features, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
            x = FlaxResidual(features, stride)(x)
        return nn.Dense(10)(x.mean((1, 2)))


def flax_resnet() -> JaxCase:
    model, rule = FlaxResNet(), optax.sgd(0.1, momentum=0.9)
    images, labels = _floats(64, 32, 32, 3), _numbers(64)
    variables = jax.eval_shape(model.init, KEY, images)

    def loss(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        logits, changed = model.apply({"params": params, "batch_stats": statistics}, x, mutable=["batch_stats"])
        return _cross_entropy(logits, y), changed["batch_stats"]

    def step(params: Any, states: Any, statistics: Any, x: Any, y: Any) -> Any:
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(params, statistics, x, y)
        updates, states = rule.update(gradients, states, params)
        return optax.apply_updates(params, updates), states, statistics, value

    params, statistics = variables["params"], variables["batch_stats"]
    arguments = (params, jax.eval_shape(rule.init, params), statistics, images, labels)
    return JaxCase(jax.jit(step, donate_argnums=(0, 1, 2)), arguments)


class FlaxBlock(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(8)(y, mask=nn.make_causal_mask(x[..., 0]))
        y = nn.gelu(nn.Dense(4 * x.shape[-1])(nn.LayerNorm()(x)))
        return x + nn.Dense(x.shape[-1])(y)


class FlaxGpt(nn.Module):
    layers: int = 4
    scanned: bool = False
    remat: bool = False

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        x = nn.Embed(4096, 256)(tokens)
        if self.scanned:
            kind = nn.remat(FlaxBlock, prevent_cse=False) if self.remat else FlaxBlock
            block = nn.scan(
                lambda block, x, _: (block(x), None),
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=self.layers,
            )
            x, _ = block(kind(), x, None)
        else:
            for _ in range(self.layers):
                x = FlaxBlock()(x)
        return nn.Dense(4096)(nn.LayerNorm()(x))


def _gpt(scanned: bool, remat: bool = False) -> JaxCase:
    model, tokens = FlaxGpt(scanned=scanned, remat=remat), _numbers(8, 256)
    params = jax.eval_shape(model.init, KEY, tokens)
    return _case(lambda p, x, y: _cross_entropy(model.apply(p, x), y), params, tokens, tokens)


def flax_gpt() -> JaxCase:
    return _gpt(False)


def flax_gpt_scan() -> JaxCase:
    return _gpt(True)


def flax_gpt_remat() -> JaxCase:
    return _gpt(True, remat=True)


class FlaxUNet(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        skips = []
        for features in (16, 32, 64):
            x = nn.relu(nn.GroupNorm(8)(nn.Conv(features, (3, 3))(x)))
            skips.append(x)
            x = nn.max_pool(x, (2, 2), (2, 2))
        x = nn.relu(nn.Conv(128, (3, 3))(x))
        for features in (64, 32, 16):
            x = nn.ConvTranspose(features, (2, 2), (2, 2))(x)
            x = jnp.concatenate([x, skips.pop()], -1)
            x = nn.relu(nn.GroupNorm(8)(nn.Conv(features, (3, 3))(x)))
        return nn.Conv(2, (1, 1))(x)


def flax_unet() -> JaxCase:
    model, images, labels = FlaxUNet(), _floats(8, 128, 128, 1), _numbers(8, 128, 128)
    params = jax.eval_shape(model.init, KEY, images)
    return _case(lambda p, x, y: _cross_entropy(model.apply(p, x), y), params, images, labels)


class NnxBlock(nnx.Module):
    def __init__(self, width: int, rngs: nnx.Rngs) -> None:
        self.first, self.second = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(6, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(self.first(x))
        return x + self.down(nnx.gelu(self.up(self.second(x))))


class NnxVit(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.patches = nnx.Conv(3, 192, (8, 8), (8, 8), rngs=rngs)
        self.places = nnx.Param(jnp.zeros((1, 64, 192)))
        self.blocks = nnx.List([NnxBlock(192, rngs) for _ in range(4)])
        self.head = nnx.Linear(192, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = self.patches(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1]) + self.places[...]
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def nnx_vit() -> JaxCase:
    model = NnxVit(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)

    @nnx.jit(donate_argnums=(0, 1))
    def step(model: NnxVit, optimizer: nnx.Optimizer, x: Any, y: Any) -> Any:
        value, gradients = nnx.value_and_grad(lambda m: _cross_entropy(m(x), y))(model)
        optimizer.update(model, gradients)
        return value

    return JaxCase(step, (model, optimizer, jnp.zeros((64, 64, 64, 3)), jnp.zeros(64, jnp.int32)))


class EquinoxMixerBlock(eqx.Module):
    across: eqx.nn.MLP
    along: eqx.nn.MLP
    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm

    def __init__(self, patches: int, width: int, key: Any) -> None:
        one, two = jax.random.split(key)
        self.across = eqx.nn.MLP(patches, patches, 2 * patches, 1, jax.nn.gelu, key=one)
        self.along = eqx.nn.MLP(width, width, 4 * width, 1, jax.nn.gelu, key=two)
        self.first, self.second = eqx.nn.LayerNorm((width, patches)), eqx.nn.LayerNorm((width, patches))

    def __call__(self, x: Any) -> Any:
        x = x + jax.vmap(self.across)(self.first(x))
        return x + jax.vmap(self.along, 1, 1)(self.second(x))


class EquinoxMixer(eqx.Module):
    patches: eqx.nn.Conv2d
    blocks: list[EquinoxMixerBlock]
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        keys = jax.random.split(key, 6)
        self.patches = eqx.nn.Conv2d(3, 128, 4, 4, key=keys[0])
        self.blocks = [EquinoxMixerBlock(64, 128, each) for each in keys[1:5]]
        self.head = eqx.nn.Linear(128, 10, key=keys[5])

    def __call__(self, x: Any) -> Any:
        x = self.patches(x).reshape(128, 64)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def _equinox(model: Any, loss: Callable[..., Any], *batch: Any) -> JaxCase:
    rule = optax.adam(1e-3)
    states = rule.init(eqx.filter(model, eqx.is_array))

    @eqx.filter_jit(donate="all")
    def step(model: Any, states: Any, *batch: Any) -> Any:
        value, gradients = eqx.filter_value_and_grad(loss)(model, *batch)
        updates, states = rule.update(gradients, states, model)
        return eqx.apply_updates(model, updates), states, value

    return JaxCase(step, (model, states, *batch))


def equinox_mixer() -> JaxCase:
    def loss(model: Any, x: Any, y: Any) -> Any:
        return _cross_entropy(jax.vmap(model)(x), y)

    return _equinox(EquinoxMixer(KEY), loss, jnp.zeros((64, 3, 32, 32)), jnp.zeros(64, jnp.int32))


class EquinoxRecurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    head: eqx.nn.Linear

    def __init__(self, key: Any) -> None:
        self.cell, self.head = eqx.nn.GRUCell(64, 256, key=key), eqx.nn.Linear(256, 10, key=key)

    def __call__(self, x: Any) -> Any:
        last, _ = jax.lax.scan(lambda state, each: (self.cell(each, state), None), jnp.zeros(256), x)
        return self.head(last)


def equinox_gru() -> JaxCase:
    def loss(model: Any, x: Any, y: Any) -> Any:
        return _cross_entropy(jax.vmap(model)(x), y)

    return _equinox(EquinoxRecurrent(KEY), loss, jnp.zeros((64, 100, 64)), jnp.zeros(64, jnp.int32))


def haiku_lstm() -> JaxCase:
    def forward(x: Any) -> Any:
        core = hk.LSTM(256)
        outputs, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[1]))
        return hk.BatchApply(hk.Linear(64))(outputs)

    model, x, y = hk.without_apply_rng(hk.transform(forward)), _floats(100, 64, 64), _numbers(100, 64)
    params = jax.eval_shape(model.init, KEY, x)
    return _case(lambda p, x, y: _cross_entropy(model.apply(p, x), y), params, x, y)


def haiku_resnet() -> JaxCase:
    model = hk.transform_with_state(lambda x: hk.nets.ResNet18(10, resnet_v2=True)(x, is_training=True))
    rule, images, labels = optax.sgd(0.1, momentum=0.9), _floats(16, 64, 64, 3), _numbers(16)
    params, statistics = jax.eval_shape(model.init, KEY, images)

    def loss(params: Any, statistics: Any, x: Any, y: Any) -> Any:
        logits, statistics = model.apply(params, statistics, None, x)
        return _cross_entropy(logits, y), statistics

    def step(params: Any, states: Any, statistics: Any, x: Any, y: Any) -> Any:
        (value, statistics), gradients = jax.value_and_grad(loss, has_aux=True)(params, statistics, x, y)
        updates, states = rule.update(gradients, states, params)
        return optax.apply_updates(params, updates), states, statistics, value

    arguments = (params, jax.eval_shape(rule.init, params), statistics, images, labels)
    return JaxCase(jax.jit(step, donate_argnums=(0, 1, 2)), arguments)


def _haiku_transformer(wrap: Callable[..., Any]) -> JaxCase:
    """A transformer with dropout."""

    def layer(x: Any) -> Any:
        y = hk.LayerNorm(-1, True, True)(x)
        x = x + hk.dropout(hk.next_rng_key(), 0.1, hk.MultiHeadAttention(8, 32, w_init_scale=1.0)(y, y, y))
        y = hk.Linear(x.shape[-1])(jax.nn.relu(hk.Linear(4 * x.shape[-1])(hk.LayerNorm(-1, True, True)(x))))
        return x + hk.dropout(hk.next_rng_key(), 0.1, y)

    def forward(tokens: Any) -> Any:
        x = hk.Embed(2048, 256)(tokens)
        for _ in range(4):
            x = wrap(layer)(x)
        return hk.Linear(2048)(x)

    model, tokens = hk.transform(forward), _numbers(8, 128)
    params = jax.eval_shape(model.init, KEY, tokens)
    return _case(lambda p, k, x, y: _cross_entropy(model.apply(p, k, x), y), params, KEY, tokens, tokens)


def haiku_transformer() -> JaxCase:
    return _haiku_transformer(lambda layer: layer)


def haiku_remat() -> JaxCase:
    return _haiku_transformer(hk.remat)


CASES: dict[str, Callable[[], JaxCase]] = {
    "MLP, Flax": flax_mlp,
    "ResNet, Flax": flax_resnet,
    "GPT, Flax": flax_gpt,
    "GPT by scan, Flax": flax_gpt_scan,
    "GPT by scan with remat, Flax": flax_gpt_remat,
    "U-Net, Flax": flax_unet,
    "ViT, Flax NNX": nnx_vit,
    "MLP-Mixer, Equinox": equinox_mixer,
    "GRU by scan, Equinox": equinox_gru,
    "LSTM by scan, Haiku": haiku_lstm,
    "ResNet-18, Haiku": haiku_resnet,
    "transformer with dropout, Haiku": haiku_transformer,
    "transformer with dropout and remat, Haiku": haiku_remat,
}
