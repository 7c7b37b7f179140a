"""``python -m tests.power.foreign [part of a name ...]``: check public functions that no one here wrote, where they are smooth.

Every failure must be in :data:`KNOWN`, each of them confirmed by a formula; the exit status counts the others, and what takes more than
:data:`SECONDS`. Equinox and Flax layers, optax's losses and the special functions of TensorFlow Probability's JAX substrate (``pip install
--no-deps tfp-nightly``, and absl-py, decorator, dm-tree, cloudpickle, gast and six, which it imports) are checked where those are
installed.
"""

from __future__ import annotations

import collections
import importlib
import importlib.util
import os
import sys
import time
import warnings

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np

from tape.testing import GradientMismatch, check_gradients

SECONDS = 20  # of processor time, that a function may take
TFP = "tensorflow_probability.substrates.jax.math"
ORDER = "the gradient by the order is zero"
SHAPE = (
    "the second derivatives by the shape are others: mpmath's for a = 0.7, p = 0.1 are {}, and the rule's mixed ones differ from each other"
)
KNOWN = {
    f"{TFP}.bessel_ive": ORDER,
    f"{TFP}.bessel_kve": ORDER,
    f"{TFP}.bessel_iv_ratio": ORDER,
    f"{TFP}.log_bessel_ive": ORDER,
    f"{TFP}.log_bessel_kve": ORDER,
    f"{TFP}.igammainv": SHAPE.format("0.477 and 1.906, not 0.691 and 0.850"),
    f"{TFP}.igammacinv": SHAPE.format("-0.843 and -4.138, not 0.892 and -20.03"),
    "jax.scipy.special.spence": "JAX 0.10.2: NaN for 1 < x <= 2 and 0 at 1, where log(x) / (1 - x) is meant",
    "jax.random.gamma": "a convention: implicit reparameterization, which no sample's derivative at a fixed key is",
}


def numbers(low, high, *shape):
    """Single-precision numbers between two bounds, always the same."""
    return np.random.default_rng((int(1e3 * (high - low)), *shape)).uniform(low, high, shape).astype(np.float32)


ANY, POSITIVE, INSIDE, ABOVE = numbers(-1.5, 1.5, 2, 3), numbers(0.3, 2, 2, 3), numbers(-0.8, 0.8, 2, 3), numbers(1.3, 3, 2, 3)
ROW, UNIT = numbers(-1.4, 1.4, 3), numbers(0.1, 0.9, 2, 3)
ONES, SHAPES, PARTS = (np.array(x, np.float32) for x in ([0.3, 1.2, 2.5, 4], [0.7, 1.5, 3, 5], [0.1, 0.4, 0.7, 0.95]))
MATRIX = numbers(-1, 1, 3, 3) + 3 * np.eye(3, dtype=np.float32)
DEFINITE = MATRIX @ MATRIX.T

