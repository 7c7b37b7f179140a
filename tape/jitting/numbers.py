"""Numbers: those of Python that a step changes, which it does only while it is traced."""

from __future__ import annotations

from typing import Any

import jax

from tape.callables.objects import steps_to
from tape.callables.reach import Reach, Stored, spelled
from tape.errors import warn
from tape.graph.lines import user_line
from tape.graph.segment import Handle
from tape.jitting.places import leaves_in
from tape.jitting.tracing import TracedStep


def leave_behind(step: TracedStep, reached: Reach) -> None:
    """Put into places what Python stored in them while the step was traced, and warn of a count that goes no further.

    Where the step is traced once more, since it has made leaves that stay, it counts then.
    """
    for holder, (place, contents) in zip(reached.holders, step.outcome.plain, strict=True):
        assert place is holder.place, "every place that is reached is looked at, in order"
        changed = [k for k, x in holder.before.items() if _is_number(x) and _is_number(y := contents.get(k)) and x != y]
        if step.stayed:
            contents.update({k: holder.before[k] for k in changed})
        elif changed and _is_state(holder):
            key = changed[0]
            where = spelled((*holder.path, *steps_to(place.spelled, key)))
            warn(
                f"jit: {step.name} changes {where} from {holder.before[key]!r} to {contents[key]!r}, a number of Python: it did so while "
                "it was traced, and later calls neither change it nor read another one; keep it in a tape.constant and assign to its "
                ".value, or count outside",
                user_line(),
            )
        place.fill(contents)
    step.outcome.plain.clear()


def _is_number(x: Any) -> bool:
    return type(x) in (int, float)


def _is_state(holder: Stored) -> bool:
    """Tell whether a place is an object's attributes, or a container, with Variables or arrays in it, such as those of an optimizer."""
    leaves = (leaf for x in holder.before.values() for leaf in leaves_in(x))
    return holder.place.spelled[0] in ".[" and any(isinstance(leaf, (Handle, jax.Array)) for leaf in leaves)
