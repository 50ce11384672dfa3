"""Options of planners: the keyword parameters of a planner's function, and checks of the values given for them.

A knob is a whole number, true or false, or one of a few words or numbers. It may also be None, if its type allows
that. Each planner explains its None; often it means: tuned by simulation. A knob whose name ends in _bytes may be given
as text such as "8MiB".
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple, cast

from elbowroom.errors import UsageError
from elbowroom.files.field_rules import shown
from elbowroom.plan import Plan
from elbowroom.planners.problem import Planner, Problem
from elbowroom.units import parse_bytes

Value = int | str | bool | None
WORDS: Mapping[str, Value] = {"none": None, "true": True, "false": False}


class PlannerKnob(NamedTuple):
    """One knob of a planner.

    Attributes:
        name: its name.
        default: its value if none is given.
        choices: allowed values other than numbers and None.
        is_number: whether any whole number from 0 on is allowed.
        is_optional: whether None is allowed.
    """

    name: str
    default: Value
    choices: tuple[Value, ...]
    is_number: bool
    is_optional: bool

    @property
    def allowed(self) -> str:
        """Allowed values in words, such as "a whole number from 0 on, or None"."""
        size = " or a size such as 8MiB" if self.name.endswith("_bytes") else ""
        number = [f"a whole number from 0 on{size}"] if self.is_number else []
        words = [", ".join(map(repr, self.choices))] if self.choices else []
        return ", or ".join([*number, *words, *(["None"] if self.is_optional else [])])

    def accepts(self, value: object) -> bool:
        """Tell whether a value is allowed; true is not 1."""
        if value is None:
            return self.is_optional
        number = self.is_number and type(value) is int and value >= 0
        return number or any(type(value) is type(choice) and value == choice for choice in self.choices)


def options_of(planner: Planner) -> dict[str, PlannerKnob]:
    """Return the knobs of a planner by name, in the order of its parameters."""
    hints = typing.get_type_hints(planner)
    found: dict[str, PlannerKnob] = {}
    for name, parameter in inspect.signature(planner).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            found[name] = _option(name, hints[name], parameter.default)
    return found


def apply(planner: Planner, name: str, problem: Problem, given: Mapping[str, object]) -> Plan:
    """Run a planner with options.

    Args:
        planner: the function.
        name: its name, for messages.
        problem: the problem.
        given: values by option; text from a command line is allowed too ("4", "true", "none", "8MiB").

    Raises:
        UsageError: the planner does not have an option, or does not allow a value.
    """
    return cast("Callable[..., Plan]", planner)(problem, **checked(planner, name, given))


def checked(planner: Planner, name: str, given: Mapping[str, object]) -> dict[str, object]:
    """Return the values of options as a planner takes them; arguments and errors as for `apply`."""
    known = options_of(planner)
    return {option: _checked(name, known, option, value) for option, value in given.items()}


def _checked(planner: str, known: Mapping[str, PlannerKnob], name: str, value: object) -> object:
    if name not in known:
        allowed = f"allowed are {', '.join(known)}" if known else "it has none"
        raise UsageError(f"options: given {shown(name)} for planner {planner!r}; {allowed}; leave it out or correct it")
    option = known[name]
    meant = _meant(option, value) if isinstance(value, str) else value
    if not option.accepts(meant):
        raise UsageError(
            f"options: given {name}={shown(value)} for planner {planner!r}; allowed is {option.allowed}; "
            f"the default is {option.default!r}"
        )
    return meant


def _meant(option: PlannerKnob, text: str) -> object:
    """Return the value that a text stands for; the text itself if it stands for no other."""
    if text in option.choices:
        return text
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if text.isascii() and text.isdecimal():
        return int(text)
    if option.name.endswith("_bytes"):
        return parse_bytes(text)
    return text


def _option(name: str, hint: object, default: Value) -> PlannerKnob:
    """Make a knob from the type hint of its parameter: int, bool, Literal, or one of these with None."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    kinds = [part for part in parts if part is not types.NoneType]
    choices: tuple[Value, ...] = ()
    for kind in kinds:
        if typing.get_origin(kind) is Literal:
            choices += typing.get_args(kind)
        elif kind is bool:
            choices += (True, False)
        elif kind is not int:
            raise TypeError(f"no rule for the option {name}: {kind!r}; add one to elbowroom.planners.knobs")
    return PlannerKnob(
        name=name,
        default=default,
        choices=choices,
        is_number=int in kinds,
        is_optional=types.NoneType in parts,
    )
