"""GradBench: the tool speaks the protocol, and every eval's answers agree with an oracle of NumPy alone, far below its tolerance."""

import importlib
import importlib.util
import io
import json
import pathlib
import time

import jax
import numpy as np
import pytest

from benchmarks.gradbench import oracle, page, runner
from benchmarks.gradbench.cases import FUNCTIONS, Case, cases
from benchmarks.gradbench.on_tape import TOOL
from benchmarks.gradbench.on_tape.nested import MODES, argmin, trajectory
from benchmarks.gradbench.oracle import expected, mismatches
from benchmarks.gradbench.protocol import QUIET, Function, Tool, respond, serve
from benchmarks.gradbench.session import Session, SilentToolError
from tests.daily import pairs, share

CASES = list(cases("tiny"))
PEERS = [t for t in ("torch", "autograd") if importlib.util.find_spec(t)]
pytestmark = pytest.mark.filterwarnings("ignore")  # a peer's warnings are its own


@pytest.fixture(scope="module")
def session():
    found = Session("tape")
    yield found
    found.end()


def test_a_session_goes_through_every_eval(session):
    assert session.send("start", eval="hello") == {"id": 0, "tool": "jax-tape"}
    for case in share(CASES, 3):
        response = session.send("define", module=case.module)
        assert response == {"id": session.last, "success": True}
        for function in FUNCTIONS[case.module]:
            if case.module == "particle" and function != "rr":
                continue  # long, and held below
            runs = 1 if case.module == "particle" else 3
            given = case.input | {"min_runs": runs, "min_seconds": 0} if isinstance(case.input, dict) else case.input
            response = session.send("evaluate", module=case.module, function=function, input=given, description=case.description)
            assert response["success"], response
            assert not mismatches(expected(case.module, function, case.input), response["output"], 1e-9)
            assert len(response["timings"]) == (runs if isinstance(given, dict) else 1)
            assert all(t["name"] == "evaluate" and isinstance(t["nanoseconds"], int) and t["nanoseconds"] > 0 for t in response["timings"])
            of = session.last
            assert session.send("analysis", of=of, valid=True) == {"id": of + 1}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"kind": "define", "module": "warp"}, "no module 'warp' here; there are ba, gmm"),
        ({"kind": "define"}, "no module None here"),
        ({"kind": "define", "module": ["ba"]}, "no module ['ba'] here"),
        ({"kind": "evaluate", "module": "warp", "function": "primal", "input": {}}, "no module 'warp' here"),
        (
            {"kind": "evaluate", "module": "lse", "function": "hessian", "input": {}},
            "no function of lse 'hessian' here; there are primal, gradient",
        ),
        ({"kind": "evaluate", "module": "lse", "function": "primal"}, "the message has no input"),
        ({"kind": "evaluate", "module": "lse", "function": "primal", "input": {}}, "lse.primal: the input has no 'x'"),
        ({"kind": "evaluate", "module": "lse", "function": "primal", "input": {"x": "ab"}}, "lse.primal: ValueError"),
        (
            {"kind": "evaluate", "module": "lse", "function": "primal", "input": {"x": [1.0], "min_runs": -1}},
            "min_runs is to be a number of at least 0",
        ),
        (
            {"kind": "evaluate", "module": "lse", "function": "primal", "input": {"x": [1.0], "min_seconds": "long"}},
            "min_seconds is to be a number",
        ),
        (
            {"kind": "evaluate", "module": "lse", "function": "primal", "input": {"x": [1e400]}},
            "lse.primal: ValueError: Out of range float",
        ),
    ],
)
def test_what_is_not_there_is_said_in_words(message, words):
    response = respond({"id": 7} | message, TOOL)
    assert response["id"] == 7
    assert response["success"] is False
    assert words in response["error"]


def test_other_kinds_are_acknowledged():
    assert respond({"id": 3, "kind": "analysis", "of": 2, "valid": False, "error": "no"}, TOOL) == {"id": 3}
    assert respond({"id": 4, "kind": "a kind of later"}, TOOL) == {"id": 4}


def test_lines_that_are_no_messages_end_no_session():
    out = io.StringIO()
    serve(TOOL, ["{", "\n", "[1]", '{"id": 1, "kind": "start"}'], out)
    responses = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [r["id"] for r in responses] == [None, None, 1]
    assert "the line is not JSON" in responses[0]["error"]
    assert "a message is to be an object, got list" in responses[1]["error"]
    assert responses[2] == {"id": 1, "tool": "jax-tape"}


def test_runs_and_seconds_are_both_lower_bounds():
    function = Function(lambda raw: raw, lambda raw: sum(range(20_000)), lambda result, raw: result)
    tool = Tool("it", {"m": {"f": function}})
    ask = {"id": 0, "kind": "evaluate", "module": "m", "function": "f"}
    assert len(respond(ask | {"input": {"min_runs": 4, "min_seconds": 0}}, tool)["timings"]) == 4
    timings = respond(ask | {"input": {"min_runs": 1, "min_seconds": 0.02}}, tool)["timings"]
    assert sum(t["nanoseconds"] for t in timings) >= 0.02e9


