"""Contract 30: a number that is asked for is given, and one that somebody takes in silence is not, where a gradient would be lost."""

import array as arrays
import cmath
import math
from math import exp
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import integrate, optimize

import tape
import tape.numpy as tnp
from tape.errors import LostGradientError, TapeTypeError

GLOBAL = np.zeros(2)


def by_a_cell(v):
    array = np.zeros(2)

    def fill():
        array.fill(v)

    fill()


def by_a_local_name(v):
    f = math.log
    return f(v) + 1.0


def by_an_attribute(v):
    holder = SimpleNamespace(inner=SimpleNamespace(array=np.zeros(3)))
    holder.inner.array.fill(v * 2.0)


def by_a_root_finder(v):
    """SciPy calls twice before it asks whether the first call failed; a method that Python has to look for then clears the error."""
    for _ in range(10):
        try:
            return optimize.brentq(lambda t: t - v, 0, 3)
        except (TypeError, ValueError) as e:
            if isinstance(e, LostGradientError):
                raise
    return None


SILENT = {
    "math.exp(v)": lambda v: math.exp(v),
    "math.log(v)": by_a_local_name,
    "math.hypot(v)": lambda v: 1.0 + math.hypot(float(v), tnp.sin(v) * 2.0),
    "math.fsum(v)": lambda v: math.fsum([v, v]),
    "math.pow(v)": lambda v: [math.pow(v, 2) for _ in range(1)],
    "math.sqrt(v)": lambda v: math.sqrt(math.exp(float(v)) + v),
    "cmath.exp(v)": lambda v: cmath.exp(v),
    "array.fill(v)": by_an_attribute,
    "scipy.integrate.quad of v": lambda v: integrate.quad(lambda t: t * v, 0, 1),
    "a root finder of scipy.optimize of v": by_a_root_finder,
    "np.fromiter(v, dtype)": lambda v: np.fromiter((a for a in [v, v]), float),
}


@pytest.mark.parametrize("what", SILENT)
def test_contract_30_a_number_that_is_taken_in_silence_is_refused(what):
    v = tape.Variable(2.0)
    with pytest.raises((LostGradientError, ValueError, SystemError)) as caught:
        SILENT[what](v)
    error = caught.value if isinstance(caught.value, LostGradientError) else caught.value.__cause__  # NumPy, SciPy put their own before it
    assert isinstance(error, LostGradientError)
    assert str(error).startswith(what)
    assert "shape (), dtype float32" in str(error)


def test_fill_is_refused_however_the_array_is_reached():
    v = tape.Variable(2.0)
    with pytest.raises(ValueError, match="array") as caught:
        by_a_cell(v)
    assert isinstance(caught.value.__cause__, LostGradientError)
    with pytest.raises(ValueError, match="array"):
        GLOBAL.fill(v)
    assert not GLOBAL.any()
    with pytest.raises(LostGradientError):
        exp(v)
    plain = arrays.array("d")
    with pytest.raises(LostGradientError, match=r"array\.append\(v\): "):
        plain.append(v)
    with pytest.raises(LostGradientError, match=r"array\.array\(code, \[v\]\): "):
        arrays.array("f", [1.0, v])
    assert arrays.array("f", [float(v)]) == arrays.array("f", [v.detach()])


@pytest.mark.parametrize(
    "ask", [float, int, bool, np.asarray, lambda k: k.item(), lambda k: k.tolist(), lambda k: k.tobytes(), lambda k: [1][k]]
)
def test_a_key_is_no_number(ask):
    asked = r"np\.asarray" if ask is np.asarray else r"\w+"
    with pytest.raises(TapeTypeError, match=rf"^{asked}: a Variable that is a key \(shape \(\), dtype key<fry>\)"):
        ask(tape.random.key(3))


def test_what_says_that_it_wants_a_number_gets_it():
    v, array = tape.Variable(2.5), np.zeros(2)
    assert math.exp(float(v)) == math.exp(2.5)
    assert [round(float(v), 1), int(v), complex(v), f"{v:.2f}"] == [2.5, 2, 2.5 + 0j, "2.50"]
    assert not math.isnan(v)
    assert math.isfinite(v)
    assert math.floor(v) == 2
    assert integrate.quad(lambda t: 2 * float(v), 0, 1)[0] == 5.0
    assert optimize.brentq(lambda t: float(t - v), 0, 3) == 2.5
    array.fill(float(v))
    array.fill(v.detach())
    with tape.no_grad():
        array.fill(v)
        assert math.exp(v) == math.exp(2.5)
    assert math.exp(v.detach()) == math.exp(2.5)
    assert array.tolist() == [2.5, 2.5]


def test_the_same_line_may_call_this_and_that():
    """What a name leads to is looked up at every call."""
    v = tape.Variable(2.0)
    functions = [float, math.exp, int, math.isnan, complex, math.sqrt]
    refused = []
    for function in functions:
        try:
            function(v)
        except LostGradientError:
            refused.append(function)
    assert refused == [math.exp, math.sqrt]


def test_a_call_that_python_has_specialized_is_refused_all_the_same():
    def called(v):
        return math.exp(v)

    for _ in range(50):
        called(2.5)
    for _ in range(20):
        with pytest.raises(LostGradientError):
            called(tape.Variable(2.5))
