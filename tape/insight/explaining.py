"""``tape.explain``: why a gradient is None, zero, tiny, huge or NaN."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from tape.errors import TapeError, TapeTypeError
from tape.graph.kinds import differentiable
from tape.graph.lines import user_frame
from tape.graph.scope import within
from tape.graph.segment import Handle, itself
from tape.insight import causes
from tape.insight.causes import Cause
from tape.insight.connection import Connection
from tape.insight.explanation import Explanation, Step
from tape.insight.measuring import Measurement, norm
from tape.insight.names import name_of
from tape.insight.runs import BackwardError
from tape.sweeps.seeds import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

_TINY, _HUGE = 1e-7, 1e7


def explain(output: object, input: object) -> Explanation:  # noqa: A002 - the field's word
    """Explain why the gradient of one Variable with respect to another is None, zero, tiny, huge or NaN.

    It looks at what was recorded between the two, and at what was recorded without a gradient (``detach``, ``no_grad``, comparisons, casts
    to integers), computes values and gradients along the way once more, entry by entry, and names the entry at which the gradient is cut,
    killed or blown up, its line, and a repair.  No ``.grad`` changes, and nothing is released.  Where the values are gone (a sweep released
    them, and a leaf is no longer held), it explains by the structure.

    Args:
        output: the Variable that is differentiated, such as the loss.
        input: the Variable by which it is: a leaf, or a result.

    Returns:
        An :class:`tape.insight.explaining.Explanation`; ``print`` shows it, ``.draw()`` is a picture.

    Raises:
        TapeTypeError: one of them is no Variable.

    Example:
        >>> import tape, tape.numpy as tnp
        >>> x = tape.Variable([0.0, 4.0], name="x")
        >>> y = tnp.where(x > 0, tnp.sqrt(x), 0.0).sum()
        >>> why = tape.explain(y, x)
        >>> why.verdict, [c.kind for c in why.causes]
        ('NaN', ['infinity times zero'])
        >>> print(why)  # doctest: +ELLIPSIS
        The gradient of y with respect to x is NaN (norm nan).
          cause: infinity times zero at %1 = sqrt(x), ...

    """
    for name, v in (("output", output), ("input", input)):
        if not isinstance(v, Handle):
            msg = f"explain: {name} must be a tape.Variable, got {type(v).__name__}"
            raise TapeTypeError(msg)
    with within(notes=None):
        return _answer(itself(output), itself(input))  # type: ignore[arg-type]


def _answer(output: Any, given: Any) -> Explanation:
    frame, _ = user_frame(sys._getframe())
    names = (output.name or name_of(output, [frame]) or "the output", given.name or name_of(given, [frame]) or "the input")
    found = Connection(output, given)

    def said(verdict: str, what: Sequence[Cause], path: Sequence[Step], size: float | None, note: str = "") -> Explanation:
        return Explanation(found.tape, names, verdict, what, path, size, note or found.note)

    if output is given:
        return said("fine", [], [], 1.0, "they are the same Variable")
    kind = given._place.kind
    if not differentiable(kind.aval):
        what = f"the input is of {kind.aval.dtype}, which has no gradient"
        return said("None", [Cause("integer input", None, what, "make it of a floating dtype: .astype('float32')")], [], None)
    if not found.leads:
        return said("None", [found.unconnected()], [], None)
    way = [Step(e, None, None) for e in found.way()]
    if not found.flows():
        first = []
        if not kind.requires_grad:
            repair = "make it by tape.Variable(...), or call .requires_grad_() before it is used"
            first = [Cause("requires_grad", None, f"the input ({describe(given)}) does not require grad", repair)]
        cuts = [c for c in found.cuts() if not first or c.kind != "cut"]  # what does not require grad needs no cut
        return said("None", [*first, *cuts], way, None)
    try:
        measured = Measurement(found)
    except BackwardError as raised:
        return said("error", [causes.raised_at(found.reading.entries[raised.entry], raised.error)], way, None)
    except TapeError as error:
        note = f"values are not known ({str(error).split(';', maxsplit=1)[0]}): this is what the structure says"
        return said("connected", found.suspects(), way, None, note)
    if measured.total is None:
        return said("None", measured.stopping(), way, None)
    size, steps = norm(measured.total), measured.steps
    if measured.total.size == 0:
        return said("fine", [], steps, size, f"the input ({describe(given)}) has no elements, and so has its gradient")
    if not np.all(np.isfinite(measured.total)):
        return said("NaN" if np.any(np.isnan(measured.total)) else "inf", measured.broken(), steps, size)
    hints = measured.shapes()
    if size == 0.0:
        return said("zero", [*measured.killed(), *hints], steps, size)
    arrives = max(1.0, next((s.gradient for s in steps if s.gradient is not None), 1.0))
    if size < _TINY * arrives:
        return said("tiny", [measured.rate(size, "vanishing"), *hints], steps, size)
    if size > _HUGE * arrives:
        return said("huge", [measured.rate(size, "exploding"), *hints], steps, size)
    return said("fine", [*measured.unfit(), *hints], steps, size)
