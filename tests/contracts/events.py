"""Events of scripts beyond recording and sweeping: hooks, cuts of all the past, copies, streams, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle

import jax
import jax.numpy as jnp
import numpy as np

import tape
from tests.contracts import reference
from tests.contracts.forms import DERIVED, IN_MODES, StopError
from tests.contracts.reference import RefusalError, VagueError

doubled = jax.jit(lambda a: a * 2.0)  # into which a Variable comes as one, and out of which as a constant


class DifferenceError(AssertionError):
    """The tape and the reference do not agree."""


class Events:
    """What a run does besides."""

    @contextlib.contextmanager
    def uncounted(self, flag):
        """While the reference records what is another number of entries of the tape, if ``flag``."""
        old = self.model.uncounted
        self.model.uncounted = old or flag
        try:
            yield
        finally:
            self.model.uncounted = old

    def region(self, mode, count):
        """Have the events that follow run in a mode: in one context."""
        self.leave()
        self.within, self.left = mode, count + 1
        self.regions.enter_context(IN_MODES[mode]())

    def leave(self):
        self.regions.close()
        self.within, self.left = "", 0
        self.model.enter()

    def derived(self, how, i, j):
        """A derivative by a transform: cos(a) * b."""
        a, b = self.pick(i), self.pick(j)
        if a.ours.shape != b.ours.shape or self.model.negated or b.theirs.value.unrecorded:
            return  # op hooks see the transform's sweep, which refuses what it would have to take for a constant
        with self.uncounted(flag=True):
            expected = self.model.mul(self.model.cos(a.theirs.value), b.theirs.value)
        self.push(DERIVED[how](a.ours, b.ours), reference.Variable(expected))

    def at(self, how, i, j):
        """``a.at[0].set(b)`` and its like."""
        a, b = self.pick(i), self.pick(j)
        if a.ours.shape != (3,):
            return
        m, model = a.theirs.value, self.model
        with self.uncounted(flag=True):
            number = model.first(b.theirs.value)
            if how != "set":
                old = model.first(m)
                number = model.add(old, number) if how == "add" else model.mul(old, number)
            expected = model.put(m, number)
        self.push(getattr(a.ours.at[0], how)(b.ours if b.ours.shape == () else b.ours[0]), reference.Variable(expected))

    def put(self, i, j):
        a, b = self.pick(i), self.pick(j)
        if a.ours.shape != (3,) or b.ours.shape not in ((3,), ()) or a in self.leaves or (a.theirs.is_leaf and a.theirs.requires_grad):
            return
        node = a.theirs.value.node
        source = b.ours if b.ours.shape == () else b.ours[0]
        a.ours[0] = source
        new = self.model.put(a.theirs.value, self.model.first(b.theirs.value))
        if node is not None:
            for held in node.holders.values():
                if a.theirs in held:
                    held.remove(a.theirs)
        a.theirs.value, a.theirs.grad, a.theirs.assigned, a.theirs.node = new, None, False, None
        if any(item is not a and item.ours is a.ours for item in self.pool):
            raise VagueError  # two items of one handle

    def copy(self, i):
        v = self.pick(i)
        theirs = reference.Variable(v.theirs.value)
        if v.theirs.is_leaf and v.theirs.requires_grad:
            theirs.become_leaf(v.theirs.value.array)
        self.push(copy.copy(v.ours), theirs)

    def hook(self, i, factor, how="", j=0):
        """Have a hook replace a gradient, by a product with a number or with a Variable; or only look at it."""
        v, w = self.pick(i), self.pick(j)
        if not v.theirs.requires_grad:
            return
        if how == "variable" and w.ours.shape in ((), v.ours.shape):
            self._hook(v, lambda g: g * w_ours, w.theirs.value) if (w_ours := copy.copy(w.ours)) is not None else None
        elif how == "looks":
            self._hook(v, lambda g: g * factor if bool(np.isfinite(g.numpy()).all()) else g, factor)
        elif how == "sees":
            self._hook(v, lambda g: None if g.sum() is not None else g, 1.0)
        else:
            self._hook(v, lambda g: g * factor, factor)

    def _hook(self, v, function, factor):
        hooks = v.theirs.value.key[0].hooks.setdefault(v.theirs.value.key[1], [])
        removal = Removal(hooks, factor)
        self.handles += [v.ours.register_hook(function), removal]
        hooks.append(removal.factor)

    def failing(self, i, root, seed, *where):
        """A sweep in which a hook raises, and which changes nothing."""
        v, r = self.pick(i), self.pick(root)
        if not v.theirs.requires_grad:
            return
        count = len(self.handles)
        self.model.stops = "op hook" in where
        if not self.model.stops:
            self._hook(v, _fail, None)
        try:
            ours, theirs = self._seeds([r], [seed])
            with Failing() if self.model.stops else contextlib.nullcontext():
                self.both(
                    lambda: tape.backward([r.ours], ours, create_graph="create" in where),
                    lambda: self.model.backward([r.theirs], theirs, create_graph="create" in where),
                )
        finally:
            self.model.stops = False
            for handle in self.handles[count:]:
                handle.remove()
            del self.handles[count:]

    def gather(self, i, j, mode):
        """Have a hook see the gradients of two Variables in each sweep."""
        v, w = self.pick(i), self.pick(j)
        if not (v.theirs.requires_grad and w.theirs.requires_grad):
            return
        seen, group = [], Group(mode)

        def see(gradients):
            given = gradients if mode == "all" else [gradients]
            seen.append([None if g is None else float(g.sum()) for g in given])

        self.handles += [tape.register_multi_grad_hook([v.ours, w.ours], see, mode=mode)]
        for k, one in enumerate((v, w)):
            node, index = one.theirs.value.key
            hooks = node.hooks.setdefault(index, [])
            self.handles.append(Removal(hooks, group.member(k)))
            hooks.append(self.handles[-1].factor)
        self.model.groups.append(group)
        self.gathered.append((seen, group.seen))

    def clear(self, i):
        """Have a leaf's gradient taken away as soon as it is there."""
        v = self.pick(i)
        if v.theirs.requires_grad and v.theirs.is_leaf:
            self.handles += [v.ours.register_post_accumulate_grad_hook(lambda v: v.zero_grad()), Clearing(v.theirs)]

    def unchain_backward(self, i):
        v = self.pick(i)
        if v.theirs.is_leaf or any(v.theirs in h for h in v.theirs.value.node.holders.values()):
            return
        if any(item is not v and item.theirs.requires_grad and item.theirs.value.key == v.theirs.value.key for item in self.pool):
            raise VagueError  # another handle of what is cut
        v.ours.unchain_backward()
        v.theirs.unchain_backward()

    def deep(self, how, i):
        """A copy of a leaf with its gradient."""
        v = self.pick(i)
        if not v.theirs.is_leaf:
            return
        ours = copy.deepcopy(v.ours) if how == "deep" else pickle.loads(pickle.dumps(v.ours))  # noqa: S301 - its own
        theirs = reference.Variable(reference.Value(v.theirs.value.array, unrecorded=v.theirs.value.unrecorded))
        if v.theirs.requires_grad:
            theirs.become_leaf(v.theirs.value.array)
        g = v.theirs.grad
        if g is not None:
            theirs.grad = reference.Variable(reference.Value(g.value.array, unrecorded=g.value.unrecorded))
            if g.requires_grad and g.is_leaf:
                theirs.grad.become_leaf(g.value.array)
        self.push(ours, theirs)

    def raw(self, i):
        """A function of JAX's takes values of Variables through which no gradient could flow, and refuses others."""
        v = self.pick(i)

        def theirs():
            if v.theirs.requires_grad:
                raise RefusalError("LostGradientError")
            return v.theirs.value.array * 2

        found = self.both(lambda: jnp.add(v.ours, v.ours), theirs)
        for value in (doubled(v.ours), *(found or ())[:1]):
            self.same(tape.constant(value), reference.Variable(reference.Value(v.theirs.value.array * 2)), "what JAX gave")

    def same_lists(self, seen, expected):
        """Compare what hooks over two Variables saw."""
        close = len(seen) == len(expected) and all(
            len(a) == len(b) and all((x is None) is (y is None) for x, y in zip(a, b, strict=True))
            for a, b in zip(seen, expected, strict=True)
        )
        pairs = [
            (x, y) for a, b in zip(seen, expected, strict=False) for x, y in zip(a, b, strict=False) if x is not None and y is not None
        ]
        if not close or any(abs(x - y) > 1e-3 * self.largest for x, y in pairs):
            msg = f"a hook saw {seen}, expected {expected}"
            raise DifferenceError(msg)

    def stream(self, roots, seeds, inputs, most=None):
        items = [self.pick(r) for r in roots]
        ours, theirs = self._seeds(items, seeds)
        inside = None if inputs is None else [self.pick(k) for k in inputs]

        def pairs():
            with contextlib.closing(
                tape.stream_gradients([r.ours for r in items], ours, inputs=None if inside is None else [v.ours for v in inside])
            ) as stream:
                return dict(itertools.islice(stream, most))

        released = most is None
        found = self.both(
            pairs,
            lambda: self.model.stream([r.theirs for r in items], theirs, None if inside is None else [v.theirs for v in inside], released),
        )
        if found is None:
            return
        ours, theirs = found
        if not released:  # it was dropped, and releases nothing
            for v in [v for v in dict.fromkeys(self.pool) if v.ours in ours]:
                self.same(ours[v.ours], theirs[v.theirs], "a gradient of a stream")
            return
        came = [v.ours in ours for v in self.pool]
        if came != [v.theirs in theirs for v in self.pool]:
            msg = f"gradients came of {came}"
            raise DifferenceError(msg)
        for v in [v for v in dict.fromkeys(self.pool) if v.ours in ours]:
            self.push(ours[v.ours], theirs[v.theirs], gradient=True)