# module: arguments and the functions that are called with them.
FUNCTIONS = {
    "jax.numpy": [
        (
            (ANY,),
            (
                "sin cos tan tanh sinh cosh exp exp2 expm1 arctan arcsinh square abs fabs negative positive sinc sign cbrt sum mean var "
                "std prod max min ptp cumsum cumprod sort flip fliplr flipud ravel transpose nansum nanmean nanstd nanvar nanmax nanmin "
                "nanprod nancumsum nancumprod real imag conj diff ediff1d gradient rot90 median nanmedian deg2rad rad2deg floor ceil trunc "
                "rint nan_to_num trapezoid cov corrcoef unwrap i0 angle"
            ),
        ),
        ((POSITIVE,), "log log2 log10 log1p sqrt reciprocal"),
        ((INSIDE,), "arcsin arccos arctanh"),
        ((ABOVE,), "arccosh"),
        (
            (ANY, ROW),
            "add subtract multiply divide maximum minimum fmax fmin arctan2 hypot logaddexp logaddexp2 copysign heaviside",
        ),
        ((POSITIVE, POSITIVE[0] + 0.1), "power float_power fmod remainder"),
        ((ROW, ROW[::-1] + 0.3), "dot matmul inner outer kron vdot convolve correlate cross polyval polyadd polymul polysub"),
        ((MATRIX,), "trace diag diagonal tril triu"),
    ],
    "jax.numpy.fft": [((ROW,), "fft ifft rfft ihfft"), ((ANY,), "fft2 ifft2 rfft2 fftn")],
    "jax.numpy.linalg": [
        ((MATRIX,), "det slogdet inv pinv norm matrix_transpose trace svdvals matrix_norm vector_norm cond"),
        ((DEFINITE,), "cholesky eigvalsh"),
        ((MATRIX, ROW), "solve lstsq"),
    ],
    "jax.nn": [
        (
            (ANY,),
            (
                "relu relu6 sigmoid softplus sparse_plus sparse_sigmoid soft_sign silu log_sigmoid leaky_relu hard_sigmoid hard_silu "
                "hard_tanh elu celu selu gelu squareplus mish softmax log_softmax logsumexp standardize"
            ),
        ),
    ],
    "jax.scipy.special": [
        ((ANY,), "erf erfc expit log_ndtr ndtr i0 i0e i1 i1e sinc softmax log_softmax logsumexp expi wofz"),
        ((POSITIVE,), "entr gammaln gamma digamma exp1 spence"),
        ((INSIDE,), "erfinv"),
        ((UNIT,), "logit ndtri"),
        ((POSITIVE, POSITIVE[::-1] + 0.1), "beta betaln xlogy xlog1py kl_div rel_entr"),
    ],
    "jax.scipy.linalg": [((MATRIX,), "expm det inv lu"), ((DEFINITE,), "cholesky"), ((MATRIX, ROW), "solve")],
    TFP: [
        (
            (ONES,),
            (
                "dawsn erfcx lambertw lambertw_winitzki_approx log1mexp log1psquare log_cosh log_cumsum_exp logerfc logerfcx "
                "softplus_inverse sqrt1pm1"
            ),
        ),
        ((PARTS,), "erfcinv round_exponential_bump_function smootherstep"),
        ((ONES + 8,), "log_gamma_correction"),
        ((ONES, SHAPES), "atan_difference lbeta log_add_exp log_sub_exp owens_t soft_threshold"),
        ((ONES, SHAPES + 9), "log_gamma_difference"),
        ((ONES + 5, SHAPES), "log_combinations"),
        ((SHAPES, ONES), "bessel_ive bessel_kve bessel_iv_ratio log_bessel_ive log_bessel_kve"),
        ((SHAPES, PARTS), "igammainv igammacinv"),
        ((SHAPES, SHAPES + 1, PARTS), "betainc betaincinv"),
    ],
    "optax": [
        ((ANY, ANY[::-1] + 0.2), "squared_error l2_loss log_cosh huber_loss cosine_similarity cosine_distance"),
        ((ANY, UNIT), "sigmoid_binary_cross_entropy softmax_cross_entropy sigmoid_focal_loss poly_loss_cross_entropy"),
        ((np.log(UNIT), UNIT), "kl_divergence convex_kl_divergence"),
        ((ANY, ANY + 0.3, ANY[::-1]), "triplet_margin_loss"),
    ],
}


def partly(call, layer):
    """``call`` of a layer as a function of its parameters, and these."""
    leaves, tree = jax.tree.flatten(layer)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def fun(parameters, *inputs):
        filled = list(leaves)
        for i, value in zip(at, parameters, strict=True):
            filled[i] = value
        return call(jax.tree.unflatten(tree, filled), *inputs)

    return fun, [leaves[i] for i in at]


