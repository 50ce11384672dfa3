"""Missing: libraries that a script imports and that are not installed: what to install, or what to use instead."""

from __future__ import annotations

import sys
from typing import NamedTuple

from elbowroom.capture.script.on_cpu import options


class Library(NamedTuple):
    """Library that a plain `pip install` without a GPU does not install, or that has a launcher.

    Attributes:
        next: what to do.
        words: parts of the names of options that turn it on.
        asked_by: the library whose import the advice is about; "" for any.
    """

    next: str
    words: tuple[str, ...] = ()
    asked_by: str = ""


_TO_BUILD = "it is built with CUDA's compiler; for the estimate "
_ATTENTION = Library(
    _TO_BUILD + "have the script use PyTorch's attention, which runs the same kernel and holds as much: "
    'attn_implementation="sdpa" in transformers, F.scaled_dot_product_attention elsewhere',
    ("flash", "attn"),
)
_FUSED = Library(
    _TO_BUILD + "use what PyTorch has of it: torch.optim with fused=True, nn.LayerNorm and nn.RMSNorm, torch.autocast",
    ("apex", "fused", "opt-level"),
)
_SCANS = Library(
    _TO_BUILD + "use a version in PyTorch, such as transformers' MambaForCausalLM, which takes one where this library "
    "is not there and holds more: an upper bound",
    ("mamba", "fused", "fast-path"),
)
_TRITON = Library("install it: its wheel for Linux needs no GPU to be imported, and an estimate runs no kernel of it")
LIBRARIES: dict[str, Library] = {
    "flash_attn": _ATTENTION,
    "flash_attn_interface": _ATTENTION,
    "sageattention": _ATTENTION,
    "xformers": Library(
        _TO_BUILD + "have the script use F.scaled_dot_product_attention, which holds as much; in diffusers leave out "
        "enable_xformers_memory_efficient_attention()",
        ("xformers", "memory-efficient"),
    ),
    "apex": _FUSED,
    "amp_C": _FUSED,
    "transformer_engine": Library(_TO_BUILD + "use PyTorch's layers in bfloat16, an upper bound", ("fp8", "engine")),
    "mamba_ssm": _SCANS,
    "causal_conv1d": _SCANS,
    "selective_scan_cuda": _SCANS,
    "triton": _TRITON,
    "liger_kernel": Library(
        "install liger-kernel and triton: their wheels for Linux need no GPU, and an estimate runs no kernel of them",
        ("liger",),
    ),
    "mpi4py": Library(
        "deepspeed asks for it where no launcher said which process it is; put the launcher before the script: "
        "`elbowroom estimate deepspeed train.py`",
        asked_by="deepspeed",
    ),
}
"""Libraries by the name that is imported."""


def advice(name: str, text: str, script: str) -> str:
    """Say what to do about a library that could not be imported.

    Args:
        name: name of the module; "" if the exception has none.
        text: text of the exception, as some libraries raise one that names no module.
        script: path of the script, whose own options are searched.
    """
    package = name.partition(".")[0]
    if package not in LIBRARIES and "FlashAttention" in text:
        package = "flash_attn"
    known = LIBRARIES.get(package)
    if known is not None and known.asked_by and known.asked_by not in sys.modules:
        known = None
    if known is None and text.startswith("cannot import name"):
        return f"the {package} that is installed here has no such name; install the version the script was written for"
    if known is None and package != name and package in sys.modules:
        return f"the {package} that is installed here has no {name}; install the version the script was written for"
    if known is None:
        return f"install {package or 'what it names'} into the environment of elbowroom (a build for the CPU does)"
    named = [word for plain, (word, _) in options(script).items() if any(each in plain for each in known.words)]
    return known.next + (f" (see the script's own {', '.join(named[:3])})" if named else "")
