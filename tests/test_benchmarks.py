"""Every benchmark computes the same in all systems, and its harness notices when it does not."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import compute, dispatch, dynamic, facade, looks, structures
from benchmarks.comparison import Comparison, DisagreementError, agree, suited, verify
from benchmarks.looking import disagreement
from benchmarks.peers import SYSTEMS, systems
from benchmarks.picture import draw
from benchmarks.report import Report, Score, ratios
from benchmarks.sharded import collectives
from benchmarks.timing import Effort, Times, interleave, quantile, ratio
from benchmarks.varying import disagreements
from tests.daily import share

pytestmark = pytest.mark.filterwarnings("ignore")  # a peer's warnings are its own

FAST = {"jax.jit", "tape", "tape.jit", "PyTorch", "HIPS autograd", "MyGrad"}  # un-jitted JAX takes seconds on the chains
STATIC = [*dispatch.WORKLOADS, *compute.WORKLOADS]


@pytest.mark.parametrize("workload", share(STATIC), ids=lambda w: w.name)
def test_systems_agree(workload):
    steps, failures = verify(workload, tiny=True, names=FAST)
    assert not failures
    assert steps.keys() == suited(workload, FAST).keys()


@pytest.mark.parametrize("workload", share([*dynamic.WORKLOADS, *structures.WORKLOADS[2:]], 2), ids=lambda w: w.name)
def test_systems_agree_where_structures_vary(workload):
    assert not disagreements(workload, count=2)


@pytest.mark.parametrize("loop", [looks.ball(20), *looks.WORKLOADS[1:]], ids=lambda w: w.name)
def test_loops_with_looks_agree(loop):
    assert disagreement(loop, runs=2) is None


JAX = types.SimpleNamespace(
    __name__="jax",
    value_and_grad=jax.value_and_grad,
    grad=jax.grad,
    hessian=jax.hessian,
    elementwise_grad=lambda f: jax.grad(lambda x: f(x).sum()),
)
NOT_OF_JAX = {"facade: convnet", "facade: ode net"}  # their convolution and their solver have other signatures there


@pytest.mark.parametrize("name", share(sorted(set(facade.PROGRAMS) - NOT_OF_JAX)))
def test_a_program_of_the_facade_agrees_with_jax(name):
    with jax.enable_x64(True):
        expected = jax.jit(facade.PROGRAMS[name](JAX, jnp, np.random.default_rng(0)))()
    step = facade.step_of(name, "interop.autograd")
    for _ in range(2):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), step(), expected)


def test_a_wrong_gradient_is_noticed():
    workload = dispatch.WORKLOADS[0]
    tape = systems()["tape"]

    def program(xp, p, x):
        loss, gradients = workload.program(xp, p, x)
        return loss, [g * (1.01 if xp is tape.xp else 1.0) for g in gradients]

    steps, failures = verify(dataclasses.replace(workload, program=program), tiny=True, names={"jax.jit", "tape"})
    assert list(steps) == ["jax.jit"]
    assert "DisagreementError: tape: array 1" in failures["tape"]


def test_arrays_agree_only_with_equal_shapes_and_numbers():
    agree([np.ones(3)], [np.ones(3)], "it")
    for wrong in ([], [np.ones((3, 1))], [np.full(3, np.nan)], [np.full(3, 1.01)]):
        with pytest.raises(DisagreementError, match="it"):
            agree(wrong, [np.ones(3)], "it")


def test_systems_are_skipped_for_what_they_lack():
    adam = next(w for w in dispatch.WORKLOADS if w.trains)
    assert suited(adam).keys() <= {"jax.jit", "tape", "tape.jit", "tape, look first", "jax.grad", "PyTorch"}


def test_structures_never_repeat():
    for workload in dynamic.WORKLOADS[:2]:
        samples = workload.samples(np.random.default_rng(0))
        shapes = [_shape(next(samples)) for _ in range(200)]
        assert len(set(shapes)) == len(shapes)


def _shape(sample):
    return tuple(_shape(x) for x in sample) if isinstance(sample, tuple) else sample if isinstance(sample, int) else None


def test_ratios_are_taken_round_by_round():
    drifting, twice = Times((1.0, 2.0, 8.0)), Times((2.0, 4.0, 16.0))
    assert ratio(twice, drifting).median == 2.0
    assert ratio(twice, drifting).low == 2.0
    assert quantile([0.0, 10.0], 0.25) == 2.5


def test_interleaving_waits_for_each_batch():
    log = []
    steps = {name: (lambda name=name: log.append(name) or name, lambda result: log.append(f"wait {result}")) for name in "ab"}
    times = interleave(steps, Effort(rounds=2, batch_seconds=0.0, warm_seconds=0.0))
    assert len(log) == 2 * 2 * (5 + 2 * 2)  # two systems, a step and a wait: five to warm up, then two rounds of one untimed and one timed
    assert all(wait == f"wait {step}" for step, wait in zip(log[::2], log[1::2], strict=True))
    assert len(times["a"].rounds) == 2


def test_a_system_that_learns_is_timed_in_its_steady_state():
    ran = []
    learnt = lambda: min(len(ran), 7)  # noqa: E731 - it learns in its first seven steps
    steps = {"a": (lambda: ran.append(0), lambda _: None, learnt)}
    interleave(steps, Effort(rounds=1, batch_seconds=0.0, warm_seconds=0.0, settle_steps=20))
    assert len(ran) == 7 + 20 + 2
    ran.clear()
    interleave(steps, Effort(rounds=1, batch_seconds=0.0, warm_seconds=0.0))
    assert len(ran) == 5 + 2


def test_scores_know_which_way_is_better():
    assert Score("", {"x": 1.0, "y": 4.0}, 2.0).reached
    assert not Score("", {"x": 1.0, "y": 4.0}, 2.0, worst_limit=3.0).reached
    assert Score("", {"x": 9.0}, 8.0, at_least=True).reached
    assert not Score("", {"x": 7.0}, 8.0, at_least=True).reached
    assert ratios([], "tape", "jax.jit") == {}


def test_collectives_are_counted_by_kind():
    hlo = """
  %all-reduce = f32[4,8]{1,0} all-reduce(%dot), channel_id=1
  %all-gather-start = (f32[4]{0}, f32[8]{0}) all-gather-start(%p), channel_id=2
  %all-gather-done = f32[8]{0} all-gather-done(%all-gather-start)
  ROOT %all-reduce.1 = (f32[], f32[4]{0}) all-reduce(%a, %b), channel_id=3
"""
    assert collectives(hlo) == {"all-gather": 1, "all-reduce": 2}


def test_a_picture_shows_every_system(tmp_path):
    pytest.importorskip("matplotlib")
    report = Report()
    report.comparisons["dispatch"] = [Comparison("w", {s.name: Times((1.0 + i, 2.0 + i, 3.0 + i)) for i, s in enumerate(SYSTEMS)})]
    draw(report, str(tmp_path / "run.svg"))
    drawn = (tmp_path / "run.svg").read_text(encoding="utf-8")
    assert [s.name for s in SYSTEMS if f">{s.name}<" not in drawn] == []
