"""Random scripts of what users do with Variables: record, look, drop, rebind, hook, sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace

UNARY = ("sin", "neg", "sum", "half", "copied")
BINARY = ("mul", "add", "sub")
PAIRS = ("lift", "lift anew", "function", "jit", "checkpoint", "capture", "scan", "cond")  # one op in many forms


@dataclass(frozen=True)
class Script:
    """``leaves``: (shape, requires_grad) each; ``lasting``: they live on from run to run, with new values; then the events."""

    leaves: tuple
    lasting: bool
    events: tuple


def make_script(rng, length=None):
    """A random script; ``rng`` as ``random.Random``."""
    leaves = tuple((rng.choice([(3,), (3,), ()]), rng.random() < 0.85) for _ in range(rng.randint(1, 3)))
    events = [make_event(rng) for _ in range(length or rng.randint(3, 12))]
    if all(kind not in ("backward", "gradients") for kind, _, _ in events[-3:]):
        events.append(make_event(rng, rng.choice(["backward", "gradients"])))
    return Script(leaves, rng.random() < 0.5, tuple(events))


WEIGHTS = {
    "unary": 9,
    "binary": 14,
    "pair": 3,
    "constant": 1,
    "look": 2,
    "drop": 3,
    "detach": 1,
    "leaf": 1,
    "unchain": 1,
    "retain": 1,
    "hook": 1,
    "preset": 1.5,
    "preset_variable": 0.7,
    "rebind": 1,
    "freeze": 0.6,
    "put": 1,
    "copy": 0.7,
    "cut": 0.7,
    "gradient_of": 1,
    "zero": 1,
    "backward": 4,
    "gradients": 5,
}


def make_event(rng, kind=None):
    if kind is None:
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    mode = rng.choices(["", "no_grad", "eager"], [30, 1, 1])[0]

    def n():
        return rng.choice([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7])

    def seeds(count):
        return tuple((rng.choice(["maybe", "maybe", "maybe", "none", "number", "array", "variable"]), n()) for _ in range(count))

    if kind == "unary":
        args = (rng.choice(UNARY), n())
    elif kind == "binary":
        args = (rng.choice(BINARY), n(), n())
    elif kind == "pair":
        args = (rng.choice(PAIRS), n(), n())
    elif kind in ("constant", "preset"):
        args = (n(), rng.randrange(3))
    elif kind == "hook":
        args = (n(), rng.choice([2.0, -1.0]))
    elif kind in ("preset_variable", "put"):
        args = (n(), n())
    elif kind == "cut":
        args = ()
    elif kind in ("backward", "gradients"):
        roots = tuple(n() for _ in range(rng.choice([1, 1, 1, 2, 3])))
        some = tuple(n() for _ in range(rng.choice([1, 1, 2, 3])))
        retain, create = rng.choice([None, None, True, False]), rng.random() < 0.3
        if kind == "backward":
            inputs = some if rng.random() < 0.2 else None
            ignore = tuple(n() for _ in range(rng.choice([1, 2]))) if rng.random() < 0.15 else ()
            args = (roots, seeds(len(roots)), inputs, ignore, retain, create)
        else:
            args = (roots, seeds(len(roots)), some, rng.choice(["zero", "zero", "none", "raise"]), retain, create)
    else:
        args = (n(),)
    return kind, mode, args


def mutate(rng, script):
    """The script with one difference."""
    what = rng.choice(["replace", "replace", "insert", "insert", "delete", "flag", "flag", "operand", "operand", "mode", "lasting"])
    events = list(script.events)
    k = rng.randrange(len(events))
    kind, _, args = events[k]
    if what == "replace":
        events[k] = make_event(rng)
    elif what == "insert":
        events.insert(k, make_event(rng, rng.choice([None, "look", "drop", "cut", "detach", "hook", "retain", "preset", "freeze"])))
    elif what == "delete" and len(events) > 1:
        del events[k]
    elif what == "flag":
        j = rng.randrange(len(script.leaves))
        shape, flag = script.leaves[j]
        leaf = (shape, not flag) if rng.random() < 0.7 else ((3,) if shape == () else (), flag)
        return replace(script, leaves=(*script.leaves[:j], leaf, *script.leaves[j + 1 :]))
    elif what == "operand":
        events[k] = make_event(rng, kind)
    elif what == "mode":
        events[k] = (kind, rng.choice(["", "no_grad", "eager"]), args)
    elif what == "lasting":
        return replace(script, lasting=not script.lasting)
    return replace(script, events=tuple(events))
