"""A Hypothesis strategy for tape programs, as source text that runs over JAX (a pure function of its leaves) and over the tape.

A program is a list of steps over named values.  Most steps are one line that both run; the others happen on the tape only (looking at a
value, dropping a Variable, a backward in the middle) or mean something that JAX spells differently (``x[i] = y``, hooks, ``no_grad``).
"""

from __future__ import annotations

from dataclasses import replace

import jax
from hypothesis import strategies as st

from tape.testing.operands import HALF, Info, assignable, indexed
from tape.testing.operations import OPERATIONS, Frozen, results, source, uses
from tests.random_programs.program import Leaf, Program, Step

EVENTS = 0.5  # share of operations that are followed by an event
LEAF_SHAPES = ((3,), (2, 3), (), (3, 3), (1,), (3, 1), (0,))


def programs():
    """Programs of three to twelve operations, and the events between them.

    Hypothesis draws the seed of one generator: its own draws repeat themselves (they are mutated, and shrink to the simplest), so that
    most programs would be alike.  A failing program is made small by :func:`minimal`.
    """
    return st.randoms(use_true_random=True).map(make_program)


def make_program(random):
    """Draw one program from a generator of random numbers."""
    builder = _Builder(random, random.random() < 2 / 3)
    with jax.enable_x64(builder.wide):
        builder.add_leaves()
        for _ in range(random.randint(3, 12)):
            builder.add_operation()
            if random.random() < EVENTS:
                random.choice(_EVENTS)(builder)
        roots = builder.choose_roots()
    how = random.choice(("gradients", "backward", "inputs", "stream"))
    return Program(
        tuple(builder.leaves),
        tuple(builder.steps),
        roots,
        builder.tap,
        frozenset(builder.dtypes),
        builder.wide,
        mode=random.choice(("lazy", "eager", "jit")),
        order=1 if builder.penalties or builder.hooks or how == "stream" else random.choice((1, 2)),
        how=how,
        every=random.choice((0, 0, 0, 1, 3)),
        look_first=random.random() < 0.5,
        drop_first=random.random() < 0.5,
    )


