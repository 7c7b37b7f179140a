"""The derivative in forward mode and under ``vmap``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from tape import jaxapi
from tape.rules.inventory import coverage
from tape.testing.evidence import Evidence
from tape.testing.executables import Program
from tape.testing.findings import Finding, Item, LeftOut, Note, fail
from tape.testing.precise import Precise, equations, literal
from tape.testing.probes import NUDGE

SIZE = 3  # of a batch


def check_forward(evidence: Evidence, votes: Sequence[Mapping[str, str]]) -> Iterator[Finding]:
    """Compare forward mode, where there is one, with JAX's of the bare function."""
    n = len(evidence.traced)
    if evidence.by_differences:
        return
    try:
        closed, _ = jaxapi.trace(lambda *a: tuple(evidence.subject.push(a[:n], a[n:])), *evidence.traced, *evidence.traced)
    except Exception:  # noqa: BLE001 - a custom_vjp has no forward mode
        return
    if any(eqn.primitive.name == "custom_lin" for eqn in equations(closed.jaxpr)):
        return  # nor has what contains one
    if evidence.measurement.believed is not None or any(v.get("jax") == "odd one out" for v in votes):
        yield from _check_adjoint(evidence, evidence.precise(closed))
        return
    push, value = evidence.precise(closed), evidence.value

    def both(xs: Sequence[jax.Array], vs: Sequence[jax.Array]) -> Any:
        _, expected = jax.jvp(value.__call__, tuple(xs), tuple(vs))
        return expected, push(*xs, *vs)

    x, v = evidence.probes.points[1], evidence.probes.direction(1)
    program = Program("forward", both, [value, push])
    expected, got = program(x, v)
    twins, _ = program([a * (1 + NUDGE) for a in x], v)
    for k, (r, twin, t) in enumerate(zip(*[map(np.asarray, a) for a in (expected, twins, got)], strict=True)):
        tolerance = evidence.tolerance(r, twin, 1e3 * np.finfo(float).eps * np.abs(r).max(initial=0))
        if np.all(np.isfinite(r)) and np.any(~(np.abs(r - t) <= tolerance)):
            yield fail(None, "forward", f"forward mode gives a wrong tangent of output {k}", expected=r, got=t, why="a point nearby")
            return


def _check_adjoint(evidence: Evidence, push: Precise) -> Iterator[Finding]:
    """Forward mode is the pullback's adjoint: <ct, Jv> is <J'ct, v>."""
    b = evidence.nearby
    if b not in evidence.seen:
        return
    pair = evidence.probes.pairs[b]
    (x, cts), v = evidence.at(b), evidence.probes.direction(pair.point)
    tangents = Program("adjoint", push, [push])(*x, *v)
    products = [np.sum(np.asarray(t) * c).real for t, c in zip(tangents, cts, strict=True)]
    with np.errstate(invalid="ignore"):
        terms = [(g[2 * b] * a).real for g, a in zip(evidence.measured["g"], v, strict=True)]
        moved = sum(float(np.abs((g[2 * b] - g[2 * b + 1]) * a).sum()) for g, a in zip(evidence.measured["g"], v, strict=True))
        expected, got = sum(float(t.sum()) for t in terms), float(sum(products))
        slack = 20 * moved + evidence.rtol * (sum(float(np.abs(t).sum()) for t in terms) + float(sum(map(abs, products))))
    if np.isfinite(expected) and not abs(expected - got) <= slack:
        message = "forward mode and the derivative are not adjoint to each other"
        yield fail(None, "forward", message, expected=np.asarray(expected), got=np.asarray(got), why=pair.why)