def test_processor_time_is_measured_on_request():
    function = Function(lambda raw: raw, lambda raw: time.sleep(0.02), lambda result, raw: 1.0)
    tool = Tool("it", {"m": {"f": function}})
    ask = {"id": 0, "kind": "evaluate", "module": "m", "function": "f", "input": {}}
    wall, cpu = (respond(ask | clock, tool)["timings"][0]["nanoseconds"] for clock in ({}, {"clock": "cpu"}))
    assert cpu < wall >= 0.02e9  # it slept
    assert "no clock 'sun' here; there are wall, cpu" in respond(ask | {"clock": "sun"}, tool)["error"]


def test_what_a_library_prints_is_no_response(session):
    # The pipe belongs to responses: whatever is printed goes to the standard error.
    assert session.send("analysis", of=0, valid=True).keys() == {"id"}


@pytest.mark.parametrize("tool", ["jax", *PEERS])
def test_peers_agree_with_the_oracle(tool):
    with jax.enable_x64(True):
        modules = importlib.import_module(f"benchmarks.gradbench.on_{tool}").TOOL
        for case in share(CASES):
            for function in modules.modules[case.module]:
                if tool == "jax" and case.module in {"ht", "lstm", "gmm", "particle", "saddle"} and function != FUNCTIONS[case.module][1]:
                    continue  # compiled for seconds, and the derivative's program holds it
                response = respond({"id": 0, "kind": "evaluate", "module": case.module, "function": function, "input": case.input}, modules)
                assert response["success"], response
                assert not mismatches(expected(case.module, function, case.input), response["output"], 1e-9)


@pytest.mark.parametrize(("outer", "inner"), pairs("fr", "fr", 2))
def test_the_derivative_of_a_trajectory_of_derivatives(outer, inner):
    slope = np.imag(oracle.trajectory(0.1 + 1e-30j)) / 1e-30
    with jax.enable_x64(True):
        found = MODES[outer](lambda w: trajectory(w, MODES[inner]))(jax.numpy.float64(0.1))
        assert abs(float(found) - slope) < 1e-9 * abs(slope)


@pytest.mark.parametrize("inner", "fr")
def test_descents_inside_of_descents_are_differentiated_through(inner):
    """The best y of x is c x by some c < 1 near 0 after a few steps: its derivative counts."""
    with jax.enable_x64(True):
        start = jax.numpy.array([0.7, 0.4])

        def best(x):
            return argmin(lambda y: ((y - x) ** 2).sum(), start, MODES[inner])

        x = jax.numpy.array([0.2, 0.1])
        gradient = MODES["r"](lambda x: (best(x) ** 2).sum())(x)
        step = np.array([1e-6, 0.0])
        difference = (float((best(x + step) ** 2).sum()) - float((best(x - step) ** 2).sum())) / 2e-6
        assert abs(float(gradient[0]) - difference) < 1e-6


def test_the_constants_that_gradbench_expects_are_minima():
    slope = np.imag(oracle.trajectory(oracle.W + 1e-30j)) / 1e-30
    assert abs(slope) < 3e-3 < 1e-3 * abs(np.imag(oracle.trajectory(1e-30j)) / 1e-30)  # descents end where a step would be below 1e-5
    whole = expected("particle", "rr", {"w": 0.0, "most_steps": 1000}), expected("saddle", "rr", {"start": [1.0, 1.0], "most_steps": 1000})
    assert not mismatches(whole[0], oracle.W, 1e-12)
    assert not mismatches(whole[1], [oracle.SADDLE] * 4, 1e-12)
    assert expected("particle", "rr", {"w": 0.0}) == oracle.W
    assert expected("saddle", "rr", {"start": [1.0, 1.0]}) == [oracle.SADDLE] * 4


def test_the_oracle_knows_the_derivatives_of_its_values():
    for case in CASES:
        if case.module in {"llsq", "lse", "ode", "det"}:
            key = "A" if case.module == "det" else "x"
            x = np.asarray(case.input[key])

            def value(x, case=case, key=key):
                return np.ravel(expected(case.module, "primal", case.input | {key: x.tolist()}))[-1]

            slopes = np.array([(value(x + 1e-5 * e) - value(x - 1e-5 * e)) / 2e-5 for e in np.eye(x.size)])
            np.testing.assert_allclose(np.ravel(expected(case.module, "gradient", case.input)), slopes, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (1.0, 1.001),
        (1.0, float("nan")),
        ([1.0, 2.0], [1.0]),
        ([1.0, 2.0], [1.0, "b"]),
        ({"a": 1.0}, {"b": 1.0}),
        ({"a": 1.0}, [1.0]),
        ([1e6, 1.0], [1e6, 1.001]),
    ],
)
def test_what_is_wrong_is_noticed(wanted, found):
    assert len(mismatches(wanted, found)) == 1
    assert not mismatches(wanted, wanted)


