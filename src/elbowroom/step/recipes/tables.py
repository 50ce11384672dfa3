"""Tables: which ops may run again in a recipe, by name, and what gives them the same numbers.

An op that no table names gives the same bits for the same arguments. Eager kernels of torch behave like that, cuDNN's
forward convolutions and cuBLAS's products on one stream included. Sources: cuDNN developer guide, "Reproducibility"
(only backward algorithms are excepted); cuBLAS library, "Results reproducibility". With `cudnn.benchmark` the algorithm
of a shape is picked once in a process and kept.
"""

from __future__ import annotations

RANDOM = frozenset(
    f"aten.{name}"
    for name in (
        "_cudnn_attention_forward",
        "_efficient_attention_forward",
        "_flash_attention_forward",
        "_fused_dropout",
        "_sample_dirichlet",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        "_standard_gamma",
        "bernoulli",
        "bernoulli_",
        "binomial",
        "cauchy",
        "cauchy_",
        "exponential",
        "exponential_",
        "geometric",
        "geometric_",
        "log_normal",
        "log_normal_",
        "multinomial",
        "native_dropout",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random",
        "random_",
        "randperm",
        "rrelu_with_noise",
        "rrelu_with_noise_",
        "uniform",
        "uniform_",
    )
)
"""Ops that draw from the default generator: torch tags them `nondeterministic_seeded` (native_functions.yaml). They
draw the same again with the generator's state before their first run. Its present state must be put back afterwards.
Attention draws only if it has dropout, which a trace does not say."""

STATISTICS = frozenset(
    f"aten.{name}"
    for name in (
        "_batch_norm_with_update",
        "_native_batch_norm_legit",
        "batch_norm_gather_stats_with_counts",
        "cudnn_batch_norm",
        "miopen_batch_norm",
        "native_batch_norm",
    )
)
"""Ops that update running statistics in training. These are buffers, and no result depends on them. In a recipe such an
op must not update them: it gets copies. In evaluation it only reads them."""

_UNSTABLE_SOURCE = "torch.use_deterministic_algorithms lists it"
_MAY_DIFFER = "does not always give the same bits for the same arguments"

_UNSTABLE = (
    "_ctc_loss",
    "_cudnn_ctc_loss",
    "_embedding_bag",
    "bincount",
    "cumsum",
    "cumsum_",
    "histc",
    "index_add",
    "index_add_",
    "index_copy",
    "index_copy_",
    "index_put",
    "index_put_",
    "_index_put_impl_",
    "kthvalue",
    "max_unpool2d",
    "max_unpool3d",
    "median",
    "nanmedian",
    "nll_loss2d_forward",
    "put",
    "put_",
    "scatter",
    "scatter_",
    "scatter_add",
    "scatter_add_",
    "scatter_reduce",
    "scatter_reduce_",
)

_UNWRITTEN = ("linalg_lstsq", "mkldnn_rnn_layer")
_OWN_STATE = ("_cudnn_rnn", "_cudnn_init_dropout_state", "miopen_rnn")
_MOVES_BYTES = ("resize_", "resize_as_", "set_", "_resize_output_")
_HOST = ("_local_scalar_dense", "item", "is_pinned", "_pin_memory")

REFUSED: dict[str, str] = {
    **{f"aten.{name}": f"{_MAY_DIFFER} ({_UNSTABLE_SOURCE})" for name in _UNSTABLE},
    **{f"aten.{name}": "leaves some of the bytes that it makes as it found them" for name in _UNWRITTEN},
    **{f"aten.{name}": "keeps a random state of its own between calls" for name in _OWN_STATE},
    **{f"aten.{name}": "changes which bytes a tensor is on" for name in _MOVES_BYTES},
    **{f"aten.{name}": "concerns the host" for name in _HOST},
}
"""Reason by name why an op is in no recipe. `cumsum`, `scatter` and others are stable for some types and devices; they
are refused for all."""

FROM_HOST = frozenset({"aten._to_copy", "aten.copy_"})
"""Ops that copy from the host if they have no source on the device; the source may have changed since."""

COLLECTIVE = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem", "fsdp")
"""Namespaces of ops in which several processes take part."""

KNOWN = ("aten", "prims", "torchvision", "jax")
"""Namespaces whose ops are described by these tables. An op without a namespace is one of a trace made by hand.
Those of JAX are functions of their operands, random keys included, and `jax.checkpoint` itself runs them again."""


def refused(name: str) -> str | None:
    """Say why an op may not run again, as a clause; None if it may."""
    namespace, dot, _ = name.partition(".")
    if dot and namespace in COLLECTIVE:
        return "is a collective, which every process would have to run again"
    if dot and namespace not in KNOWN:
        return f"is of {namespace!r}; whether it gives the same numbers again is known only of {', '.join(KNOWN)}"
    return REFUSED.get(name)