@dataclasses.dataclass(frozen=True, slots=True)
class _Batching:
    """How a derivative is batched: per argument and cotangent, which axes it has; ``sizes`` are those of the axes, outermost first."""

    label: str
    over: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]

    def shape(self, i: int) -> tuple[int, ...]:
        """Return what comes before the own shape of an input."""
        return tuple(self.sizes[axis] for axis in self.over[i])

    def numbers(self) -> Iterator[list[int]]:
        """Return, for each example, which row of each input it has."""
        for at in itertools.product(*map(range, self.sizes)):
            yield [int(np.ravel_multi_index([at[axis] for axis in axes], self.shape(i))) if axes else 0 for i, axes in enumerate(self.over)]

    def around(self, fun: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, batched."""
        for axis in reversed(range(len(self.sizes))):
            fun = jax.vmap(fun, in_axes=tuple(0 if axis in axes else None for axes in self.over))
        return fun


def check_vmap(evidence: Evidence) -> Iterator[Item]:
    """Compare the derivative under ``vmap``, and under two of them, with the same derivative, one example at a time."""
    n = len(evidence.traced)
    usable = [i for i in range(evidence.probes.count) if i < 2 or i in {evidence.probes.pairs[b].point for b in evidence.seen}]
    xs = [evidence.probes.points[usable[i % len(usable)]] for i in range(SIZE + 1)]
    cts = [[(-1) ** (i // 2) * c for c in evidence.probes.cotangents[i % 2]] for i in range(SIZE + 1)]
    singles: list[tuple[Any, Any]] = []
    runs: list[Any] = []
    direct: list[Any] = []
    done: list[_Batching] = []
    batchings = _batchings(evidence)
    if evidence.large and batchings:
        yield LeftOut("all ways of batching it but one")
    for batching in batchings:
        rows = [[(xs if i < n else cts)[j][i if i < n else i - n] for i, j in enumerate(js)] for js in batching.numbers()]
        singles += [(row[:n], row[n:]) for row in rows]
        own = [*evidence.traced, *evidence.shapes]
        avals = [jax.ShapeDtypeStruct((*batching.shape(i), *a.shape), a.dtype) for i, a in enumerate(own)]
        given = [
            np.stack([(xs if i < n else cts)[j][i if i < n else i - n] for j in range(int(np.prod(batching.shape(i))))]).reshape(a.shape)
            for i, a in enumerate(avals)
        ]
        derivative = batching.around(lambda *a: tuple(itertools.chain(*evidence.subject.pull(a[:n], a[n:]))))
        try:
            if evidence.untraced:
                with jax.enable_x64(True):
                    direct.append([np.asarray(g) for g in derivative(*given)])
            else:
                runs.append((evidence.precise(jaxapi.trace(derivative, *avals)[0]), given))
        except Exception as e:  # noqa: BLE001 - not everything can be batched
            yield Note(f"not checked under vmap over {batching.label}: the derivative raises {type(e).__name__} there")
            if batching is batchings[0]:
                return
            del singles[-len(rows) :]
            continue
        done.append(batching)
    if not done:
        return
    got = direct
    if runs:
        program = Program(
            "vmap", lambda batch: [run(*given) for (run, _), given in zip(runs, batch, strict=True)], [run for run, _ in runs]
        )
        got = program([given for _, given in runs])
    want = evidence.one_by_one(singles)
    start = 0
    for batching, results in zip(done, got, strict=True):
        count = int(np.prod(batching.sizes))
        wanted = [*zip(want["rule_y"], want["y"], strict=True), *zip(want["g"], want["r"], strict=True)]
        for k, (batch, both) in enumerate(zip(results, wanted, strict=True), start=n - len(wanted)):
            g, (a, r) = np.asarray(batch), [of[start : start + count] for of in both]
            if g.size != a.size or not _agree(g.reshape(a.shape), a, r):
                why = f"vmap over {batching.label}"
                what = "" if k >= 0 else "the value of the function is "
                message = f"{what}wrong under {why}, though right without it"
                yield fail(k if k >= 0 else None, "vmap", message, expected=a, got=g.reshape(a.shape), why=why)
                return
        start += count


def _agree(g: np.ndarray, a: np.ndarray, r: np.ndarray) -> bool:
    with np.errstate(invalid="ignore"):
        scale = np.sqrt(np.mean(np.abs(np.where(np.isfinite(a), a, 0)) ** 2)) if a.size else 0
        near = [np.abs(g - b) <= 1e-6 * np.abs(b) + 1e-9 * scale for b in (a, r)]
    return bool(np.all(near[0] | near[1] | ~np.isfinite(a) | ~np.isfinite(r)))


def _sees_batches(evidence: Evidence) -> bool:
    """Tell whether the derivative is another program when it is called with a batch than what a batch makes of its program."""
    n = len(evidence.traced)
    own = [jax.ShapeDtypeStruct((SIZE, *a.shape), a.dtype) for a in (*evidence.traced, *evidence.shapes)]
    program = jaxapi.jaxpr_as_fun(evidence.rule.closed)
    said = []
    for derivative in (lambda *a: tuple(itertools.chain(*evidence.subject.pull(a[:n], a[n:]))), lambda *a: tuple(program(*a))):
        try:
            closed = jaxapi.trace(jax.vmap(derivative), *own)[0]
        except Exception:  # noqa: BLE001 - not everything can be batched
            return False
        said.append([(eqn.primitive.name, *map(literal, eqn.invars)) for eqn in equations(closed.jaxpr)])
    return said[0] != said[1]


def _batchings(evidence: Evidence) -> list[_Batching]:
    """What to batch: nothing where all batching rules are JAX's, for those are not under test."""
    n, m = len(evidence.traced), len(evidence.shapes)
    theirs = False
    if not evidence.untraced:
        known = {p.name for p in vars(jaxapi.primitives).values() if isinstance(p, jaxapi.Primitive)}
        known |= {name for name, whose in coverage().items() if whose == "own"}
        names = {eqn.primitive.name for closed in (evidence.rule.closed, evidence.value.closed) for eqn in equations(closed.jaxpr)}
        theirs = all(name in known - {"custom_vmap_call"} and "callback" not in name for name in names)
        if theirs and (evidence.large or not _sees_batches(evidence)):
            return []

    def single(label: str, chosen: Sequence[bool], size: int = SIZE) -> _Batching:
        return _Batching(label, tuple((0,) if over else () for over in chosen), (size,))

    batchings = [single("all arguments and cotangents", [True] * (n + m))]
    if evidence.large or theirs:
        return batchings
    batchings += [
        single("a batch of one", [True] * (n + m), 1),
        single("the cotangents alone", [False] * n + [True] * m),
        single("the arguments alone", [True] * n + [False] * m),
    ]
    if n > 1:
        batchings += [single(f"{evidence.subject.names[k]} alone", [i == k for i in range(n + m)]) for k in range(min(n, 3))]
    return [
        *batchings,
        _Batching("all arguments and cotangents, twice", ((0, 1),) * (n + m), (2, 2)),
        _Batching("the arguments, and then over the cotangents", ((0,),) * n + ((1,),) * m, (2, 2)),
    ]
