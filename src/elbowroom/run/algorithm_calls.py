"""Switching: the algorithms of a plan, each set around a call of its layer and around that call's backward."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, final

from torch import Tensor, nn

from elbowroom.capture.layers import BACKWARD, FORWARD, Chosen, switchable
from elbowroom.engine.algorithm_switches import CHOICES, switched
from elbowroom.errors import InvalidPlan
from elbowroom.plan import Plan
from elbowroom.trace import Trace


def chosen_of(trace: Trace, plan: Plan) -> dict[str, list[Chosen]]:
    """By path of the layer, what its calls of a step run with.

    Raises:
        InvalidPlan: an algorithm that no switch of torch chooses.
    """
    names = {algorithm.op: algorithm.choice for algorithm in plan.algorithms}
    allowed = CHOICES["cuda" if trace.device.startswith("cuda") else "cpu"]
    for op, name in names.items():
        if name not in allowed:
            raise InvalidPlan(
                f"the plan runs op {op} {trace.ops[op].name} with {name!r}; a run chooses among {', '.join(allowed)}: "
                "plan from a trace that `within` recorded, or leave 'algorithm' out of allow"
            )
    first, end = trace.steps[-1]
    found: dict[str, list[Chosen]] = {}
    for path in dict.fromkeys(trace.ops[op].module for op in names):
        mine = [i for i in range(first, end) if trace.ops[i].module == path]
        forward = [names.get(i) for i in mine if trace.ops[i].name == FORWARD]
        backward = [names.get(i) for i in mine if trace.ops[i].name == BACKWARD][::-1]
        backward += [None] * (len(forward) - len(backward))
        found[path] = [Chosen(*pair) for pair in zip(forward, backward, strict=False)]
    return found


@final
class Switching:
    """The hooks that carry it out, on the layers of a module.

    Args:
        root: the outermost module.
        chosen: by path, what each call in a step runs with; a call beyond them runs as the training has set it.
    """

    def __init__(self, root: nn.Module, chosen: Mapping[str, list[Chosen]]) -> None:
        layers = switchable(root)
        self._chosen = {path: made for path, made in chosen.items() if path in layers}
        self._calls = dict.fromkeys(self._chosen, 0)
        self._set = ExitStack()
        self._nodes: list[Any] = []
        self._handles: list[Any] = []
        for path in self._chosen:
            layer = layers[path]
            self._handles += [
                layer.register_forward_pre_hook(self._entering(path)),
                layer.register_forward_hook(self._leaving(path), always_call=True),
            ]

    def begin_step(self) -> None:
        """A step begins: calls are counted anew."""
        self._set.close()
        self._calls = dict.fromkeys(self._chosen, 0)
        self._forget_nodes()

    def close(self) -> None:
        """Take the hooks out, and put back what is set."""
        self._set.close()
        self._forget_nodes()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _of_call(self, path: str) -> Chosen:
        made, k = self._chosen[path], self._calls[path]
        return made[k] if k < len(made) else Chosen(None, None)

    def _entering(self, path: str) -> Any:
        def enter(_layer: nn.Module, given: Any) -> None:
            name = self._of_call(path).forward
            if name is not None and given and isinstance(given[0], Tensor):
                self._set.enter_context(switched(given[0].device, name))

        return enter

    def _leaving(self, path: str) -> Any:
        def leave(_layer: nn.Module, _given: Any, output: Any) -> None:
            self._set.close()
            made = self._of_call(path)
            self._calls[path] += 1
            if made.backward is not None and isinstance(output, Tensor):
                self._around(output, made.backward)

        return leave

    def _around(self, output: Tensor, name: str) -> None:
        """Set a choice while the node of a convolution runs backward."""
        node = output.grad_fn
        if node is None or not node.name().startswith("ConvolutionBackward"):
            return
        device = output.device

        def before(_gradients: Any) -> None:
            self._set.enter_context(switched(device, name))

        def after(_inputs: Any, _outputs: Any) -> None:
            self._set.close()

        self._nodes += [node.register_prehook(before), node.register_hook(after)]

    def _forget_nodes(self) -> None:
        for handle in self._nodes:
            handle.remove()
        self._nodes = []