class _Builder:
    """A program under way: ``pool`` maps the names that later steps can use to what is known of them."""

    def __init__(self, random, wide):
        self.random = random
        self.wide = wide
        self.base = "float64" if wide else "float32"
        self.leaves = []
        self.steps = []
        self.pool = {}
        self.dtypes = {self.base}
        self.made = []  # names of results, in order
        self.fixed = set()  # results with a hook or tap: not to be rebound
        self.count = 0
        self.called = 0  # number of steps up to the last operation
        self.tap = None
        # A hook or a tap sees what the VJP of its own entry has read of it, so that with a gradient among the values it is defined by how the
        # rule is written (from its result or from its arguments): those do not meet in one program.
        self.penalties = 0
        self.hooks = 0

    def pick(self, things):
        return self.random.choice(list(things))

    def name(self):
        self.count += 1
        return f"v{self.count - 1}"

    def add_leaves(self):
        for i in range(self.random.randint(1, 4)):
            form = (
                "variable" if i == 0 else self.pick(("variable", "variable", "variable", "variable", "constant", "jax", "numpy", "python"))
            )
            integer = form != "python" and i > 0 and self.pick((False, False, False, False, True))
            ties = self.random.random() < 0.4
            seed = self.random.randrange(4)
            shape = () if form == "python" else self.pick(LEAF_SHAPES)
            dtype = "int32" if integer else self.base
            name = self.name()
            requires_grad = form == "variable" and not integer
            form = "variable" if form == "constant" else form
            info = Info(shape, dtype, weak=form == "python", raw=form != "variable")
            self.leaves.append(Leaf(name, info, form, requires_grad, ties, seed))
            self.pool[name] = info

    def add_operation(self):
        for _ in range(8):
            operation = self.pick(OPERATIONS)
            found = uses(operation, self.pool)
            if not found:
                continue
            names, infos, option = self.pick(found)
            made = results(operation, infos, Frozen(option), self.wide)
            if made is not None:
                self.add_call(source(operation, names, infos, option), *made)
                return

    def add_call(self, text, infos, several):
        names = [self.name() for _ in infos]
        target = ", ".join(names) + ("," if several and len(names) == 1 else "")
        line = f"{target} = {text}"
        context = self.pick(("", "", "", "", "", "", "", "eager", "no_grad"))
        if context == "no_grad":
            kept = f"tuple(map(stop_gradient, ({target})))" if several else f"stop_gradient({names[0]})"
            self.steps.append(Step(f"with tape.no_grad():\n    {line}", f"{line}\n{target} = {kept}"))
        elif context == "eager":
            self.steps.append(Step(f"with tape.eager():\n    {line}", line))
        else:
            self.steps.append(Step(line, line))
        self.called = len(self.steps)
        for name, info in zip(names, infos, strict=True):
            self.pool[name] = info
            self.made.append(name)
            self.dtypes.add(info.dtype)

    def floats(self, names):
        return [n for n in names if n in self.pool and self.pool[n].inexact and not self.pool[n].raw]

    def fresh(self):
        """Results of the step before this one, which nothing has used."""
        return [n for n in self.floats(self.made[-1:]) if n not in self.fixed] if len(self.steps) == self.called else []

    def choose_roots(self):
        able = self.floats(self.made)
        if not able:
            name = self.leaves[0].name
            self.add_call(f"np.sin({name})", (replace(self.pool[name], exact=False),), several=False)
            able = self.made[-1:]
        return tuple(self.random.sample(able, min(len(able), self.random.randint(1, 3))))

    # -- events -----------------------------------------------------------------------------------------------------

    def look(self):
        name = self.pick(self.made) if self.made else None
        if name not in self.pool:
            return
        how = self.pick(("{v}.value", "float(np.sum({v}))", "{v}.numpy()", "bool(np.sum({v}) > 1000)"))
        theirs = {
            "{v}.value": "{v}",
            "float(np.sum({v}))": "np.sum({v})",
            "{v}.numpy()": "{v}",
            "bool(np.sum({v}) > 1000)": "np.sum({v}) > 1000",
        }
        self.steps.append(Step(f"seen.append({how.format(v=name)})", f"seen.append({theirs[how].format(v=name)})", looking=True))

    def drop(self):
        left = self.floats(self.made)
        if len(left) > 1:
            name = self.pick(left)
            del self.pool[name]
            self.steps.append(Step(f"del {name}", ""))

    def backward(self):
        able = self.floats(self.made)
        if able:
            name = self.pick(able)
            line = f"if {name}.requires_grad: tape.backward({name}, seed({name}), retain_graph=True)"
            self.steps.append(Step(line, f"swept.append(weigh({name}))"))

    def zero_grad(self):
        names = ", ".join(leaf.name for leaf in self.leaves if leaf.requires_grad)
        self.steps.append(Step(f"for v in ({names},): v.zero_grad()", "swept.clear()"))

    def hook(self):
        able = self.fresh()
        if able and not self.penalties:
            name = self.pick(able)
            self.fixed.add(name)
            self.hooks += 1
            line = f"if {name}.requires_grad: handles = [{name}.register_hook(flip), {name}.register_hook(lambda g: g * seed(g))]"
            self.steps.append(Step(line, f"{name} = hooked({name})"))

    def tapped(self):
        able = self.fresh()
        if able and self.tap is None and not self.penalties:
            name = able[0]
            self.fixed.add(name)
            self.tap = (name, self.pool[name])
            self.steps.append(Step(f"tapped = {name}", f"{name} = {name} + tap"))

    def assign(self):
        able = [n for n in self.floats(self.made) if n not in self.fixed]
        found = [
            (a, o["i"], b)
            for a in able
            for o in indexed(self.pool[a])
            for b in self.pool
            if assignable(self.pool[a], replace(self.pool[b], raw=False), o["i"], duplicates=False)
        ]
        if found:
            a, index, b = self.pick(found)
            self.pool[a] = replace(
                self.pool[a], exact=self.pool[a].exact and self.pool[b].exact, coarse=self.pool[a].coarse or self.pool[b].coarse
            )
            self.steps.append(Step(f"{a}[{index}] = {b}", f"{a} = {a}.at[{index}].set({b})"))

    def rebind(self):
        able = [leaf for leaf in self.leaves if leaf.form == "variable" and leaf.info.inexact]
        leaf = self.pick(able)
        new = f"{leaf.name}_new = onp.cos(onp.arange({leaf.info.size}).reshape({leaf.info.shape})).astype({leaf.info.dtype!r})"
        theirs = f"{new}\n{leaf.name} = {leaf.name}_new + ({leaf.name} - stop_gradient({leaf.name}))"
        self.steps.append(Step(f"{new}\n{leaf.name}.value = {leaf.name}_new", theirs))

    def descend(self):
        """One step of gradient descent on a leaf, in the middle of the program."""
        able = self.floats(self.made)
        if able and len(self.steps) < 10:
            value = self.pick(able)
            leaf = self.pick([leaf for leaf in self.leaves if leaf.requires_grad]).name
            ours = f'slope = tape.gradients({value}, {leaf}, seed({value}), unconnected="zero", retain_graph=True)\n{leaf}.value = {leaf}.value - 0.1 * slope.value'
            theirs = f"slope = penalty({len(self.steps)}, {value!r}, {leaf!r})\n{leaf} = stop_gradient({leaf} - 0.1 * slope) + ({leaf} - stop_gradient({leaf}))"
            self.pool[leaf] = replace(self.pool[leaf], exact=False)
            self.steps.append(Step(ours, theirs))

    def alias(self):
        """A second handle of the same value."""
        able = self.floats(self.made)
        if able:
            old, new = self.pick(able), self.name()
            self.pool[new] = self.pool[old]
            self.fixed |= {new} if old in self.fixed else set()
            self.made.append(new)
            self.steps.append(Step(f"{new} = copy.copy({old})", f"{new} = {old}"))

    def unchain(self):
        """A value that nothing was computed from so far becomes a leaf (what was would be cut off as well: contract 25)."""
        able = self.floats(self.made)
        if able:
            old, new = self.pick(able), self.name()
            self.pool[new] = self.pool[old]
            self.fixed.add(new)
            self.made.append(new)
            self.steps.append(Step(f"{new} = {old} * 1; {new}.unchain()", f"{new} = stop_gradient({old} * 1)"))

    def penalty(self):
        """The gradient of a value with respect to a leaf becomes a value of the program."""
        able = self.floats(self.made)
        if able and not self.penalties and not self.hooks and self.tap is None and len(self.steps) < 8:
            self.penalties += 1
            value = self.pick(able)
            leaf = self.pick([leaf for leaf in self.leaves if leaf.requires_grad])
            name = self.name()
            line = f'{name} = tape.gradients({value}, {leaf.name}, seed({value}), unconnected="zero", create_graph=True)'
            self.steps.append(Step(line, f"{name} = penalty({len(self.steps)}, {value!r}, {leaf.name!r})"))
            self.pool[name] = replace(leaf.info, exact=False, coarse=any(d in HALF for d in self.dtypes))
            self.made.append(name)


_EVENTS = (
    _Builder.look,
    _Builder.drop,
    _Builder.assign,
    _Builder.backward,
    _Builder.hook,
    _Builder.tapped,
    _Builder.rebind,
    _Builder.descend,
    _Builder.alias,
    _Builder.penalty,
    _Builder.look,
    _Builder.drop,
    _Builder.assign,
    _Builder.zero_grad,
    _Builder.unchain,
)
