"""A Hypothesis strategy for tape programs, as source text that runs over JAX (a pure function of its leaves) and over the tape.

A program is a list of steps over named values.  Most steps are one line that both run; the others happen on the tape only (looking at a
value, dropping a Variable, a backward in the middle) or mean something that JAX spells differently (``x[i] = y``, hooks, ``no_grad``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as onp
from hypothesis import strategies as st

from tests.programs.operations import HALF, OPERATIONS, SHAPES, Info, _assignable, indexed, results, source, uses

LEAF_SHAPES = ((3,), (2, 3), (), (3, 3), (1,), (3, 1), (0,))
GRID = (-1.0, -0.5, 0.0, 0.5, 1.0)


@dataclass(frozen=True)
class Leaf:
    """What a program starts from; ``form`` is how it is given to the tape ("python" values are part of the text)."""

    name: str
    info: Info
    form: str
    requires_grad: bool
    ties: bool
    seed: int

    def value(self, variant):
        """Values for the first, second, ... set of arguments."""
        if self.form == "python":
            return (0.75, -0.5, 2, 1.25)[self.seed % 4]
        rng = onp.random.default_rng([self.seed, variant])
        if not self.info.inexact:
            return rng.integers(0, 4, self.info.shape).astype(self.info.dtype)
        drawn = rng.choice(GRID, self.info.shape) if self.ties else rng.uniform(-1.2, 1.2, self.info.shape)
        return onp.asarray(drawn, self.info.dtype)

    def made(self, variant):
        """Source that makes the leaf on the tape."""
        if self.form == "python":
            return f"{self.name} = {self.value(variant)!r}"
        array = f"onp.array({self.value(variant).tolist()}, {self.info.dtype!r})"
        if self.info.size == 0:
            array = f"onp.zeros({self.info.shape}, {self.info.dtype!r})"
        array = array if self.form == "numpy" else f"jnp.asarray({array})"
        return f"{self.name} = " + (f"tape.Variable({array}, requires_grad={self.requires_grad})" if self.form == "variable" else array)


@dataclass(frozen=True)
class Step:
    """Lines of the tape and of JAX; ``looking`` steps need concrete values."""

    tape: str
    jax: str
    looking: bool = False


@dataclass(frozen=True)
class Program:
    """See :mod:`program_strategy`.  ``order`` is the highest derivative compared, ``how`` the call that asks for the first."""

    leaves: tuple[Leaf, ...]
    steps: tuple[Step, ...]
    roots: tuple[str, ...]
    tap: tuple[str, Info] | None  # an intermediate value that is an input of `gradients` too
    dtypes: frozenset[str]
    wide: bool
    mode: str
    order: int
    how: str
    every: int  # a segment of the tape ends after so many steps; 0: it grows long
    look_first: bool
    drop_first: bool

    @property
    def arguments(self):
        """The leaves that are arrays."""
        return tuple(leaf for leaf in self.leaves if leaf.form != "python")

    @property
    def targets(self):
        """The leaves that gradients are compared of."""
        return tuple(leaf for leaf in self.leaves if leaf.requires_grad)

    def lines(self, *, looking=True):
        """Source of the steps on the tape."""
        lines = [step.tape for step in self.steps if step.tape and (looking or not step.looking)]
        if self.every:
            lines = [x for i, line in enumerate(lines) for x in ((line, "cut()") if i % self.every == self.every - 1 else (line,))]
        return lines

    def reproducer(self, variant=0):
        """The program as Python source that uses the tape."""
        names = ", ".join(leaf.name for leaf in self.targets)
        body = [leaf.made(variant) for leaf in self.leaves] + self.lines(looking=self.mode != "jit")
        roots = [f"roots = [r for r in ({', '.join(self.roots)},) if r.requires_grad]"]
        if self.look_first:
            roots.insert(0, "print(" + ", ".join(f"{r}.value" for r in self.roots) + ")")
        if self.drop_first:
            roots.append(f"del {', '.join(self.roots)}  # and every other value that is no leaf")
        seeds = "[seed(r) for r in roots]"
        wanted = names + (", tapped" if self.tap else "")
        if self.how == "backward":
            roots += [f"for v in ({names},): v.zero_grad()"] * (self.order > 1)
            roots += [f"tape.backward(roots, {seeds}, create_graph={self.order > 1})", f"g = [v.grad for v in ({names},)]"]
        else:
            roots.append(f'g = tape.gradients(roots, [{wanted}], {seeds}, unconnected="zero", create_graph={self.order > 1})')
        if self.order > 1:
            roots += [
                "g = [x for x in g if x is not None and x.requires_grad]",
                f'h = tape.gradients(g, [{names}], [seed(x) for x in g], unconnected="zero")',
            ]
        roots.append("print(g)" if self.order == 1 else "print(g, h)")
        text = "\n".join([*body, *roots])
        head = f"# mode: {self.mode}, jax_enable_x64: {self.wide}"
        if self.mode == "lazy":
            head += " (run three times: interpreted, compiled, replayed with other values)"
        return f"{head}\n{PREAMBLE}\n{text}"

    def __repr__(self):
        return f"\n{self.reproducer()}\n"


PREAMBLE = """import jax, jax.numpy as jnp, numpy as onp, tape
from tape import lax, nn, numpy as np, scipy, stop_gradient
from tests.programs.execution import both_of, cube, cut, flip, seed, weigh
seen = []"""


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
            if random.random() < 0.4:
                random.choice(_EVENTS)(builder)
        roots = builder.choose_roots()
    return Program(
        tuple(builder.leaves),
        tuple(builder.steps),
        roots,
        builder.tap,
        frozenset(builder.dtypes),
        builder.wide,
        mode=random.choice(("lazy", "eager", "jit")),
        order=1 if builder.penalties or builder.hooks else random.choice((1, 2)),
        how=random.choice(("gradients", "backward")),
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
            form = "variable" if i == 0 else self.pick(("variable", "variable", "variable", "variable", "constant", "jax", "numpy", "python"))
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
            made = results(operation, infos, _frozen(option), self.wide)
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
        for name, info in zip(names, infos, strict=True):
            self.pool[name] = info
            self.made.append(name)
            self.dtypes.add(info.dtype)

    def floats(self, names):
        return [n for n in names if n in self.pool and self.pool[n].inexact and not self.pool[n].raw]

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
        theirs = {"{v}.value": "{v}", "float(np.sum({v}))": "np.sum({v})", "{v}.numpy()": "{v}", "bool(np.sum({v}) > 1000)": "np.sum({v}) > 1000"}
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
        able = [n for n in self.floats(self.made[-2:]) if n not in self.fixed]
        if able and not self.penalties:
            name = self.pick(able)
            self.fixed.add(name)
            self.hooks += 1
            line = f"if {name}.requires_grad: handles = [{name}.register_hook(flip), {name}.register_hook(lambda g: g * seed(g))]"
            self.steps.append(Step(line, f"{name} = hooked({name})"))

    def tapped(self):
        able = [n for n in self.floats(self.made[-1:]) if n not in self.fixed]
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
            if _assignable(self.pool[a], replace(self.pool[b], raw=False), o["i"], duplicates=False)
        ]
        if found:
            a, index, b = self.pick(found)
            self.pool[a] = replace(self.pool[a], exact=self.pool[a].exact and self.pool[b].exact, coarse=self.pool[a].coarse or self.pool[b].coarse)
            self.steps.append(Step(f"{a}[{index}] = {b}", f"{a} = {a}.at[{index}].set({b})"))

    def rebind(self):
        able = [leaf for leaf in self.leaves if leaf.form == "variable" and leaf.info.inexact]
        leaf = self.pick(able)
        new = f"{leaf.name}_new = onp.cos(onp.arange({leaf.info.size}).reshape({leaf.info.shape})).astype({leaf.info.dtype!r})"
        theirs = f"{new}\n{leaf.name} = {leaf.name}_new + ({leaf.name} - stop_gradient({leaf.name}))"
        self.steps.append(Step(f"{new}\n{leaf.name}.value = {leaf.name}_new", theirs))

    def unchain(self):
        able = [n for n in self.floats(self.made) if n not in self.fixed]
        if able:
            name = self.pick(able)
            self.fixed.add(name)  # a leaf from now on
            self.steps.append(Step(f"{name}.unchain()", f"{name} = stop_gradient({name})"))

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
    _Builder.penalty,
    _Builder.look,
    _Builder.drop,
    _Builder.assign,
    _Builder.zero_grad,
    _Builder.unchain,
)


def minimal(program, fails, budget=200):
    """Leave out what the failure does not need: steps, roots, modes; ``fails`` tells whether a smaller program still fails."""
    shrinking = True
    while shrinking and budget:
        shrinking = False
        for smaller in _smaller(program):
            budget -= 1
            if budget <= 0:
                break
            if fails(smaller):
                program, shrinking = smaller, True
                break
    return program


def _smaller(program):
    for i in reversed(range(len(program.steps))):
        if not any("penalty(" in step.jax for step in program.steps[i:]):  # it refers to steps by number
            yield replace(program, steps=program.steps[:i] + program.steps[i + 1 :])
    if len(program.roots) > 1:
        for root in program.roots:
            yield replace(program, roots=tuple(r for r in program.roots if r != root))
    for name, simple in (("order", 1), ("every", 0), ("how", "gradients"), ("look_first", False), ("drop_first", False), ("tap", None)):
        if getattr(program, name) != simple:
            yield replace(program, **{name: simple})
    for leaf in program.leaves[1:]:
        yield replace(program, leaves=tuple(x for x in program.leaves if x is not leaf))


def _frozen(option):
    return _Frozen(option)


class _Frozen(dict):
    """Parameters as a key of a cache."""

    def __hash__(self):
        return hash(repr(sorted(self.items())))
