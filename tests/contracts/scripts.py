"""Random scripts of what users do with Variables: record, look, drop, rebind, hook, sweep."""

from __future__ import annotations

from dataclasses import dataclass, replace

UNARY = {
    "sin": 9,
    "neg": 9,
    "sum": 9,
    "half": 9,
    "copied": 9,
    "stop": 2,
    "complex": 2,
    "reverse": 2,
    "rotate": 2,
    "rotate by a key": 1,
    "in place": 2,
}
BINARY = {"mul": 9, "add": 9, "sub": 9, "complex squares": 1, "while": 0.5}
PAIRS = {"lift": 3, "lift anew": 3, "function": 4, "jit": 3, "checkpoint": 3, "capture": 3, "scan": 2, "cond": 2}  # one op in many forms
PAIRS |= {"map": 0.5, "fori": 0.5, "switch": 0.5, "vmap": 1, "lowered": 1, "several": 1, "nested": 1, "function within": 1}
DERIVED = ("grad", "vjp", "jvp", "linearize", "hvp", "jacobian", "map")
MODES = {
    "": 80,
    "no_grad": 3,
    "eager": 3,
    "enabled again": 1,
    "disabled": 1,
    "packed": 2,
    "on host": 1,
    "noted": 2,
    "watched": 1,
    "negated": 2,
    "thread": 2,
}


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
    "derived": 0.5,
    "at": 1,
    "failing": 0.7,
    "clear": 0.5,
    "gather": 0.5,
    "unchain_backward": 0.7,
    "deep": 0.5,
    "raw": 0.3,
    "stream": 0.8,
    "region": 1,
    "zero": 1,
    "backward": 4,
    "gradients": 5,
}


def some(rng, weights):
    return rng.choices(list(weights), list(weights.values()))[0]


def make_event(rng, kind=None):
    if kind is None:
        kind = some(rng, WEIGHTS)
    mode = some(rng, MODES)

    def n():
        return rng.choice([0, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7])

    def seeds(count):
        return tuple((rng.choice(["maybe", "maybe", "maybe", "none", "number", "array", "variable"]), n()) for _ in range(count))

    if kind == "unary":
        args = (some(rng, UNARY), n())
    elif kind == "binary":
        args = (some(rng, BINARY), n(), n())
    elif kind == "pair":
        args = (some(rng, PAIRS), n(), n())
    elif kind in ("constant", "preset"):
        args = (n(), rng.randrange(3))
    elif kind == "hook":
        args = (n(), rng.choice([2.0, -1.0]), rng.choice(["", "", "variable", "looks", "sees"]), n())
    elif kind == "derived":
        args = (rng.choice(DERIVED), n(), n())
    elif kind == "at":
        args = (rng.choice(["set", "add", "multiply"]), n(), n())
    elif kind == "failing":
        args = (n(), n(), *seeds(1), rng.choice(["hook", "hook", "op hook"]), rng.choice(["", "create"]))
    elif kind == "gather":
        args = (n(), n(), rng.choice(["all", "any"]))
    elif kind == "region":
        args = (rng.choice([m for m in MODES if m not in ("", "thread")]), rng.randint(1, 6))
    elif kind == "deep":
        args = (rng.choice(["deep", "pickle"]), n())
    elif kind == "stream":
        roots = tuple(n() for _ in range(rng.choice([1, 1, 2])))
        args = (roots, seeds(len(roots)), rng.choice([None, (n(),), (n(), n())]), rng.choice([None, None, 0, 1]))
    elif kind in ("preset_variable", "put"):
        args = (n(), n())
    elif kind == "cut":
        args = ()
    elif kind in ("backward", "gradients"):
        roots = tuple(n() for _ in range(rng.choice([1, 1, 1, 2, 3])))
        chosen = tuple(n() for _ in range(rng.choice([1, 1, 2, 3])))
        retain, create = rng.choice([None, None, True, False]), rng.random() < 0.3
        if kind == "backward":
            inputs = chosen if rng.random() < 0.2 else None
            ignore = tuple(n() for _ in range(rng.choice([1, 2]))) if rng.random() < 0.25 else ()
            args = (roots, seeds(len(roots)), inputs, ignore, retain, create)
        else:
            args = (roots, seeds(len(roots)), chosen, rng.choice(["zero", "zero", "none", "raise"]), retain, create)
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
        events.insert(
            k,
            make_event(rng, rng.choice([None, "look", "drop", "cut", "detach", "hook", "retain", "preset", "freeze", "clear", "failing"])),
        )
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
        events[k] = (kind, rng.choice(list(MODES)), args)
    elif what == "lasting":
        return replace(script, lasting=not script.lasting)
    return replace(script, events=tuple(events))
