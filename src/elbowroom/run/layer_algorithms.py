"""Layer choices: what one step after the other does about the algorithms of its convolutions.

A step that is recorded notes the calls of its layers; each kind of call is measured once, when the step is through
(capture/layers.py), and the trace offers what was measured. A step under a plan that chooses algorithms sets them
(algorithm_calls.py). With other algorithms the numbers are those of a training that sets the same switches by itself:
equal bits to the training as it is are what one gives up by allowing them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

from torch import nn

from elbowroom.capture.layers import Cost, LayerCall, LayerWatch, measure, with_offers
from elbowroom.run.algorithm_calls import Chosen, Switching
from elbowroom.trace import Trace

Choices = Mapping[str, list[Chosen]]
"""By path of the layer, what its calls of a step run with."""


@final
class LayerChoices:
    """The choices of a run.

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
        """A step begins.

        Args:
            root: its outermost module.
            chosen: what its plan chooses.
            recorded: whether it is recorded, so that a trace comes of it.
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
        """The step is not what was expected: the rest of it runs as the training has set it."""
        self._stop_switching()

    def offered(self, trace: Trace) -> Trace:
        """The trace of the step that was recorded last, with what its convolutions could run with."""
        if self._watch is None or any(op.choices for op in trace.ops):
            return trace
        calls = self._watch.calls
        for call in {each for made in calls.values() for each in made} - self._costs.keys():
            self._costs[call] = measure(call)
        return with_offers(trace, calls, self._costs, self._chosen)

    def close(self) -> None:
        """The run is over: everything is set as it was."""
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
