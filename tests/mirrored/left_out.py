"""What the derivatives of the mirrored namespaces are not held against JAX for, and why."""

import jax


def _names(text):
    return frozenset(text.split())


LEFT_OUT = {
    "no floats come in": {
        "jax.numpy": _names(
            """
            arange bartlett bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_not bitwise_or
            bitwise_right_shift bitwise_xor blackman broadcast_shapes can_cast diag_indices empty eye gcd hamming
            hanning identity indices invert isdtype issubdtype kaiser lcm left_shift lexsort mask_indices ones packbits
            promote_types ravel_multi_index right_shift tri tril_indices triu_indices unpackbits unravel_index zeros
            """
        ),
        "jax.numpy.fft": _names("fftfreq rfftfreq"),
        "jax.nn": _names("one_hot"),
        "jax.lax": _names(
            """
            bitwise_and bitwise_not bitwise_or bitwise_xor broadcast_shapes broadcasted_iota clz conv_dimension_numbers
            conv_general_permutations conv_general_shape_tuple conv_shape_tuple conv_transpose_shape_tuple full iota
            mulhi padtype_to_pads population_count reduce_and reduce_or reduce_window_shape_tuple reduce_xor shift_left
            shift_right_arithmetic shift_right_logical
            """
        ),
        "jax.lax.linalg": _names("lu_pivots_to_permutation"),
        "jax.random": _names(
            """
            PRNGKey ball bernoulli binomial bits cauchy choice exponential fold_in geometric gumbel key key_data laplace
            logistic lognormal maxwell normal orthogonal poisson rademacher randint split wrap_key_data
            """
        ),
        "jax.scipy.linalg": _names("dft hadamard helmert hilbert invhilbert invpascal pascal"),
        "jax.scipy.special": _names("bernoulli factorial"),
    },
    "no floats come out": {
        "jax.numpy": _names(
            """
            all allclose any argmax argmin argpartition argsort array_equal array_equiv count_nonzero diag_indices_from
            digitize einsum_path equal greater greater_equal isclose iscomplex iscomplexobj isfinite isin isinf isnan
            isneginf isposinf isreal isrealobj isscalar iterable less less_equal logical_and logical_not logical_or
            logical_xor nanargmax nanargmin ndim not_equal searchsorted shape signbit size tril_indices_from
            triu_indices_from
            """
        ),
        "jax.numpy.linalg": _names("matrix_rank"),
        "jax.lax": _names("argmax argmin dtype eq ge gt is_finite le lt ne"),
        "jax.random": _names("categorical"),
    },
    "the shape of the result depends on values (tests/mirrored/test_numpy.py)": {
        "jax.numpy": _names(
            """
            argwhere bincount compress extract flatnonzero intersect1d nonzero roots setdiff1d setxor1d trim_zeros
            union1d unique unique_all unique_counts unique_inverse unique_values
            """
        ),
    },
    "reads, writes or prints": {
        "jax.numpy": _names(
            """
            array_repr array_str from_dlpack frombuffer fromfile fromiter fromstring get_printoptions load printoptions
            save savez set_printoptions
            """
        ),
    },
    "answers from shapes and dtypes": {
        "jax.numpy": _names("result_type"),
        "jax.nn": _names("get_scaled_dot_general_config"),
        "jax.random": _names("key_dtype key_impl"),
    },
    "draws by a key, and shapes": {
        "jax.nn.initializers": _names(
            "constant delta_orthogonal glorot_normal glorot_uniform he_normal he_uniform kaiming_normal kaiming_uniform lecun_normal "
            "lecun_uniform normal ones orthogonal truncated_normal uniform variance_scaling xavier_normal xavier_uniform zeros"
        ),
    },
    "needs a mapped axis, a mesh or a token": {
        "jax.lax": _names(
            """
            after_all all_gather all_to_all axis_index axis_size create_token pbroadcast pcast pmax pmean pmin ppermute
            precv psend pshuffle psum psum_scatter psum_scatter_start pswapaxes ragged_all_to_all
            with_sharding_constraint
            """
        ),
    },
    "a function of functions (tests/callables)": {
        "jax.numpy": _names("fromfunction frompyfunc vectorize"),
        "jax.lax": _names("composite custom_linear_solve custom_root platform_dependent reduce reduce_window scatter_apply while_loop"),
        "jax.scipy.linalg": _names("funm"),
        "jax.scipy.optimize": _names("minimize"),
    },
    "JAX has no derivative of it": {
        "jax.numpy": _names("nextafter spacing"),
        "jax.lax": _names("igamma_grad_a nextafter random_gamma_grad scaled_dot zeta"),
        "jax.lax.linalg": _names("cholesky_update hessenberg householder_product ormqr qdwh schur symmetric_product tridiagonal"),
        "jax.random": _names("clone"),
        "jax.nn": _names("scaled_dot_general scaled_matmul"),
        "jax.scipy.linalg": _names("eigh_tridiagonal hessenberg qr_multiply rsf2csf schur solve_sylvester sqrtm"),
        "jax.scipy.special": _names("hyp1f1 hyp2f1"),
        "jax.scipy.stats.gumbel_l": _names("ppf"),
        "jax.scipy.stats.gumbel_r": _names("ppf"),
        "jax.scipy.stats.poisson": _names("entropy"),
    },
    "JAX asks for a flag; tests/rules differentiates the primitive": {
        "jax.numpy": _names("poly"),
        "jax.numpy.linalg": _names("eig eigvals"),
        "jax.lax.linalg": _names("eig"),
    },
    "JAX maps and transposes some of its forms only (tests/mirrored/test_namespaces.py)": {"jax.lax": _names("ragged_dot_general")},
    "a type of arguments": {"jax.lax": _names("ConvGeneralDilatedDimensionNumbers DotDimensionNumbers PrecisionLike")},
    "reads bits: where a gradient would be lost it is refused (tests/variables)": {"jax.lax": _names("bitcast_convert_type")},
    "cuts gradients off (tests/contracts)": {"jax.lax": _names("stop_gradient")},
    "draws numbers, or has no defined values": {"jax.lax": _names("empty rng_bit_generator rng_uniform")},
    "for a traced function only: hands its argument on": {"jax.lax": _names("dce_sink shape_as_value stage")},
}

