"""Ops to compare one at a time with the CUDA build of torch: Python with the names of single_run.names(). Pure text.

Those that are called each in a way of its own are in single_ops.txt, a line each: `name: code`, DT for the dtype.
Sizes are such that a large reduction, sort or attention shows the scratch it takes. A case is one op and its backward,
so that a difference is that op's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

LISTED = Path(__file__).with_name("single_ops.txt")


def _words(text: str) -> list[str]:
    return text.split()


UNARY = _words("""
    abs acos acosh asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv exp exp2 expm1 floor frac
    lgamma log log10 log1p log2 logit neg positive rad2deg reciprocal relu round rsqrt sgn sigmoid sign sin sinc
    sinh sqrt square tan tanh trunc nan_to_num isnan isinf isfinite signbit logical_not
""")
ACTIVATIONS = _words("""
    celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6 selu silu softplus
    softshrink softsign tanhshrink
""")
IN_PLACE = _words("""
    abs_ clamp_(0,1) exp_ neg_ relu_ sigmoid_ sqrt_ square_ tanh_ zero_ fill_(2.0) add_(1.0) mul_(2.0) div_(2.0)
    sub_(1.0) pow_(2.0) round_ reciprocal_ rsqrt_ normal_ uniform_ bernoulli_ exponential_ log_ floor_ sign_
    nan_to_num_ clamp_min_(0) clamp_max_(1)
""")
BINARY = _words("""
    add sub mul div maximum minimum fmax fmin atan2 hypot pow logaddexp fmod remainder copysign xlogy
""")
COMPARISONS = _words("""
    eq ne lt le gt ge logical_and logical_or logical_xor isclose
""")
REDUCTIONS = _words("""
    sum mean prod amax amin std var norm logsumexp any all argmax argmin nansum count_nonzero median mode max min
    aminmax std_mean var_mean cumsum cumprod logcumsumexp cummax cummin softmax log_softmax
""")
OPTIMIZERS = _words("""
    SGD(p,lr=0.1) SGD(p,lr=0.1,momentum=0.9) SGD(p,lr=0.1,momentum=0.9,nesterov=True) SGD(p,lr=0.1,weight_decay=0.1)
    Adam(p) Adam(p,amsgrad=True) Adam(p,weight_decay=0.1) AdamW(p) AdamW(p,amsgrad=True) Adagrad(p) Adadelta(p)
    Adamax(p) NAdam(p) RAdam(p) RMSprop(p) RMSprop(p,momentum=0.9,centered=True) Rprop(p) ASGD(p) Adafactor(p)
    AdamW(p,maximize=True) AdamW(p,capturable=True)
""")
FUSED = _words("""
    SGD(p,lr=0.1,momentum=0.9) Adam(p) AdamW(p) Adagrad(p)
