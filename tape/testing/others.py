"""Arguments of other sizes, with other masks and integers, for which a rule looks wrong that is right for those that were given."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from tape.testing.axes import other_axes
from tape.testing.evidence import Evidence
from tape.testing.executables import signature
from tape.testing.integers import other_integers
from tape.testing.judgement import is_of_jax
from tape.testing.measurement import user_rules
from tape.testing.sizes import other_sizes
from tape.testing.variants import Variant

_SEEN: weakref.WeakKeyDictionary[Any, set[Any]] = weakref.WeakKeyDictionary()  # what was found right, for functions that live on


def odd_ones(evidence: Evidence) -> Iterator[Variant]:
    """Yield variants where rule and reference differ at first sight, the smallest first."""
    if not _asked(evidence):
        return
    subject = evidence.subject
    numbers = tuple((i, x.tobytes()) for i, x in subject.integers.items())
    key = (signature(evidence.rule.closed.jaxpr), tuple((x.shape, str(x.dtype)) for x in subject.arrays), numbers)
    seen = _seen(subject.owner)
    if key in seen:
        return
    yielded = list[Variant]()
    for part in (other_integers, other_sizes, other_axes):
        for variant in part(evidence):
            yielded.append(variant)
            yield variant
        if not all(variant.noted for variant in yielded):
            return
    if not yielded:
        seen.add(key)


def _asked(evidence: Evidence) -> bool:
    """Tell whether there is a rule of the user's, and a reference to hold it against."""
    subject = evidence.subject
    if evidence.untraced or evidence.by_differences or evidence.large or evidence.iterates or evidence.measurement.believed is not None:
        return False
    if not evidence.explore or evidence.value.opaque or evidence.rule.opaque:
        return False
    return subject.own_vjp is not None or not all(map(is_of_jax, user_rules(evidence.value_jaxpr)))


def _seen(owner: Any) -> set[Any]:
    try:
        return _SEEN.setdefault(owner, set())
    except TypeError:  # no weak reference to it
        return set()