# Those of which JAX has a first derivative only.
IN_SECOND_ORDER = {
    ("jax.lax", "ragged_dot"),
    *(("jax.random", name) for name in ("beta", "chisquare", "dirichlet", "f", "gamma", "generalized_normal", "loggamma", "t")),
    ("jax.scipy.special", "exp1"),
    ("jax.scipy.special", "expn"),
    *([("jax.scipy.special", "erfcx")] if jax.__version_info__ >= (0, 12) else []),  # JAX's own second derivative raises, but for scalars
}

# Those whose second derivative takes seconds to compile.
SLOW = {
    ("jax.numpy", "polyfit"),
    ("jax.numpy.linalg", "lstsq"),
    ("jax.scipy.linalg", "expm"),
    ("jax.scipy.linalg", "expm_frechet"),
    *(("jax.scipy.special", name) for name in ("beta", "betaln", "expi", "ndtri", "poch", "spence", "zeta")),
    *(("jax.scipy.sparse.linalg", name) for name in ("bicgstab", "cg", "gmres")),
    *(("jax.scipy.stats.beta", name) for name in ("logpdf", "pdf")),
    *(("jax.scipy.stats.betabinom", name) for name in ("logpmf", "pmf")),
    *(("jax.scipy.stats.nbinom", name) for name in ("logpmf", "pmf")),
    *(("jax.scipy.stats.norm", name) for name in ("isf", "ppf")),
    *(("jax.scipy.stats.truncnorm", name) for name in ("cdf", "logcdf", "logpdf", "logsf", "pdf", "sf")),
}

# Those that JAX computes in single precision, whatever comes in.
ROUNDED = {("jax.nn", "dot_product_attention")}
