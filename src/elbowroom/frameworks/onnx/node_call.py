"""Node call: one node of a graph with what is known of its inputs; converters make a function of tensors of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from elbowroom.errors import CaptureError
from elbowroom.frameworks.onnx.onnx_graph import shortest
from elbowroom.trace import RemarkKind

Value = Tensor | np.ndarray | None
"""Input of a node: a tensor of the device without bytes, an array that is known, or nothing."""
Function = Callable[..., Any]
Notes = Callable[[RemarkKind, str], None]
"""Called with the kind and the text of what the answer has to say."""


@dataclass(slots=True, kw_only=True)
class NodeCall:
    """One node, as its converter sees it.

    Attributes:
        op: name of its op.
        opset: version of the ops.
        path: name of the module that it is part of.
        attributes: attributes of the node.
        names: names of its inputs.
        values: its inputs.
        outputs: number of outputs, the last ones that nobody uses left out.
        batch: samples of a batch as the graph fixes it, and as it is wanted; equal if nothing changes.
        taken: places of the inputs that the function gets, in their order.
    """

    op: str
    opset: int
    path: str
    attributes: Mapping[str, Any]
    names: Sequence[str]
    values: Sequence[Value]
    outputs: int = 1
    batch: tuple[int, int] = (1, 1)
    taken: list[int] = field(default_factory=list[int])

    def take(self, *places: int) -> None:
        """Have the function get these inputs as tensors."""
        self.taken = list(places)

    def value(self, place: int) -> Value:
        """Return an input; None if it is left out."""
        return self.values[place] if place < len(self.values) else None

    def has(self, place: int) -> bool:
        """Return whether an input is there."""
        return self.value(place) is not None

    def tensor(self, place: int) -> Tensor:
        """Return an input that is a tensor of the device, or would become one."""
        found = self.value(place)
        if found is None:
            raise self.refused(f"no input {place}")
        return found if isinstance(found, Tensor) else tensor_of(found).to("meta")

    def parameter(self, place: int) -> nn.Parameter:
        """Return an input that is a weight.

        Raises:
            CaptureError: it is computed by other nodes.
        """
        found = self.value(place)
        if is_weight(found) and not isinstance(found, nn.Parameter):
            found = derived(found, found.shape, lambda array: array)
        if not isinstance(found, nn.Parameter):
            raise self.refused(f"input {place} ({self.names[place]}), which no weight of the file is")
        return found

    def is_parameter(self, place: int) -> bool:
        """Return whether an input is a weight."""
        return isinstance(self.value(place), nn.Parameter)

    def array(self, place: int, attribute: str = "") -> np.ndarray | None:
        """Return numbers that are an input in newer opsets, and an attribute in older ones; None if neither is there.

        Raises:
            CaptureError: they are computed from tensors of the device.
        """
        if attribute and attribute in self.attributes:
            return np.asarray(self.attributes[attribute])
        found = self.value(place)
        if isinstance(found, Tensor):
            raise self.refused(f"{attribute or f'input {place}'} computed from what the network computes")
        return found

    def ints(self, place: int, attribute: str = "") -> list[int] | None:
        """Return whole numbers, as `array` does."""
        found = self.array(place, attribute)
        return None if found is None else [int(each) for each in found.reshape(-1)]

    def number(self, place: int, attribute: str = "", default: float | None = None) -> float | None:
        """Return one number, as `array` does."""
        found = self.array(place, attribute)
        return default if found is None or not found.size else _number(found)

    def of(self, attribute: str, default: Any) -> Any:
        """Return an attribute."""
        return self.attributes.get(attribute, default)

    def refused(self, what: str) -> CaptureError:
        """Make the error for a form of an op that is not converted."""
        return CaptureError(
            f"{self.op} ({self.path or 'without a name'}): given {what}; allowed are the forms that exporters write "
            "for networks that train; export the graph with another opset, or simplify it with onnxsim"
        )


def scalar(value: Value) -> float | None:
    """Return the number of an array with one element that is known; None for anything else."""
    return _number(value) if isinstance(value, np.ndarray) and value.size == 1 else None


def _number(array: np.ndarray) -> float:
    first = float(array.reshape(-1)[0])
    return shortest(first) if array.dtype == np.float32 else first


def tensor_of(array: np.ndarray) -> Tensor:
    """Return an array as a tensor; bfloat16 is read as what it is."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    array = np.ascontiguousarray(array).reshape(array.shape)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype of torch for NumPy's spelling of it."""
    return torch.bool if name == "bool" else getattr(torch, name)


class Source(NamedTuple):
    """Where the numbers of a weight come from.

    Attributes:
        names: the stored arrays.
        numbers: makes the weight's numbers of these arrays.
        trains: whether it is trained.
    """

    names: tuple[str, ...]
    numbers: Callable[..., Tensor]
    trains: bool


SOURCES = WeakTensorKeyDictionary()
"""Source of each weight without bytes, and of each tensor that is made of weights alone."""


def weight_like(like: Tensor, shape: Sequence[int], source: Source) -> nn.Parameter:
    """Make a weight without bytes, with the dtype of another tensor, and note where its numbers come from."""
    empty = torch.empty(tuple(shape), dtype=like.dtype, device="meta")
    made = nn.Parameter(empty, requires_grad=source.trains and empty.is_floating_point())
    SOURCES[made] = source
    return made


def is_weight(value: Value) -> TypeGuard[Tensor]:
    """Return whether a value is a weight, or made of weights alone."""
    return isinstance(value, Tensor) and value in SOURCES


def derived(weight: Tensor, shape: Sequence[int], numbers: Callable[[Tensor], Tensor]) -> nn.Parameter:
    """Make a weight whose numbers are made of those of another one."""
    base = SOURCES[weight]
    return weight_like(weight, shape, base._replace(numbers=lambda *arrays: numbers(base.numbers(*arrays))))


def stored(call: NodeCall, place: int) -> Tensor:
    """Return a buffer without bytes for an input that is a weight, such as running statistics."""
    weight = call.parameter(place)
    made = torch.empty(weight.shape, dtype=weight.dtype, device="meta")
    SOURCES[made] = SOURCES[weight]
    return made


def note_source(made: Tensor, of: Sequence[Value], run: Callable[..., Tensor]) -> None:
    """Note that a tensor is made of weights and known arrays alone, by a function of them."""
    sources = [SOURCES[each] if isinstance(each, Tensor) else None for each in of]
    names = tuple(name for each in sources if each is not None for name in each.names)

    def numbers(*arrays: Tensor) -> Tensor:
        left, given = list(arrays), list[Tensor]()
        for value, source in zip(of, sources, strict=True):
            if source is None:
                assert isinstance(value, np.ndarray)
                given.append(tensor_of(value))
            else:
                own, left = left[: len(source.names)], left[len(source.names) :]
                given.append(source.numbers(*own))
        return run(*given)

    SOURCES[made] = Source(names, numbers, any(each.trains for each in sources if each is not None))
