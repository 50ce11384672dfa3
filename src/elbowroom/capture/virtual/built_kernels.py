"""Kernels that a library builds with CUDA's compiler when they are first used, and whose memory is known without.

DeepSpeed's FusedAdam is such a one: its states are made in Python, and its kernel changes parameters and states in
place (deepspeed/ops/adam/fused_adam.py, csrc/adam/multi_tensor_adam.cu). It allocates nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

from elbowroom.capture.arrivals import Changing

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode

SAID = "DeepSpeed's kernel {} (it is not built: it changes what it is given, and allocates nothing)"


@final
class BuiltKernels:
    """Stands in the place of DeepSpeed's builder of kernels while the device is on.

    Args:
        mode: of the virtual device.
    """

    def __init__(self, mode: VirtualMode) -> None:
        self._mode = mode
        self._known = {"fused_adam": SimpleNamespace(multi_tensor_adam=self._adam)}

    def changes(self) -> dict[str, Changing]:
        """What is changed, by module."""
        return {
            "deepspeed.ops.op_builder.builder": lambda module: [
                (module.OpBuilder, "load", self._loading(module.OpBuilder.load))
            ]
        }

    def _loading(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def load(builder: Any, *args: Any, **named: Any) -> Any:
            known = self._known.get(builder.name)
            return build(builder, *args, **named) if known is None else known

        return load

    def _adam(self, _chunk: int, _overflow: Any, lists: list[list[Any]], *_numbers: Any) -> None:
        """Gradients are read; parameters and both states are changed."""
        _, *changed = lists
        given, written = ([each for of_one in group for each in of_one] for group in (lists, changed))
        self._mode.launch("deepspeed.multi_tensor_adam", given, written)
        self._mode.ledger.remark("unsupported", SAID.format("multi_tensor_adam"))