def equinox_layers():
    """Layers of Equinox, on small inputs."""
    nn, key = importlib.import_module("equinox").nn, jax.random.PRNGKey(0)
    layers = {
        "Linear": (nn.Linear(3, 2, key=key), ROW),
        "MLP": (nn.MLP(3, 2, 4, 2, key=key), ROW),
        "Conv1d": (nn.Conv1d(2, 3, 2, key=key), ANY),
        "ConvTranspose1d": (nn.ConvTranspose1d(2, 2, 2, key=key), ANY),
        "LayerNorm": (nn.LayerNorm(3), ROW),
        "RMSNorm": (nn.RMSNorm(3), ROW),
        "GroupNorm": (nn.GroupNorm(1, 2), ANY),
        "GRUCell": (nn.GRUCell(3, 3, key=key), ROW, ROW + 1),
        "MultiheadAttention": (nn.MultiheadAttention(1, 3, key=key), ANY, ANY, ANY),
        "PReLU": (nn.PReLU(), ROW),
        "AvgPool1d": (nn.AvgPool1d(2), ANY),
        "MaxPool1d": (nn.MaxPool1d(2), ANY),
    }
    for name, (layer, *inputs) in layers.items():
        fun, parameters = partly(lambda layer, *xs: layer(*xs), layer)
        yield f"equinox.nn.{name}", fun, (parameters, *inputs)


def flax_layers():
    """Layers of Flax Linen, on small inputs."""
    nn = importlib.import_module("flax.linen")
    image = numbers(-1, 1, 1, 3, 3, 1)
    layers = {
        "Dense": (nn.Dense(2), ANY),
        "Conv": (nn.Conv(2, (2, 2)), image),
        "ConvTranspose": (nn.ConvTranspose(2, (2, 2)), image),
        "LayerNorm": (nn.LayerNorm(), ANY),
        "RMSNorm": (nn.RMSNorm(), ANY),
        "GroupNorm": (nn.GroupNorm(1), ANY),
        "BatchNorm": (nn.BatchNorm(use_running_average=True), ANY),
        "MultiHeadDotProductAttention": (nn.MultiHeadDotProductAttention(1), ANY[None], ANY[None]),
        "GRUCell": (nn.GRUCell(3), ANY, ANY),
    }
    for name, (layer, *inputs) in layers.items():
        yield f"flax.linen.{name}", layer.apply, (layer.init(jax.random.PRNGKey(1), *inputs), *inputs)


def entries():
    """Names, functions and arguments."""
    for module, rows in FUNCTIONS.items():
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            continue
        home = importlib.import_module(module)
        for args, names in rows:
            yield from ((f"{module}.{name}", getattr(home, name), args) for name in names.split() if hasattr(home, name))
    yield "jax.numpy.frexp", lambda x: jnp.frexp(x)[0], (POSITIVE,)
    yield "jax.random.gamma", lambda a: jax.random.gamma(jax.random.key(1), a), (POSITIVE,)
    yield "jax.nn.dot_product_attention", jax.nn.dot_product_attention, (ANY[None, :, None],) * 3
    for framework, layers in (("equinox", equinox_layers), ("flax", flax_layers)):
        if importlib.util.find_spec(framework):
            yield from layers()


def verdict(fun, args):
    """The checker's verdict, and its report."""
    try:
        report = check_gradients(fun, *args)
    except GradientMismatch as mismatch:
        return "fail", str(mismatch)
    return report.verdict, str(report)


def main(parts):
    """Check, print, count."""
    warnings.simplefilter("ignore")
    counts, unknown = collections.Counter(), 0
    start = time.process_time()
    for name, fun, args in entries():
        if parts and not any(part in name for part in parts):
            continue
        began = time.process_time()
        said, report = verdict(fun, args)
        seconds = time.process_time() - began
        counts[said] += 1
        unknown += said == "fail" and name not in KNOWN
        if seconds > SECONDS:
            unknown += 1
            print(f"{name} took {seconds:.0f} s of processor time", flush=True)
        if said != "pass":
            print(f"{name}: {said}" + (f" ({KNOWN[name]})" if name in KNOWN else f"\n{report}\n"), flush=True)
    print(f"{dict(counts)} in {time.process_time() - start:.0f} s of processor time")
    return unknown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
