"""A second tape to hold the first one against: eager, in float64, without segments, programs or caches, written from the contracts.

Every value is computed when it is recorded, every entry is an object of its own, and a sweep walks them.  Nothing is remembered from one
recording to the next, so whatever the tape's caches mix up shows as a difference.
"""

from __future__ import annotations

import itertools

import numpy as np

RECORD, CONSTANT, SWEEP = "record", "constant", "sweep"


class RefusalError(Exception):
    """The tape has to raise the error class of this name."""


class VagueError(Exception):
    """The script goes where the two may differ: numbers too large, flags of an entry as a whole, or entries that are counted otherwise."""


class Value:
    """An array, the entry (or leaf) that made it, and whether it is a gradient that was taken without recording."""

    def __init__(self, array, node=None, index=0, *, unrecorded=False):
        self.array = np.asarray(array, np.float64)
        self.node = node
        self.index = index
        self.unrecorded = unrecorded

    @property
    def key(self):
        """Where a cotangent of it goes: to the entry, or where that output was cut off, to the leaf."""
        return (self.node.cuts[self.index], 0) if self.index in self.node.cuts else (self.node, self.index)


class Node:
    """An entry of the tape, or a leaf (which has no ``vjp``)."""

    numbers = itertools.count()

    def __init__(self, vjp=None, inputs=()):
        self.vjp = vjp
        self.inputs = inputs
        self.number = next(Node.numbers)
        self.released = False
        self.uncounted = False  # whether the tape has another number of entries in its place
        self.hazard = any(v.unrecorded for v in inputs)
        self.hooks = {}  # by output: factors (None: raise), in the order registered
        self.holders = {}  # by output: the Variables that retain their gradient; of a leaf: the Variable
        self.cuts = {}  # by output: the leaf that it became


class Variable:
    """What a user holds."""

    def __init__(self, value):
        self.value = value
        self.grad = None
        self.assigned = False
        self.node = None  # as a leaf
        self.clears = 0  # hooks that take the gradient away once it is there

    @property
    def requires_grad(self):
        return self.value.node is not None

    @property
    def is_leaf(self):
        return self.value.node is None or self.value.node.vjp is None

    def unchain(self):
        """Cut the entry that made it off, for every later sweep; its hooks stay with it."""
        node, index = self.value.node, self.value.index
        before = node.cuts[index].hooks.get(0, []) if index in node.cuts else node.hooks.pop(index, [])
        self.become_leaf(self.value.array)
        node.cuts[index] = self.node
        self.node.hooks[0] = before

    def unchain_backward(self):
        """Cut off all entries that led to it."""
        waiting, reached = [self.value.key[0]], set()
        while waiting:
            node = waiting.pop()
            if node.vjp is not None and node not in reached:
                reached.add(node)
                waiting += [v.key[0] for v in node.inputs if v.node is not None]
        for node in reached:
            for index in range(node.results):
                if node is self.value.node and index == self.value.index:
                    continue
                if index not in node.cuts:
                    end = node.cuts[index] = Node()
                    end.hooks[0] = node.hooks.pop(index, [])
                    end.holders[0] = node.holders.pop(index, [])
        self.unchain()

    def become_leaf(self, array):
        """Be a leaf that requires grad, the same one as before if it was one."""
        if self.node is None:
            self.node = Node()
            self.node.holders[0] = [self]
        self.value = Value(array, self.node)


# -- ops: arrays to results, and cotangents to gradients by further ops -----------------------------------------------------