""")
DTYPES = {"": "torch.float32", " fp16": "half", " bf16": "bf16"}
NUMBERS = {**DTYPES, " fp64": "torch.float64"}
SHAPES = {"rows": ("(4096, 768)", "-1"), "columns": ("(4096, 768)", "0"), "cube": ("(32, 64, 56, 56)", "1")}


def cases() -> dict[str, str]:
    """Every case by name."""
    found: dict[str, str] = {}
    for part in (_pointwise, _reductions, _optimizers, _layers, _attention, _listed):
        for name, code in part():
            if name in found:
                raise ValueError(f"two cases are called {name!r}; give one of them another name")
            found[name] = code
    return found


def _pointwise() -> Iterator[tuple[str, str]]:
    for tail, dtype in DTYPES.items():
        for name in UNARY:
            back = "" if name.startswith(("is", "sign", "logical")) and name != "sign" else "; B(y)"
            yield f"{name}{tail}", f"x = T(300, 1000, dtype={dtype}); y = torch.{name}(x){back}"
        for name in ACTIVATIONS:
            yield f"F.{name}{tail}", f"x = T(300, 1000, dtype={dtype}); y = F.{name}(x); B(y)"
        for name in IN_PLACE:
            call = name if name.endswith(")") else f"{name}()"
            yield f"{name}{tail}", f"x = T(300, 1000, dtype={dtype}, grad=False); x.{call}"
        for name in BINARY:
            made = f"x = T(300, 1000, dtype={dtype}); z = T(300, 1000, dtype={dtype})"
            yield f"{name}{tail}", f"{made}; y = torch.{name}(x, z); B(y)"
            yield f"{name} broadcast{tail}", f"{made}; w = T(1000, dtype={dtype}); y = torch.{name}(x, w); B(y)"
        for name in COMPARISONS:
            yield (
                f"{name}{tail}",
                f"x = T(300, 1000, dtype={dtype}); z = T(300, 1000, dtype={dtype}); y = torch.{name}(x, z)",
            )
    for name in ("add", "mul", "div", "sub", "pow"):
        yield f"{name} number", f"x = T(300, 1000); y = torch.{name}(x, 2); B(y)"
        yield f"{name} mixed", f"x = T(300, 1000); z = T(300, 1000, dtype=half); y = torch.{name}(x, z); B(y)"
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "add", "mul", "floor_divide", "remainder", "eq", "gt"):
        yield f"{name} int64", f"x = I(300, 1000); y = torch.{name}(x, x)"


def _reductions() -> Iterator[tuple[str, str]]:
    for tail, dtype in NUMBERS.items():
        for name in REDUCTIONS:
            for shape, (size, dim) in SHAPES.items():
                yield from _reduction(name, shape, size, dim, tail, dtype)
        for name in ("sum", "mean", "norm", "std", "max", "prod", "any"):
            for size in ("(4096, 768)", "(100,)", "(3, 5_000_001)"):
                made = f"x = torch.empty({size}, device='cuda', dtype={dtype}, requires_grad=True)"
                back = "" if name == "any" else "; B(y)"
                yield f"{name} of all {size}{tail}", f"{made}; y = torch.{name}(x){back}"
    for name in ("sum", "max", "any", "all", "argmax", "cumsum", "prod"):
        for kind in ("torch.int64", "torch.bool", "torch.int32"):
            yield f"{name} {kind}", f"x = I(4096, 768, dtype={kind}); y = torch.{name}(x, 0)"
            yield f"{name} of all {kind}", f"x = I(4096, 768, dtype={kind}).view(-1); y = torch.{name}(x, 0)"


def _reduction(name: str, shape: str, size: str, dim: str, tail: str, dtype: str) -> Iterator[tuple[str, str]]:
    made = f"x = torch.empty({size}, device='cuda', dtype={dtype}, requires_grad=True)"
    dimension = f"dim={dim}"
    pair = name in ("median", "mode", "max", "min", "cummax", "cummin", "aminmax", "std_mean", "var_mean")
    result = "y" if not pair else "y[0]"
    silent = name in ("any", "all", "argmax", "argmin", "count_nonzero")
    back = "" if silent else f"; B({result})"
    yield f"{name} {shape}{tail}", f"{made}; y = torch.{name}(x, {dimension}){back}"


def _optimizers() -> Iterator[tuple[str, str]]:
    for tail, dtype in DTYPES.items():
        start = f"p = [T(1000, 300, dtype={dtype}), T(300, dtype={dtype})]; "
        start += "[setattr(q, 'grad', torch.empty_like(q)) for q in p]"
        for each in OPTIMIZERS:
            for kind in ("", ",foreach=False", ",foreach=True"):
                made = f"o = torch.optim.{each[:-1]}{kind})"
                if "capturable" not in each:
                    yield f"{each}{kind}{tail}", f"{start}; {made}; o.step(); o.step()"
        for each in FUSED:
            yield f"{each} fused{tail}", f"{start}; o = torch.optim.{each[:-1]},fused=True); o.step(); o.step()"
        for norm in ("2.0", "1.0", "float('inf')"):
            yield f"clip norm {norm}{tail}", f"{start}; torch.nn.utils.clip_grad_norm_(p, 1.0, norm_type={norm})"
        yield f"clip value{tail}", f"{start}; torch.nn.utils.clip_grad_value_(p, 1.0)"
    yield (
        "scaler",
        (
            "p = [T(1000, 300), T(300)]; o = torch.optim.SGD(p, lr=0.1); s = torch.amp.GradScaler('cuda'); "
            "l = s.scale((p[0].sum() + p[1].sum())); l.backward(); s.unscale_(o); s.step(o); s.update()"
        ),
    )


def _layers() -> Iterator[tuple[str, str]]:
    for tail, dtype in DTYPES.items():
        for name, (module, shape) in LAYERS.items():
            made = f"m = nn.{module}.to('cuda', {dtype})"
            yield f"{name}{tail}", f"{made}; x = T{shape[:-1]}, dtype={dtype}); y = m(x); B(y)"
            yield f"{name} eval{tail}", f"{made}.eval(); x = T{shape[:-1]}, dtype={dtype}); y = m(x); B(y)"
            if shape.count(",") == 3:
                last = "to(memory_format=torch.channels_last)"
                given = f"x = T{shape[:-1]}, dtype={dtype}, grad=False).{last}.requires_grad_()"
                yield f"{name} channels last{tail}", f"{made}.{last}; {given}; y = m(x); B(y)"
        for name, (module, shape) in LAYERS.items():
            if tail:
                under = f"torch.autocast('cuda', {dtype})"
                code = f"m = nn.{module}.to('cuda'); x = T{shape}\nwith {under}:\n    y = m(x)\nB(y)"
                yield f"{name} autocast{tail}", code


LAYERS: dict[str, tuple[str, str]] = {
    "Linear": ("Linear(768, 3072)", "(512, 768)"),
    "Linear 3d": ("Linear(768, 3072)", "(8, 512, 768)"),
    "Linear no bias": ("Linear(768, 3072, bias=False)", "(8, 512, 768)"),
    "Conv1d": ("Conv1d(64, 128, 3, padding=1)", "(8, 64, 1000)"),
    "Conv2d": ("Conv2d(64, 128, 3, padding=1)", "(8, 64, 56, 56)"),
    "Conv2d 1x1": ("Conv2d(64, 128, 1, bias=False)", "(8, 64, 56, 56)"),
    "Conv2d grouped": ("Conv2d(64, 128, 3, groups=4)", "(8, 64, 56, 56)"),
    "Conv2d depthwise": ("Conv2d(64, 64, 3, groups=64)", "(8, 64, 56, 56)"),
    "Conv2d dilated": ("Conv2d(64, 128, 3, dilation=2)", "(8, 64, 56, 56)"),
    "Conv2d strided": ("Conv2d(64, 128, 3, stride=2)", "(8, 64, 56, 56)"),
    "Conv3d": ("Conv3d(16, 32, 3, padding=1)", "(2, 16, 32, 32, 32)"),
    "ConvTranspose1d": ("ConvTranspose1d(64, 32, 2, stride=2)", "(8, 64, 1000)"),
    "ConvTranspose2d": ("ConvTranspose2d(64, 32, 2, stride=2)", "(8, 64, 56, 56)"),
    "ConvTranspose3d": ("ConvTranspose3d(16, 8, 2, stride=2)", "(2, 16, 32, 32, 32)"),
    "BatchNorm1d": ("BatchNorm1d(768)", "(512, 768)"),
    "BatchNorm1d 3d": ("BatchNorm1d(64)", "(8, 64, 1000)"),
    "BatchNorm2d": ("BatchNorm2d(64)", "(8, 64, 56, 56)"),
    "BatchNorm2d plain": ("BatchNorm2d(64, affine=False)", "(8, 64, 56, 56)"),
    "BatchNorm3d": ("BatchNorm3d(16)", "(2, 16, 32, 32, 32)"),
    "InstanceNorm2d": ("InstanceNorm2d(64)", "(8, 64, 56, 56)"),
    "InstanceNorm2d affine": ("InstanceNorm2d(64, affine=True)", "(8, 64, 56, 56)"),
    "InstanceNorm3d": ("InstanceNorm3d(16)", "(2, 16, 32, 32, 32)"),
    "GroupNorm": ("GroupNorm(8, 64)", "(8, 64, 56, 56)"),
    "LayerNorm": ("LayerNorm(768)", "(8, 512, 768)"),
    "LayerNorm long": ("LayerNorm(96)", "(32, 3136, 96)"),
    "LayerNorm plain": ("LayerNorm(768, elementwise_affine=False)", "(8, 512, 768)"),
    "RMSNorm": ("RMSNorm(768)", "(8, 512, 768)"),
    "LocalResponseNorm": ("LocalResponseNorm(5)", "(8, 64, 56, 56)"),
    "MaxPool1d": ("MaxPool1d(2)", "(8, 64, 1000)"),
    "MaxPool2d": ("MaxPool2d(3, 2, 1)", "(8, 64, 56, 56)"),
    "MaxPool3d": ("MaxPool3d(2)", "(2, 16, 32, 32, 32)"),
    "AvgPool1d": ("AvgPool1d(2)", "(8, 64, 1000)"),
    "AvgPool2d": ("AvgPool2d(2)", "(8, 64, 56, 56)"),
    "AvgPool3d": ("AvgPool3d(2)", "(2, 16, 32, 32, 32)"),
    "LPPool2d": ("LPPool2d(2, 2)", "(8, 64, 56, 56)"),
    "AdaptiveAvgPool1d": ("AdaptiveAvgPool1d(10)", "(8, 64, 1000)"),
    "AdaptiveAvgPool2d 1": ("AdaptiveAvgPool2d(1)", "(8, 64, 56, 56)"),
    "AdaptiveAvgPool2d 7": ("AdaptiveAvgPool2d(7)", "(8, 64, 56, 56)"),
    "AdaptiveAvgPool3d": ("AdaptiveAvgPool3d(4)", "(2, 16, 32, 32, 32)"),
    "AdaptiveMaxPool2d": ("AdaptiveMaxPool2d(7)", "(8, 64, 56, 56)"),
    "Dropout": ("Dropout(0.1)", "(8, 512, 768)"),
    "Dropout2d": ("Dropout2d(0.1)", "(8, 64, 56, 56)"),
    "AlphaDropout": ("AlphaDropout(0.1)", "(8, 512, 768)"),
    "PReLU": ("PReLU(64)", "(8, 64, 56, 56)"),
    "RReLU": ("RReLU()", "(8, 64, 56, 56)"),
    "GLU": ("GLU(1)", "(8, 64, 56, 56)"),
    "Threshold": ("Threshold(0.1, 0.0)", "(8, 64, 56, 56)"),
    "GELU tanh": ("GELU('tanh')", "(8, 512, 768)"),
    "Softmax2d": ("Softmax2d()", "(8, 64, 56, 56)"),
    "Softmin": ("Softmin(1)", "(8, 64, 56, 56)"),
    "Upsample nearest": ("Upsample(scale_factor=2)", "(8, 64, 28, 28)"),
    "Upsample nearest 3d": ("Upsample(scale_factor=2)", "(2, 16, 16, 16, 16)"),
    "Upsample bilinear": ("Upsample(scale_factor=2, mode='bilinear')", "(8, 64, 28, 28)"),
    "Upsample aligned": ("Upsample(scale_factor=2, mode='bilinear', align_corners=True)", "(8, 64, 28, 28)"),
    "Upsample bicubic": ("Upsample(scale_factor=2, mode='bicubic')", "(8, 64, 28, 28)"),
    "Upsample linear": ("Upsample(scale_factor=2, mode='linear')", "(8, 64, 1000)"),
    "Upsample trilinear": ("Upsample(scale_factor=2, mode='trilinear')", "(2, 16, 16, 16, 16)"),
    "PixelShuffle": ("PixelShuffle(2)", "(8, 64, 28, 28)"),
    "PixelUnshuffle": ("PixelUnshuffle(2)", "(8, 16, 56, 56)"),
    "ChannelShuffle": ("ChannelShuffle(2)", "(8, 16, 56, 56)"),
    "Unfold": ("Unfold(3)", "(8, 16, 56, 56)"),
    "Fold": ("Fold(56, 2, stride=2)", "(8, 64, 784)"),
    "ReflectionPad1d": ("ReflectionPad1d(3)", "(8, 64, 1000)"),
    "ReflectionPad2d": ("ReflectionPad2d(3)", "(8, 64, 56, 56)"),
    "ReplicationPad2d": ("ReplicationPad2d(3)", "(8, 64, 56, 56)"),
    "ZeroPad2d": ("ZeroPad2d(3)", "(8, 64, 56, 56)"),
    "ConstantPad3d": ("ConstantPad3d(1, 0.0)", "(2, 16, 32, 32, 32)"),
    "CircularPad2d": ("CircularPad2d(3)", "(8, 64, 56, 56)"),
    "Flatten": ("Flatten()", "(8, 64, 56, 56)"),
    "weight norm": ("utils.parametrizations.weight_norm(nn.Linear(768, 768))", "(8, 768)"),
    "spectral norm": ("utils.parametrizations.spectral_norm(nn.Linear(768, 768))", "(8, 768)"),
    "TransformerEncoderLayer": ("TransformerEncoderLayer(256, 4, 512, batch_first=True)", "(8, 128, 256)"),
    "TransformerEncoderLayer norm first": (
        "TransformerEncoderLayer(256, 4, 512, batch_first=True, norm_first=True, activation='gelu')",
        "(8, 128, 256)",
    ),
}


def _attention() -> Iterator[tuple[str, str]]:
    call = "F.scaled_dot_product_attention"
    for tail, dtype in DTYPES.items():
        for size in (32, 64, 80, 96, 128, 256):
            for rows in (64, 1024):
                made = f"q, k, v = (T(2, 8, {rows}, {size}, dtype={dtype}) for _ in range(3))"
                for name, more in {
                    "": "",
                    " causal": ", is_causal=True",
                    " dropout": ", dropout_p=0.1",
                    " mask": f", attn_mask=T({rows}, {rows}, dtype={dtype}, grad=False)",
                    " bool mask": f", attn_mask=I({rows}, {rows}, dtype=torch.bool)",
                }.items():
                    yield f"attention {size} x {rows}{name}{tail}", f"{made}; y = {call}(q, k, v{more}); B(y)"
        grouped = f"q = T(2, 8, 256, 64, dtype={dtype}); k, v = (T(2, 2, 256, 64, dtype={dtype}) for _ in range(2))"
        yield f"attention grouped{tail}", f"{grouped}; y = {call}(q, k, v, enable_gqa=True); B(y)"
        three = f"q, k, v = (T(16, 256, 64, dtype={dtype}) for _ in range(3))"
        yield f"attention 3d{tail}", f"{three}; y = {call}(q, k, v); B(y)"


def _listed() -> Iterator[tuple[str, str]]:
    for tail, dtype in DTYPES.items():
        for line in LISTED.read_text().splitlines():
            name, _, code = line.partition(": ")
            yield f"{name}{tail}", code.replace("DT", dtype)
