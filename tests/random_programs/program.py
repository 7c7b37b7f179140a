"""A program as data: leaves, steps and how it is run; it prints as Python source that uses the tape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tape.testing.operands import Info

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
            return (0.75, -0.5, 2.0, 1.25)[self.seed % 4]  # of the dtype that the strategy counts on, also beside integers
        rng = np.random.default_rng([self.seed, variant])
        if not self.info.inexact:
            return rng.integers(0, 4, self.info.shape).astype(self.info.dtype)
        drawn = rng.choice(GRID, self.info.shape) if self.ties else rng.uniform(-1.2, 1.2, self.info.shape)
        return np.asarray(drawn, self.info.dtype)

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
        roots = [
            f"roots = [r for r in ({', '.join(self.roots)},) if r.requires_grad]",
            'if not roots: raise SystemExit("no root requires grad")',
        ]
        if self.look_first:
            roots.insert(0, "print(" + ", ".join(f"{r}.value" for r in self.roots) + ")")
        if self.drop_first:
            roots.append(f"del {', '.join(self.roots)}  # and every other value that is no leaf")
        seeds = "[seed(r) for r in roots]"
        wanted = names + (", tapped" if self.tap else "")
        if self.how == "stream":
            roots += [f"g = {{id(v): g for v, g in tape.stream_gradients(roots, {seeds})}}", f"g = [g.get(id(v)) for v in ({names},)]"]
        elif self.how != "gradients":
            inputs = f", inputs=[{wanted}]" if self.how == "inputs" else ""
            roots += [f"for v in ({names},): v.zero_grad()"] * (self.order > 1)
            roots += [f"tape.backward(roots, {seeds}, create_graph={self.order > 1}{inputs})", f"g = [v.grad for v in ({names},)]"]
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
            head += " (run three times: interpreted, again, compiled with other values)"
        return f"{head}\n{PREAMBLE}\n{text}"

    def __repr__(self):
        return f"\n{self.reproducer()}\n"


PREAMBLE = """import copy, jax, jax.numpy as jnp, numpy as onp, tape
from tape import lax, nn, numpy as np, scipy, stop_gradient
from tests.random_programs.execution import both_of, cube, cut, flip, seed, weigh
seen = []"""