class Tape:
    """Records, in a mode."""

    def __init__(self):
        self.mode = RECORD
        self.groups = []  # hooks over several Variables
        self.stops = False  # whether an op hook raises
        self.negated = False  # whether an op hook changes the sign of what goes back through each entry
        self.uncounted = False  # whether what is recorded is another number of entries of the tape

    def enter(self, *modes):
        """Be in some modes, one within the other."""
        self.mode, self.negated = RECORD, modes.count("negated") % 2 == 1
        for mode in modes:
            if mode in ("no_grad", "disabled"):
                self.mode = CONSTANT
            elif mode == "enabled again":
                self.mode = RECORD

    def record(self, results, inputs, vjp):
        """Make the values of an entry."""
        able = any(v.node is not None for v in inputs)
        unrecorded = any(v.unrecorded for v in inputs)
        if self.mode == RECORD and able:
            node = Node(vjp, tuple(inputs))
            node.results = len(results)
            node.uncounted = self.uncounted
            return [Value(r, node, i) for i, r in enumerate(results)]
        unrecorded = self.mode != CONSTANT and (unrecorded or (able and self.mode == SWEEP))
        return [Value(r, unrecorded=unrecorded) for r in results]

    def one(self, result, inputs, vjp):
        return self.record([result], inputs, lambda cts, wanted: vjp(cts[0], wanted))[0]

    def neg(self, a):
        return self.one(-a.array, [a], lambda ct, _: [self.neg(ct)])

    def scale(self, a, factor):
        return self.one(a.array * factor, [a], lambda ct, _: [self.scale(ct, factor)])

    def sin(self, a):
        return self.one(np.sin(a.array), [a], lambda ct, _: [self.mul(ct, self.cos(a))])

    def cos(self, a):
        return self.one(np.cos(a.array), [a], lambda ct, _: [self.neg(self.mul(ct, self.sin(a)))])

    def sum(self, a):
        return self.one(a.array.sum(), [a], lambda ct, _: [self.spread(ct, a.array.shape)])

    def spread(self, a, shape):
        if a.array.shape == shape:
            return a
        return self.one(np.broadcast_to(a.array, shape), [a], lambda ct, _: [self.fit(ct, a.array.shape)])

    def fit(self, ct, shape):
        """Undo broadcasting."""
        return ct if ct.array.shape == shape else self.sum(ct)

    def add(self, a, b):
        return self.one(
            a.array + b.array, [a, b], lambda ct, w: [self.fit(ct, v.array.shape) if y else None for v, y in zip((a, b), w, strict=True)]
        )

    def sub(self, a, b):
        def vjp(ct, w):
            return [self.fit(ct, a.array.shape) if w[0] else None, self.neg(self.fit(ct, b.array.shape)) if w[1] else None]

        return self.one(a.array - b.array, [a, b], vjp)

    def mul(self, a, b):
        def vjp(ct, w):
            return [self.fit(self.mul(ct, o), v.array.shape) if y else None for v, o, y in ((a, b, w[0]), (b, a, w[1]))]

        return self.one(a.array * b.array, [a, b], vjp)

    def pair(self, a, b, *, dense=False):
        """Product and sine, of two arguments of one shape: one entry with two results; a ``dense`` one has zeros for what is missing."""

        def vjp(cts, wanted):
            product, sine = cts
            by_a = None if product is None else self.mul(product, b)
            if sine is not None:
                by_a = self.total(by_a, self.mul(sine, self.cos(a)))
            by_b = (Value(np.zeros(b.array.shape)) if dense else None) if product is None else self.mul(product, a)
            return [g if w else None for g, w in zip((by_a, by_b), wanted, strict=True)]

        return self.record([a.array * b.array, np.sin(a.array)], [a, b], vjp)

    def put(self, a, b):
        """``a`` with a number as its first element."""
        mask = np.arange(a.array.size) == 0
        return self.one(np.where(mask, b.array, a.array), [a, b], lambda ct, _: [self.choose(ct, ~mask), self.first(ct)])

    def first(self, a):
        """The first element, or the number itself."""
        mask = np.arange(a.array.size) == 0
        return self.one(a.array[0], [a], lambda ct, _: [self.choose(self.spread(ct, mask.shape), mask)]) if a.array.shape else a

    def take(self, a, order):
        """The elements in another order."""
        return self.one(a.array[order], [a], lambda ct, _: [self.take(ct, np.argsort(order))])

    def choose(self, a, mask):
        return self.one(np.where(mask, a.array, 0.0), [a], lambda ct, _: [self.choose(ct, mask)])

    def total(self, a, b):
        if a is None or b is None:
            return a if b is None else b
        return self.one(a.array + b.array, [a, b], lambda ct, _: [ct, ct])

    # -- sweeps -------------------------------------------------------------------------------------------------------------

    def sweep(self, roots, seeds, targets, ignored, *, create_graph):
        """Gradients by key, and the entries that were swept."""
        old, self.mode = (self.mode, self.uncounted), RECORD if create_graph else SWEEP
        self.uncounted = True
        raised = True
        try:
            result = self._sweep(roots, seeds, targets, ignored)
            raised = False
            return result
        finally:
            for group in self.groups:
                group.finish(raised)
            self.mode, self.uncounted = old

    def _sweep(self, roots, seeds, targets, ignored):
        known = {}

        def leads(key):
            if key not in known:
                node, _ = key
                known[key] = key not in ignored and (
                    (targets is not None and key in targets)
                    or (targets is None if node.vjp is None else any(v.node is not None and leads(v.key) for v in node.inputs))
                )
            return known[key]

        cotangents = {}

        def arrive(key, cotangent):
            if leads(key):
                cotangents[key] = self.total(cotangents.get(key), cotangent)

        for root, seed in zip(roots, seeds, strict=True):
            given = Value(np.ones(root.array.shape)) if seed is None else seed
            if given.node is not None and self.mode == SWEEP:
                given = Value(given.array, unrecorded=True)
            arrive(root.key, given)
        found, swept = {}, []
        while waiting := [key for key in cotangents if key[0].vjp is not None]:
            node = max((key[0] for key in waiting), key=lambda n: n.number)
            count = 1 + max(key[1] for key in waiting if key[0] is node)
            outputs = [cotangents.pop((node, i), None) for i in range(max(count, 2))]
            for i, ct in enumerate(outputs):
                if ct is not None:
                    outputs[i] = self.hooked(outputs[i], node.hooks.get(i, ()))
                    found[node, i] = outputs[i]
            wanted = [v.node is not None and leads(v.key) for v in node.inputs]
            if not any(wanted):
                continue
            if node.released:
                raise RefusalError("ReleasedTapeError")
            if node.hazard:
                raise RefusalError("UnrecordedGradientError")
            if node.uncounted and self.negated:
                raise VagueError
            if self.stops:
                raise RefusalError("StopError")
            swept.append(node)
            for v, g, w in zip(node.inputs, node.vjp(outputs, wanted), wanted, strict=True):
                if w and g is not None:
                    arrive(v.key, self.neg(g) if self.negated else g)
        for (node, i), gradient in cotangents.items():
            found[node, i] = self.hooked(gradient, node.hooks.get(i, ()))
        return found, swept

    def hooked(self, gradient, factors):
        for factor in tuple(factors):
            if factor is None:
                raise RefusalError("StopError")
            if hasattr(factor, "see"):
                factor.see(gradient)
            else:
                gradient = self.mul(gradient, factor) if isinstance(factor, Value) else self.scale(gradient, factor)
        return gradient

    def seeds(self, roots, given, *, required=True):
        """Check roots and seeds; the Variables whose assigned gradient is used."""
        seeds, consumed = [], []
        for root, seed in zip(roots, given, strict=True):
            if root.value.unrecorded:
                raise RefusalError("UnrecordedGradientError")
            if required and not root.requires_grad:
                raise RefusalError("TapeValueError")
            if seed is None and root.assigned and root.requires_grad and not root.is_leaf and root not in consumed:
                consumed.append(root)
                seed = root.grad.value  # noqa: PLW2901
            elif seed is None and root.value.array.size != 1:
                raise RefusalError("SeedError")
            seeds.append(seed)
        return seeds, consumed

    def targets(self, inputs):
        for v in inputs or ():
            if v.value.unrecorded:
                raise RefusalError("UnrecordedGradientError")
            if not v.requires_grad:
                raise RefusalError("UnconnectedError")
        return None if inputs is None else {v.value.key for v in inputs}

    def backward(self, roots, given, *, inputs=None, ignore=(), retain_graph=None, create_graph=False):
        seeds, consumed = self.seeds(roots, given)
        targets = self.targets(inputs)
        ignored = {v.value.key if v.requires_grad else (v.node, 0) for v in ignore}
        found, swept = self.sweep([r.value for r in roots], seeds, targets, ignored, create_graph=create_graph)
        receivers = [] if inputs is None else list(dict.fromkeys(inputs))
        gradients = {id(v): (v, found.get(v.value.key)) for v in receivers}
        for (node, i), gradient in found.items():
            if node.vjp is not None or targets is None:
                for v in node.holders.get(i, ()):
                    gradients.setdefault(id(v), (v, gradient))
        for root in consumed:
            root.grad, root.assigned = None, False
        old, self.mode = self.mode, RECORD if create_graph else SWEEP
        for v, gradient in gradients.values():
            if gradient is not None:
                v.grad = Variable(gradient if v.grad is None else self.total(v.grad.value, gradient))
                v.assigned = False
                if v.clears and v.is_leaf:
                    v.grad = None
        self.mode = old
        self.release(swept, create_graph if retain_graph is None else retain_graph)

    def gradients(self, roots, inputs, given, *, unconnected="raise", retain_graph=None, create_graph=False):
        seeds, _ = self.seeds(roots, given, required=unconnected == "raise")
        if unconnected == "raise":
            for v in inputs:
                if v.value.unrecorded:
                    raise RefusalError("UnrecordedGradientError")
                if not v.requires_grad:
                    raise RefusalError("UnconnectedError")
        chosen = [(r.value, s) for r, s in zip(roots, seeds, strict=True) if r.requires_grad]
        targets = {v.value.key for v in inputs if v.requires_grad}
        found, swept = self.sweep([r for r, _ in chosen], [s for _, s in chosen], targets, (), create_graph=create_graph)
        results = []
        for v in inputs:
            gradient = found.get(v.value.key) if v.requires_grad else None
            if gradient is None and unconnected == "raise":
                raise RefusalError("UnconnectedError")
            if gradient is None and unconnected == "zero":
                gradient = Value(np.zeros(v.value.array.shape))
            results.append(None if gradient is None else Variable(gradient))
        self.release(swept, create_graph if retain_graph is None else retain_graph)
        return results

    def stream(self, roots, given, inputs=None, released=True):
        """Leaves (or inputs) with their gradients, in any order."""
        seeds, _ = self.seeds(roots, given)
        targets = self.targets(inputs)
        found, swept = self.sweep([r.value for r in roots], seeds, targets, (), create_graph=False)
        if inputs is None:
            held = [(v, g) for (node, i), g in found.items() if node.vjp is None for v in node.holders.get(i, ())]
        else:
            held = [(v, found.get(v.value.key)) for v in dict.fromkeys(inputs)]
        if any(g is None for _, g in held):
            raise RefusalError("UnconnectedError")
        self.release(swept, not released)
        return {v: Variable(g) for v, g in held}

    @staticmethod
    def release(swept, retain):
        for node in swept:
            node.released = node.released or not retain
