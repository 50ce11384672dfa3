"""Built kernels: kernels that a library compiles on first use, and whose memory is known without that.

DeepSpeed's FusedAdam makes its states in Python, and its kernel changes parameters and states in place
(deepspeed/ops/adam/fused_adam.py, csrc/adam/multi_tensor_adam.cu). It allocates nothing. Nor does the kernel of
DeepSpeedCPUAdam (cpu_adam.py, csrc/adam/cpu_adam.cpp), which would read bytes of the host that do not exist.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, final

import torch

from elbowroom.capture.arrivals import Changing

if TYPE_CHECKING:
    from elbowroom.capture.virtual.mode import VirtualMode

SAID = "DeepSpeed's kernel {} (it is not built: it changes what it is given, and allocates nothing)"


@final
class BuiltKernels:
    """Replacement of DeepSpeed's builder of kernels while the device is on.

    Args:
        mode: mode of the virtual device.
    """

    def __init__(self, mode: VirtualMode) -> None:
        self._mode = mode
        of_host = dict.fromkeys(("create_adam", "destroy_adam"), lambda *_numbers: 0)
        of_host |= dict.fromkeys(("adam_update", "adam_rollback"), self._adam_of_host)
        self._known = {
            "fused_adam": SimpleNamespace(multi_tensor_adam=self._adam),
            "cpu_adam": SimpleNamespace(**of_host),
        }

    def changes(self) -> dict[str, Changing]:
        """Return the changes by module."""
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

    def _adam_of_host(self, *given: Any) -> int:
        """Parameter, gradient and both states come after eight numbers."""
        self._mode.ledger.remark("unsupported", SAID.format("adam_update"))
        parameter, _gradient, *states = (each for each in given if isinstance(each, torch.Tensor))
        for tensor in (parameter, *states):
            self._mode.values.drop(tensor)
        return 0
