"""Running a script on the tape and on the reference side by side."""

from __future__ import annotations

import contextlib

import numpy as np

import tape
from tape.errors import TapeError
from tape.programs.program import run_pending
from tape.recording import record
from tests.contracts import reference
from tests.contracts.events import DifferenceError, Events
from tests.contracts.forms import BINARY, DENSE, PAIRS, SINGLE, UNARY, StopError, in_mode
from tests.contracts.reference import RefusalError, VagueError
from tests.contracts.scripts import make_script, mutate

ALIKE = {"ReleasedTapeError", "UnrecordedGradientError", "StopError"}  # a sweep that meets two raises either
LARGEST = 50.0  # beyond, rounding is told from errors no more


class Item:
    """A Variable of the tape, and its counterpart of the reference."""

    def __init__(self, ours, theirs):
        self.ours = ours
        self.theirs = theirs


class Run(Events):
    """One run of a script on both."""

    def __init__(self, script, variant, kept=None):
        self.model = reference.Tape()
        self.within, self.left = "", 0  # the mode of so many events
        self.regions = contextlib.ExitStack()
        self.handles = []
        self.gathered = []  # what hooks over two Variables saw, here and there
        self.variant = variant
        self.functions = any(kind == "pair" and args[0] in ("function", "several", "function within") for kind, _, args in script.events)
        self.largest = 1.0
        self.leaves = [] if kept is None else kept
        for i, (shape, requires_grad) in enumerate(script.leaves):
            array = self.numbers(shape, i)
            if kept is None:
                ours = tape.Variable(array, requires_grad=requires_grad)
                theirs = reference.Variable(reference.Value(array))
                if requires_grad:
                    theirs.become_leaf(array)
                self.leaves.append(Item(ours, theirs))
            else:
                self.rebind(self.leaves[i], array)
        self.pool = list(self.leaves)

    def numbers(self, shape, i):
        size = int(np.prod(shape))
        return np.cos(1.0 + 0.7 * i + 0.31 * self.variant + 0.9 * np.arange(size)).reshape(shape).astype(np.float32)

    def pick(self, number):
        return self.pool[-1 - number % len(self.pool)]

    def push(self, ours, theirs, *, gradient=False):
        kind = ours._place.kind
        if gradient and ((kind.requires_grad and not theirs.requires_grad) or (kind.unrecorded and not theirs.value.unrecorded)):
            raise VagueError  # one entry of a sweep has several results, and all of them require grad if one does
        for item in self.pool if gradient and theirs.requires_grad else ():
            one = (item.ours._segment, item.ours._place.slot) == (ours._segment, ours._place.slot)
            if one is not (item.theirs.requires_grad and item.theirs.value.key == theirs.value.key):
                raise VagueError  # what an identity hands on is the same gradient
        if bool(kind.unrecorded) is not theirs.value.unrecorded:
            msg = f"unrecorded is {kind.unrecorded!r}"
            raise DifferenceError(msg)
        if ours.requires_grad is not theirs.requires_grad:
            msg = f"requires_grad is {ours.requires_grad}"
            raise DifferenceError(msg)
        if ours.shape != theirs.value.array.shape:
            msg = f"shape is {ours.shape}, expected {theirs.value.array.shape}"
            raise DifferenceError(msg)
        self.note(theirs.value.array)
        self.pool.append(Item(ours, theirs))

    def note(self, array):
        self.largest = max(self.largest, float(np.abs(array).max(initial=0.0)))
        if self.largest > LARGEST:
            raise VagueError

    def same(self, ours, theirs, what):
        array = theirs.value.array
        self.note(array)
        found = np.asarray(ours.value)
        if found.shape != array.shape or not np.allclose(found, array, rtol=0, atol=3e-4 * self.largest):
            msg = f"{what} is {found}, expected {array}"
            raise DifferenceError(msg)

    def do(self, event):
        """Do an event on both; what one refuses, the other must."""
        kind, mode, args = event
        if kind == "region":
            mode = ""
        self.model.enter("" if mode == "thread" else self.within, mode)
        try:
            in_mode(mode, getattr(self, kind), *args)
        finally:
            self.model.enter(self.within)
        self.left -= 1
        if self.left == 0:
            self.leave()

    def both(self, ours, theirs):
        """Results of both, or None where both refuse."""
        refused = None
        try:
            expected = theirs()
        except RefusalError as e:
            refused = str(e)
        try:
            found = ours()
        except (TapeError, StopError) as e:
            if refused is None and self.functions and type(e).__name__ in ALIKE:
                raise VagueError from e  # refused before anybody knows for which argument a backward has no gradient
            if refused is None or type(e).__name__ not in (ALIKE if refused in ALIKE else {refused}):
                msg = f"raised {type(e).__name__}: {e}, expected {refused or 'no error'}"
                raise DifferenceError(msg) from e
            return None
        if refused is not None:
            msg = f"nothing was raised, expected {refused}"
            raise DifferenceError(msg)
        return found, expected

    # -- events -----------------------------------------------------------------------------------------------------------

    def unary(self, name, i):
        v = self.pick(i)
        m, model = v.theirs.value, self.model
        flat = not m.array.shape
        with self.uncounted(name in ("complex", "rotate by a key")):
            expected = {
                "sin": model.sin,
                "neg": model.neg,
                "sum": model.sum,
                "half": lambda a: model.scale(a, 0.5),
                "stop": lambda a: reference.Value(a.array),
                "reverse": lambda a: model.scale(a, 1.0) if flat else model.take(a, np.array([2, 1, 0])),
                "rotate": lambda a: model.scale(a, 1.0) if flat else model.take(a, np.array([2, 0, 1])),
                "rotate by a key": lambda a: model.scale(a, 1.0) if flat else model.take(a, np.array([2, 0, 1])),
            }.get(name, lambda a: model.scale(a, 1.0))(m)
        self.push(UNARY[name](v.ours), reference.Variable(expected))

    def binary(self, name, i, j):
        a, b = self.pick(i), self.pick(j)
        m, n, model = a.theirs.value, b.theirs.value, self.model
        with self.uncounted(name in ("complex squares", "while")):
            if name == "complex squares":
                expected = model.sub(model.mul(m, m), model.mul(n, n))
            else:
                expected = getattr(model, "add" if name == "while" else name)(m, n)
        self.push(BINARY[name](a.ours, b.ours), reference.Variable(expected))

    def pair(self, how, i, j):
        a, b = self.pick(i), self.pick(j)
        if (
            a.ours.shape != b.ours.shape
            or (how in ("jit", "nested") and not a.theirs.requires_grad)
            or (how == "vmap" and not a.ours.shape)
        ):
            return  # tape.jit knows which of its results depend on what requires grad
        found = PAIRS[how](a.ours, b.ours)
        with self.uncounted(how not in SINGLE):
            expected = self.model.pair(a.theirs.value, b.theirs.value, dense=how in DENSE)
        if how in ("jit", "nested") and b.theirs.value.unrecorded:  # nor is the sine's derivative one of what depends on that
            expected[1] = self.model.sin(a.theirs.value)
        for ours, theirs in zip(found, expected, strict=True):
            self.push(ours, reference.Variable(theirs))

    def constant(self, i, seed):
        shape = self.pick(i).ours.shape
        array = self.numbers(shape, seed + 10)
        self.push(tape.constant(array), reference.Variable(reference.Value(array)))

    def look(self, i):
        v = self.pick(i)
        self.same(v.ours, v.theirs, "value")

    def drop(self, i):
        if len(self.pool) > len(self.leaves):
            del self.pool[len(self.leaves) + i % (len(self.pool) - len(self.leaves))]

    def detach(self, i):
        v = self.pick(i)
        self.push(v.ours.detach(), reference.Variable(reference.Value(v.theirs.value.array)))

    def leaf(self, i):
        v = self.pick(i)
        theirs = reference.Variable(v.theirs.value)
        theirs.become_leaf(v.theirs.value.array)
        self.push(v.ours.detach().requires_grad_(), theirs)

    def unchain(self, i):
        v = self.pick(i)
        if v.theirs.is_leaf or any(v.theirs in h for h in v.theirs.value.node.holders.values()):
            return
        if any(item is not v and item.theirs.requires_grad and item.theirs.value.key == v.theirs.value.key for item in self.pool):
            raise VagueError  # another handle of what is cut
        v.ours.unchain()
        v.theirs.unchain()

    def retain(self, i):
        v = self.pick(i)
        if v.theirs.requires_grad and not v.theirs.is_leaf:
            v.ours.retain_grad()
            holders = v.theirs.value.node.holders.setdefault(v.theirs.value.index, [])
            if v.theirs not in holders:
                holders.append(v.theirs)

    def preset(self, i, seed):
        v = self.pick(i)
        if v.theirs.requires_grad:
            array = self.numbers(v.ours.shape, seed + 20)
            v.ours.grad = array
            v.theirs.grad, v.theirs.assigned = reference.Variable(reference.Value(array)), True

    def preset_variable(self, i, j):
        v, g = self.pick(i), self.pick(j)
        if v.theirs.requires_grad and v.ours.shape == g.ours.shape:
            v.ours.grad = g.ours
            v.theirs.grad, v.theirs.assigned = reference.Variable(g.theirs.value), True

    def rebind(self, leaf, array=None):
        v = leaf if isinstance(leaf, Item) else self.leaves[leaf % len(self.leaves)]
        if array is None:
            array = self.numbers(v.ours.shape, leaf + 30)
        v.ours.value = array
        v.theirs.value = reference.Value(array, v.theirs.value.node)

    def freeze(self, leaf):
        v = self.leaves[leaf % len(self.leaves)]
        if v.theirs.requires_grad:
            v.ours.requires_grad_(False)
            v.theirs.value = reference.Value(v.theirs.value.array)
        else:
            v.ours.requires_grad_()
            v.theirs.become_leaf(v.theirs.value.array)

    def cut(self):
        segment = record.LOCAL.segment()
        if segment is not None:
            run_pending(segment, "length")

    def gradient_of(self, i):
        v = self.pick(i)
        if (v.ours.grad is None) is not (v.theirs.grad is None):
            msg = f".grad is {v.ours.grad}, expected {v.theirs.grad}"
            raise DifferenceError(msg)
        if v.theirs.grad is not None and all(item.ours is not v.ours.grad for item in self.pool):
            self.push(v.ours.grad, v.theirs.grad, gradient=True)

    def zero(self, i):
        v = self.pick(i)
        v.ours.zero_grad()
        v.theirs.grad, v.theirs.assigned = None, False

    def _seeds(self, roots, seeds):
        """One seed per root: None, numbers, or a Variable of the pool."""
        ours, theirs = [], []
        for root, (kind, number) in zip(roots, seeds, strict=True):
            shape = root.ours.shape
            found = self.pick(number)
            if kind == "variable" and found.ours.shape == shape:
                ours.append(found.ours)
                theirs.append(found.theirs.value)
            elif kind == "none" or (kind == "maybe" and shape == ()):
                ours.append(None)
                theirs.append(None)
            else:
                array = self.numbers(shape, number % 7 + 40)
                ours.append(float(array) if shape == () and kind == "number" else array)
                theirs.append(reference.Value(array))
        return ours, theirs

    def backward(self, roots, seeds, inputs, ignore, retain, create):
        items = [self.pick(r) for r in roots]
        ours, theirs = self._seeds(items, seeds)
        options = {"retain_graph": retain, "create_graph": create}
        inside = None if inputs is None else [self.pick(k) for k in inputs]
        without = [self.pick(k) for k in ignore]
        if len(items) == 1 and ours[0] is None:

            def call():
                items[0].ours.backward(
                    inputs=None if inside is None else [v.ours for v in inside], ignore=tuple(v.ours for v in without), **options
                )
        else:

            def call():
                tape.backward(
                    [r.ours for r in items],
                    ours,
                    inputs=None if inside is None else [v.ours for v in inside],
                    ignore=[v.ours for v in without],
                    **options,
                )

        self.both(
            call,
            lambda: self.model.backward(
                [r.theirs for r in items],
                theirs,
                inputs=None if inside is None else [v.theirs for v in inside],
                ignore=[v.theirs for v in without],
                **options,
            ),
        )

    def gradients(self, roots, seeds, inputs, unconnected, retain, create):
        items, wanted = [self.pick(r) for r in roots], [self.pick(k) for k in inputs]
        ours, theirs = self._seeds(items, seeds)
        options = {"unconnected": unconnected, "retain_graph": retain, "create_graph": create}
        plain = all(s is None for s in ours)
        found = self.both(
            lambda: tape.gradients([r.ours for r in items], [v.ours for v in wanted], None if plain else ours, **options),
            lambda: self.model.gradients([r.theirs for r in items], [v.theirs for v in wanted], theirs, **options),
        )
        for g, m in zip(*found, strict=True) if found else ():
            if (g is None) is not (m is None):
                msg = f"a gradient is {g}, expected {m}"
                raise DifferenceError(msg)
            if g is not None:
                self.push(g, m, gradient=True)

    def finish(self, which):
        """Compare all that is left: which decides where to look first."""
        self.leave()
        for k in which:
            self.look(k)
        for v in list(self.pool):
            self.same(v.ours, v.theirs, "value at the end")
            if (v.ours.grad is None) is not (v.theirs.grad is None):
                msg = f".grad at the end is {v.ours.grad}, expected {v.theirs.grad and v.theirs.grad.value.array}"
                raise DifferenceError(msg)
            if v.theirs.grad is not None:
                self.same(v.ours.grad, v.theirs.grad, ".grad at the end")
                if v.theirs.grad.requires_grad and not v.ours.grad.requires_grad:
                    raise DifferenceError(".grad.requires_grad at the end is False")
        for seen, expected in self.gathered:
            self.same_lists(seen, expected)
        for handle in self.handles:
            handle.remove()


def play(script, times, start=0):
    """Run a script so many times, with other numbers each time; True if the numbers stayed moderate."""
    kept = None
    for variant in range(start, start + times):
        run = Run(script, variant, kept)
        try:
            for event in script.events:
                run.do(event)
            run.finish((variant % 3, 2))
        except VagueError:
            run.leave()
            for handle in run.handles:
                handle.remove()
            return False
        except Exception as error:
            run.regions.close()
            error.add_note(f"in run {variant - start} of\n{script}")
            raise
        kept = run.leaves if script.lasting else None
    return True


def play_all(rng, changes=3):
    """Play a script until it is known, scripts that differ from it in one thing, and the script again."""
    script = make_script(rng)
    if not play(script, 3):
        return False
    for _ in range(changes):
        other = mutate(rng, script)
        play(other, rng.choice([1, 2, 3]))
        if rng.random() < 0.3:
            script = other
        if not play(script, 1 + (rng.random() < 0.5), start=5):
            return True
    return True
