"""Graph training: the loss, the optimizer and the batches with which a graph trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional

from elbowroom.errors import UsageError
from elbowroom.frameworks.onnx.graph_model import GraphModel
from elbowroom.frameworks.onnx.node_call import torch_dtype

Optimizer = torch.optim.Optimizer
OPTIMIZERS: Mapping[str, Callable[[Sequence[nn.Parameter]], Optimizer]] = {
    "adamw": lambda weights: torch.optim.AdamW(weights, lr=1e-3),
    "adam": lambda weights: torch.optim.Adam(weights, lr=1e-3),
    "sgd": lambda weights: torch.optim.SGD(weights, lr=0.1),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "rmsprop": lambda weights: torch.optim.RMSprop(weights, lr=1e-3),
    "adagrad": lambda weights: torch.optim.Adagrad(weights, lr=1e-2),
    "adadelta": lambda weights: torch.optim.Adadelta(weights),
    "nadam": lambda weights: torch.optim.NAdam(weights),
    "adafactor": lambda weights: torch.optim.Adafactor(weights),
}
"""Optimizers by name, with PyTorch's defaults; "momentum" is SGD with it."""
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "bce": functional.binary_cross_entropy,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "sum": lambda output, _: output.sum(),
}
BY_CLASS = ("cross_entropy", "nll")
"""Losses whose targets are classes."""
PRECISIONS: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}


def optimizer_of(name: str, model: nn.Module) -> Optimizer:
    """Return an optimizer of the weights that train.

    Raises:
        UsageError: no weight trains.
    """
    weights = [each for each in model.parameters() if each.requires_grad]
    if not weights:
        raise UsageError(
            "given a graph without weights that train; allowed is one with stored arrays of floats; leave out "
            "--frozen, or export the model with its weights (export_params=True)"
        )
    return OPTIMIZERS[name](weights)


def batch_of(model: GraphModel) -> list[Tensor]:
    """Return a batch on the host: whole numbers are ones, which every vocabulary has."""
    dtypes = {each.name: torch_dtype(each.dtype) for each in model.graph.inputs}
    made: list[Tensor] = []
    for name, shape in model.input_shapes.items():
        dtype = dtypes[name]
        made.append(torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype))
    return made


@final
class GraphLosses:
    """The loss of a graph: the sum of one loss for each output.

    By default it follows from the output: "nll" behind LogSoftmax, "bce" behind Sigmoid. An output with more than one
    class has "cross_entropy". Classes are the second dimension, as in [N, C] and [N, C, H, W]. Where the inputs are
    whole numbers, which stand for tokens, they are the last one, as in [N, T, C]. All others have "mse".

    Args:
        model: the graph.
        asked: name of a loss, or "auto".
    """

    def __init__(self, model: GraphModel, asked: str = "auto") -> None:
        self._tokens = not any(torch_dtype(each.dtype).is_floating_point for each in model.graph.inputs)
        self._outputs = [model.output_values[name] for name in model.output_names]
        ops = [model.output_ops.get(name, "") for name in model.output_names]
        self.kinds = [
            self._kind(output, op) if asked == "auto" else asked for output, op in zip(self._outputs, ops, strict=True)
        ]

    def targets(self) -> list[Tensor]:
        """Return the targets on the host: classes for losses of classes, else zeros in the shape of the output."""
        return [
            torch.zeros(self._of_classes(output), dtype=torch.int64)
            if kind in BY_CLASS
            else torch.zeros(output.shape, dtype=output.dtype)
            for kind, output in zip(self.kinds, self._outputs, strict=True)
        ]

    def __call__(self, outputs: Any, targets: Sequence[Tensor]) -> Tensor:
        """Return the loss of what the graph answered."""
        given = outputs if isinstance(outputs, tuple) else (outputs,)
        losses = [self._loss(*each) for each in zip(self.kinds, given, targets, strict=True)]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _kind(self, output: Tensor, op: str) -> str:
        by_op = {"LogSoftmax": "nll", "Sigmoid": "bce"}
        classes = 0 if output.dim() < 2 else output.shape[-1 if self._tokens else 1]
        return by_op.get(op, "cross_entropy" if classes > 1 else "mse")

    def _of_classes(self, output: Tensor) -> tuple[int, ...]:
        return tuple(output.shape[:-1] if self._tokens else (output.shape[0], *output.shape[2:]))

    def _loss(self, kind: str, output: Tensor, target: Tensor) -> Tensor:
        if kind in BY_CLASS and self._tokens and output.dim() > 2:
            output, target = output.reshape(-1, output.shape[-1]), target.reshape(-1)
        return LOSSES[kind](output, target)


def train(
    model: nn.Module,
    optimizer: Optimizer,
    inputs: Sequence[Tensor],
    targets: Sequence[Tensor],
    losses: Callable[[Any, Sequence[Tensor]], Tensor],
    *,
    device: str = "cuda",
    steps: int = 3,
    amp: str = "",
) -> None:
    """Train for some steps, as a plain loop does: a batch is moved to the device, and the gradients begin as None.

    Args:
        model: the model, on the device.
        optimizer: an optimizer of its weights.
        inputs: a batch on the host.
        targets: targets on the host.
        losses: makes the loss of the outputs and the targets.
        device: where it trains.
        steps: number of steps.
        amp: "bf16" or "fp16" for autocast; "" for none.
    """
    kind = device.partition(":")[0]
    scaler = torch.amp.GradScaler(kind, enabled=amp == "fp16")
    for _ in range(steps):
        batch = [each.to(device) for each in inputs]
        wanted = [each.to(device) for each in targets]
        optimizer.zero_grad()
        with torch.autocast(kind, dtype=PRECISIONS.get(amp), enabled=bool(amp)):
            loss = losses(model(*batch), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
