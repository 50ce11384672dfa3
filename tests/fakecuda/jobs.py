"""Builds and trains one case of the rig's corpus (tests/data/rig/README.md describes it)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

HERE = Path(__file__).parent
STATIC_DTYPE = {"bf16": torch.bfloat16, "fp16": torch.float16}
Spec = dict[str, Any]


def build(model: Spec) -> torch.nn.Module:
    """The model of a spec, as its library makes it."""
    library, kwargs = model["lib"], model.get("kwargs", {})
    if library == "transformers":
        return _transformer(model)
    if library == "timm":
        made = importlib.import_module("timm").create_model(model["ctor"], pretrained=False, **kwargs)
        if model.get("gradient_checkpointing"):
            made.set_grad_checkpointing(True)
        return made
    if library == "models":
        sys.path.insert(0, str(HERE))
    homes = {
        "torchvision": "torchvision.models",
        "diffusers": "diffusers",
        "smp": "segmentation_models_pytorch",
        "monai": "monai.networks.nets",
        "models": "models",
    }
    found: Any = importlib.import_module(homes[library])
    for part in model["ctor"].split("."):
        found = getattr(found, part)
    made = found(**kwargs)
    if library == "diffusers" and model.get("gradient_checkpointing"):
        made.enable_gradient_checkpointing()
    return made


def _transformer(model: Spec) -> torch.nn.Module:
    transformers: Any = importlib.import_module("transformers")
    config = getattr(transformers, model["config_cls"])(**model["config"])
    if model.get("attn"):
        config._attn_implementation = model["attn"]
    made = getattr(transformers, model["ctor"])(config)
    if model.get("gradient_checkpointing"):
        made.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return made


def tensor(spec: Spec, given: Spec, dtype: torch.dtype | None) -> Any:
    if "value" in given:
        return given["value"]
    wanted = getattr(torch, given["dtype"])
    if wanted.is_floating_point and dtype is not None:
        wanted = dtype
    made = torch.zeros(given["shape"], dtype=wanted)
    if spec.get("memory_format") == "channels_last" and made.dim() == 4:
        made = made.contiguous(memory_format=torch.channels_last)
    return made


def loss_of(kind: str, out: Any, y: Any) -> Any:
    if kind == "out.loss":
        return out.loss
    if kind == "sum_dict":
        return sum(out.values())
    if hasattr(out, "sample"):
        out = out.sample
    if isinstance(out, dict) and kind != "seg_aux":
        out = out.get("out", next(iter(out.values())))
    return _plain_loss(kind, out, y)


def _plain_loss(kind: str, out: Any, y: Any) -> Any:
    plain: dict[str, Callable[[], Any]] = {
        "ce": lambda: F.cross_entropy(out, y),
        "mse": lambda: F.mse_loss(out, y),
        "bce": lambda: F.binary_cross_entropy_with_logits(out, y),
        "token_ce": lambda: F.cross_entropy(out.flatten(0, 1), y.flatten()),
        "seg_aux": lambda: F.cross_entropy(out["out"], y) + 0.5 * F.cross_entropy(out["aux"], y),
        "inception": lambda: F.cross_entropy(out.logits, y) + 0.4 * F.cross_entropy(out.aux_logits, y),
        "googlenet": lambda: (
            F.cross_entropy(out.logits, y)
            + 0.3 * (F.cross_entropy(out.aux_logits1, y) + F.cross_entropy(out.aux_logits2, y))
        ),
        "mean": lambda: _first(out).float().mean(),
        "dice_ce": lambda: _dice_ce(out, y),
    }
    return plain[kind]()


def _first(out: Any) -> Any:
    if hasattr(out, "last_hidden_state"):
        return out.last_hidden_state
    return out[0] if isinstance(out, tuple | list) else out


def _dice_ce(out: Any, y: Any) -> Any:
    from monai.losses import DiceCELoss  # pyright: ignore[reportPrivateImportUsage]

    return DiceCELoss(to_onehot_y=True, softmax=True)(out, y)


def optimizer(given: Spec, parameters: list[Any]) -> torch.optim.Optimizer:
    if given["name"] == "transformers.Adafactor":
        return importlib.import_module("transformers").Adafactor(parameters, **given.get("kwargs", {}))
    return getattr(torch.optim, given["name"])(parameters, **given.get("kwargs", {}))


class Job:
    """A case, ready to train: `step()` does one step as the rig's script does, locals dying in the same order."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        precision = spec.get("precision", "fp32")
        dtype = STATIC_DTYPE.get(precision)
        self.device = torch.device("cuda")
        torch.backends.cudnn.benchmark = bool(spec.get("cudnn_benchmark"))
        self.nets = [self._net(each, dtype) for each in spec.get("gan", [spec.get("model")])]
        for prefix in spec.get("freeze", []):
            for name, parameter in self.nets[0].named_parameters():
                if name.startswith(prefix):
                    parameter.requires_grad_(False)
        self.parameters = [p for net in self.nets for p in net.parameters()]
        self.optimizers = [optimizer(spec["optim"], [p for p in n.parameters() if p.requires_grad]) for n in self.nets]
        self.scaler = torch.amp.GradScaler("cuda", enabled=precision == "amp_fp16")
        self.amp = precision.startswith("amp")
        self.amp_dtype = torch.float16 if precision == "amp_fp16" else torch.bfloat16
        self.host = {name: tensor(spec, each, dtype) for name, each in spec["inputs"].items()}
        target = spec.get("target")
        self.host_y = tensor(spec, target, dtype if spec["loss"] in ("mse", "bce") else None) if target else None
        self.x: dict[str, Any] = {}
        self.y: Any = None
        self.kept: dict[str, Any] = {}
        self.labels: tuple[Any, Any] | None = None
        if spec.get("input_mode", "static") == "static":
            self.feed()

    def _net(self, model: Spec, dtype: torch.dtype | None) -> torch.nn.Module:
        net = build(model)
        net = net.to(device=self.device, dtype=dtype) if dtype else net.to(device=self.device)
        if self.spec.get("memory_format") == "channels_last":
            net.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        if "set_inplace" in self.spec:
            for module in net.modules():
                if hasattr(module, "inplace"):
                    module.inplace = self.spec["set_inplace"]  # pyright: ignore[reportAttributeAccessIssue]
        net.train()
        return net

    def feed(self) -> None:
        self.x = {k: v.to("cuda") if torch.is_tensor(v) else v for k, v in self.host.items()}
        self.y = self.host_y.to("cuda") if self.host_y is not None else None

    def step(self) -> None:
        (self._gan_step if "gan" in self.spec else self._train_step)()

    def _call(self, net: Any) -> Any:
        return net(**self.x) if self.spec.get("call") == "kwargs" else net(*self.x.values())

    def _autocast(self) -> Any:
        return torch.autocast("cuda", self.amp_dtype, enabled=self.amp)

    def _train_step(self) -> None:
        spec, accumulate, clip = self.spec, self.spec.get("accum", 1), self.spec.get("clip")
        if spec.get("input_mode") == "fresh":
            self.feed()
        for _ in range(accumulate):
            with self._autocast():
                out = self._call(self.nets[0])
                loss = loss_of(spec["loss"], out, self.y)
            if accumulate > 1:
                loss = loss / accumulate
            self.scaler.scale(loss).backward()
            if accumulate > 1 and spec.get("loop") != "inline":
                del out, loss
        for each in self.optimizers:
            if clip:
                self.scaler.unscale_(each)
                torch.nn.utils.clip_grad_norm_(self.parameters, clip)
            self.scaler.step(each)
            self.scaler.update()
        for each in self.optimizers:
            each.zero_grad(set_to_none=True)
        if spec.get("loop") == "inline":
            self.kept["out"], self.kept["loss"] = out, loss  # pyright: ignore[reportPossiblyUnboundVariable]

    def _gan_step(self) -> None:
        (generator, judge), (of_generator, of_judge) = self.nets, self.optimizers
        bce = F.binary_cross_entropy_with_logits
        if self.labels is None:
            one = torch.ones(self.x["real"].shape[0], device="cuda")
            self.labels = (one, torch.zeros_like(one))
            del one
        judge.zero_grad(set_to_none=True)
        with self._autocast():
            on_real = bce(judge(self.x["real"]), self.labels[0])
        self.scaler.scale(on_real).backward()
        with self._autocast():
            fake = generator(self.x["z"])
            on_fake = bce(judge(fake.detach()), self.labels[1])
        self.scaler.scale(on_fake).backward()
        self.scaler.step(of_judge)
        self.scaler.update()
        generator.zero_grad(set_to_none=True)
        with self._autocast():
            fooled = bce(judge(fake), self.labels[0])
        self.scaler.scale(fooled).backward()
        self.scaler.step(of_generator)
        self.scaler.update()
        judge.zero_grad(set_to_none=True)
        generator.zero_grad(set_to_none=True)