def test_the_tolerance_is_relative_to_the_sum_of_magnitudes():
    assert not mismatches(1e3, 1e3 + 0.19)
    assert mismatches(1e3, 1e3 + 0.21)
    assert not mismatches(1e-9, 0.9e-4)


def test_the_compressed_jacobian_has_the_layout_of_the_reference():
    case = next(c for c in CASES if c.module == "ba")
    found = expected("ba", "jacobian", case.input)
    n, m, p = (case.input[key] for key in "nmp")
    assert [len(found[key]) for key in ("rows", "cols", "vals")] == [31, 31, 31]
    assert found["rows"][:3] == [0, 15, 30]
    assert found["rows"][-1] == 31 * p
    assert found["cols"][10:15] == [10, 11 * n, 11 * n + 1, 11 * n + 2, 11 * n + 3 * m]
    assert found["cols"][-1] == 11 * n + 3 * m + p - 1
    assert found["vals"][-1] == -2 * case.input["w"]


def test_the_runner_times_tools_in_turn_and_writes_a_page(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(runner.EFFORTS, "quick", runner.EFFORTS["tiny"])
    runner.main(["hello", "lse", "--quick", "--tools", "tape,jax", "--docs", str(tmp_path / "page.md")])
    out, err = capsys.readouterr()
    assert not err  # no progress where there is no terminal
    page_ = (tmp_path / "page.md").read_text()
    for text in (out, page_):
        assert "| function | input | tape | JAX | tape / JAX | first: tape | first: JAX |" in text
        assert "| lse gradient | n=10 |" in text
    assert "cores, CPU" in page_
    assert str(tmp_path) not in page_


def test_the_runner_tells_wrong_answers_and_ends_with_status_1(monkeypatch, capsys):
    monkeypatch.setitem(runner.EFFORTS, "quick", runner.EFFORTS["tiny"])
    monkeypatch.setattr(runner, "expected", lambda *_: 5.0)
    with pytest.raises(SystemExit) as e:
        runner.main(["hello", "--quick", "--tools", "tape"])
    assert e.value.code == 1
    assert "hello.square 3: tape: output: 5.0 was expected, got 9.0" in capsys.readouterr().out


def test_unknown_evals_and_tools_are_refused(capsys):
    for arguments, words in ((["warp"], "unknown eval warp; there are hello"), (["--tools", "warp"], "unknown tool warp; there are tape")):
        with pytest.raises(SystemExit):
            runner.main(arguments)
        assert words in capsys.readouterr().err


def test_a_tool_that_ends_is_told():
    dead = Session("tape")
    dead.send("start")
    dead.end()
    with pytest.raises(SilentToolError, match="tape has ended"):
        dead.send("define", module="hello")


def test_ratios_need_both_times():
    fast, slow = runner.Result(0.1, [0.001, 0.003, 0.002]), runner.Result(3.0, [])
    row = page.rows_of(
        {("lse", "n=1", "primal"): {"tape": fast, "jax": slow, "torch": runner.Result(problem="x")}}, ["tape", "jax", "torch"]
    )
    assert row == [["lse primal", "n=1", "2 ms", "3 s", "", "0.00067", "", "100 ms", "3 s", ""]]


def test_every_eval_has_cases_of_every_size():
    assert TOOL.modules.keys() == FUNCTIONS.keys()
    assert all(TOOL.modules[name].keys() == set(functions) for name, functions in FUNCTIONS.items())
    for size in ("quick", "default"):
        found = list(cases(size))
        assert {c.module for c in found} == FUNCTIONS.keys()
        assert len({(c.module, c.description) for c in found}) == len(found)
        assert all(isinstance(c, Case) for c in found)


def test_what_the_harness_reads_is_as_it_wants():
    """Names of evals, one a line and sorted; the label is the image's last line."""
    folder = pathlib.Path(runner.__file__).parent
    assert (folder / "evals.txt").read_text().split() == sorted(FUNCTIONS)
    lines = (folder / "Dockerfile").read_text().splitlines()
    assert lines[-1] == "LABEL org.opencontainers.image.source=https://github.com/gradbench/gradbench"
    assert lines[-2] == 'ENTRYPOINT ["python", "-m", "benchmarks.gradbench"]'


@pytest.mark.parametrize(("learns", "settle", "ran"), [(7, 60.0, 7 + QUIET + 1), (7, 0.0, 1), (10**9, 0.05, None)])
def test_a_tool_is_run_until_it_has_learnt_nothing_for_some_runs(learns, settle, ran):
    """And once more, which is timed; without ``settle``, as GradBench asks, at once; where it learns for ever, for as long as is said."""
    runs = []
    function = Function(lambda raw: raw, lambda _: runs.append(sum(i * i for i in range(1000))), lambda _, raw: raw)
    tool = Tool("learner", {"m": {"f": function}}, lambda: min(len(runs), learns))
    message = {"kind": "evaluate", "module": "m", "function": "f", "input": {"a": 1}, "settle": settle}
    response = respond(message, tool)
    assert response["success"], response
    assert len(response["timings"]) == 1
    assert len(runs) == ran or (ran is None and len(runs) > QUIET)