class Failing(tape.OpHook):
    """An op hook that raises as soon as something is swept."""

    def backward_postprocess(self, op, input_grads):
        raise StopError


def _fail(gradient):
    raise StopError


class Removal:
    """The handle of a hook of the reference."""

    def __init__(self, factors, factor):
        self.factors, self.factor = factors, factor

    def remove(self):
        at = next(k for k, f in enumerate(self.factors) if f is self.factor)
        del self.factors[at]


class Clearing:
    """The handle of a hook that takes the gradient away."""

    def __init__(self, variable):
        self.variable = variable
        variable.clears += 1

    def remove(self):
        self.variable.clears -= 1


class Group:
    """A hook that sees the gradients of two Variables, once in a sweep; ``seen`` has the sums of what it saw."""

    def __init__(self, mode):
        self.mode = mode
        self.seen = []
        self.waiting = None

    def member(self, position):
        return Member(self, position)

    def see(self, position, gradient):
        if self.mode == "any" and self.waiting is None:
            self.seen.append([gradient.array.sum()])
        self.waiting = self.waiting or [None, None]
        if self.waiting[position] is None:
            self.waiting[position] = gradient.array.sum()

    def finish(self, raised):
        if self.mode == "all" and self.waiting is not None and (None not in self.waiting or not raised):
            self.seen.append(self.waiting)
        self.waiting = None


class Member:
    """What stands among the hooks of one of the two."""

    def __init__(self, group, position):
        self.group = group
        self.position = position

    def see(self, gradient):
        self.group.see(self.position, gradient)
