"""Algorithms of convolutions: measures them, and sets those that a plan chooses.

A recorded step notes the calls of its layers. Each kind of call is measured once, after the step (capture/layers.py).
The trace then offers what was measured. A step under a plan that chooses algorithms sets each one around a call of its
layer. It sets it around the backward of that call too. The numbers are then those of a training that sets the same
switches by itself: with "algorithm" in `allow`, bits are no longer equal to those of keeping everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, final

from torch import Tensor, nn

from elbowroom.capture.layers import (
    BACKWARD,
    FORWARD,
    Chosen,
    Cost,
    LayerCall,
    LayerWatch,
    measure,
    switchable,
    with_offers,
)
from elbowroom.engine.conv_backends import CHOICES, switched
from elbowroom.errors import InvalidPlan
from elbowroom.plan import Plan
from elbowroom.trace import Trace

Choices = Mapping[str, list[Chosen]]
"""Path of a layer -> the algorithms of its calls in a step, in order."""


def chosen_of(trace: Trace, plan: Plan) -> dict[str, list[Chosen]]:
    """Return, by path of the layer, the algorithms that a plan chooses for its calls in a step.

    Raises:
        InvalidPlan: no switch of torch chooses one of the algorithms.
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
    """Hooks on the layers of a module that set the chosen algorithms.

    Args:
        root: the outermost module.
        chosen: by path, the algorithm of each call in a step; further calls run as the training has set them.
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
        """Begin a step: count calls anew."""
        self._set.close()
        self._calls = dict.fromkeys(self._chosen, 0)
        self._forget_nodes()

    def close(self) -> None:
        """Take the hooks out, and restore what they have set."""
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
        """Set an algorithm while the node of a convolution runs backward."""
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


@final
class LayerChoices:
    """Algorithms of the layers in a run.

    Args:
        wanted: whether plans may choose algorithms.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._costs: dict[LayerCall, tuple[Cost, ...]] = {}
        self._watch: LayerWatch | None = None
        self._switching: Switching | None = None
        self._root: nn.Module | None = None
        self._chosen: Choices = {}

    def begin(self, root: nn.Module | None, chosen: Choices, *, recorded: bool) -> None:
        """Begin a step.

        Args:
            root: its outermost module.
            chosen: the algorithms that its plan chooses.
            recorded: whether the step is recorded, to make a trace of it.
        """
        self._stop_watching()
        if not self.wanted or root is None:
            return
        if self._switching is None or self._root is not root or self._chosen is not chosen:
            self._stop_switching()
            self._root, self._chosen = root, chosen
            self._switching = Switching(root, chosen) if chosen else None
        if self._switching is not None:
            self._switching.begin_step()
        if recorded:
            self._watch = LayerWatch(root)

    def differs(self) -> None:
        """Run the rest of a step that is not the expected one as the training has set it."""
        self._stop_switching()

    def offered(self, trace: Trace) -> Trace:
        """Return the trace of the last recorded step, with the algorithms that its convolutions could run with."""
        if self._watch is None or any(op.choices for op in trace.ops):
            return trace
        calls = self._watch.calls
        for call in {each for made in calls.values() for each in made} - self._costs.keys():
            self._costs[call] = measure(call)
        return with_offers(trace, calls, self._costs, self._chosen)

    def close(self) -> None:
        """Restore all settings at the end of the run."""
        self._stop_watching()
        self._stop_switching()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._watch = None

    def _stop_switching(self) -> None:
        if self._switching is not None:
            self._switching.close()
        self._switching, self._root, self._chosen = None, None, {}
