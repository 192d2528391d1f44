"""Compiled kernels of the gradient flow: products, softmax residual, right-hand side, integrator.

Everything here is float64, C-contiguous and *class-major*: a state X is (N, r) and a table of
logits (N, M), the transpose of the paper's layout, because the inner loops run over examples (M)
or features (r), which are many, rather than over classes (N), which are few.

One right-hand side serves both formulations of the flow (see `comln_serve.flow.solve`):

    logits = L0 - X F^T          F (M, r)
    R      = w (softmax(logits) - Y)
    dX/dt  = R G^T - lam X       G (r, M), or the identity when G is empty

    reduced s-space (Algorithm 4):  X = s^T,        F = K (M, M), G = identity
    weight space:                   X = (W0 - W),   F = phi (M, d), G = phi^T (d, M)

Numba compiles a kernel at its first call and keeps the machine code on disk.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# Numba infers the types of the kernels' arguments, which the docstrings state.

import math

import numpy as np
from numba import njit

from comln_serve.flow.tableau import STAGES, A, E

# For exp_of_negatives: ln 2 in two parts, the first with zeros enough in its tail that k times it
# is exact; 1.5 x 2^52; 1 / q! from q = 13 down to 0.
_INVERSE_LN2 = 1.0 / np.log(2.0)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ROUND = 6755399441055744.0
_EXP_SERIES = tuple(1.0 / float(math.factorial(q)) for q in range(13, -1, -1))

OK = 0
TOO_MANY_STEPS = 1
STEP_UNDERFLOW = 2
NOT_FINITE = 3
CANCELLED = 4

# Re-association lets dot products use vector instructions. NaN and infinity keep their meaning:
# the integrator relies on them to notice a step that left the domain.
_FAST = {"reassoc", "contract", "nsz", "arcp"}

# Step-size controller (Hairer, Norsett, Wanner, "Solving Ordinary Differential Equations I",
# section II.4; PI form of section IV.2).
_SAFETY = 0.9
_PI_BETA = 0.04
_PI_ALPHA = 0.2 - 0.75 * _PI_BETA
_SHRINK, _GROW = 0.2, 10.0

# Dormand-Prince is stable on the negative real axis to about -3.3; at -3 it damps by 0.57 a step.
_STABLE = 3.0


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def product(F, X, out):
    """out[n, i] = sum_j F[i, j] X[n, j] for F (I, J), X (N, J), out (N, I).

    Four classes share each pass over a row of F, so F is read N / 4 times.
    """
    n_rows, n_inner = F.shape
    n_classes = X.shape[0]
    n = 0
    while n + 4 <= n_classes:
        for i in range(n_rows):
            a = b = c = d = 0.0
            for j in range(n_inner):
                f = F[i, j]
                a += f * X[n, j]
                b += f * X[n + 1, j]
                c += f * X[n + 2, j]
                d += f * X[n + 3, j]
            out[n, i] = a
            out[n + 1, i] = b
            out[n + 2, i] = c
            out[n + 3, i] = d
        n += 4
    while n < n_classes:
        for i in range(n_rows):
            a = 0.0
            for j in range(n_inner):
                a += F[i, j] * X[n, j]
            out[n, i] = a
        n += 1


@njit(cache=True, nogil=True, fastmath={"contract"}, error_model="numpy")
def exp_of_negatives(x):
    """exp in place of a flat array whose entries are <= 0, to 2 units in the last place.

    Half of a small solve would be spent in the C library's exp, which takes one number at a time;
    this is arithmetic alone, which the compiler turns into vector instructions. With k the integer
    nearest x / ln 2 and r = x - k ln 2, exp(x) = 2^k exp(r), and the Taylor series of exp(r) to
    r^13 is exact to 4e-18 for |r| <= ln(2) / 2. Below -708 the result stays at exp(-708) = 3e-308.

    No re-association here: adding and subtracting 1.5 x 2^52 rounds to an integer, and leaves that
    integer in the low bits of the sum.
    """
    rounded = np.empty_like(x)
    bits = rounded.view(np.int64)
    power = np.empty_like(x)
    power_bits = power.view(np.int64)
    for i in range(x.size):
        x[i] = max(x[i], -708.0)
        rounded[i] = x[i] * _INVERSE_LN2 + _ROUND
    for i in range(x.size):
        power_bits[i] = (bits[i] + 1023) << 52
    for i in range(x.size):
        k = rounded[i] - _ROUND
        r = (x[i] - k * _LN2_HIGH) - k * _LN2_LOW
        series = _EXP_SERIES[0]
        for q in range(1, len(_EXP_SERIES)):
            series = series * r + _EXP_SERIES[q]
        x[i] = series * power[i]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def softmax_classes(logits, P):
    """Softmax over the classes (axis 0) of logits (N, M) into P (N, M), safe for any magnitude."""
    n_classes, n_examples = logits.shape
    top = logits[0].copy()
    for n in range(1, n_classes):
        for m in range(n_examples):
            top[m] = max(top[m], logits[n, m])
    for n in range(n_classes):
        for m in range(n_examples):
            P[n, m] = logits[n, m] - top[m]
    exp_of_negatives(P.reshape(n_classes * n_examples))
    total = P[0].copy()
    for n in range(1, n_classes):
        for m in range(n_examples):
            total[m] += P[n, m]
    for n in range(n_classes):
        for m in range(n_examples):
            P[n, m] /= total[m]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def weighted_residual(P, Y, w, out):
    """out[:, m] = w_m (p_m - y_m) for (N, M) tables.

    A late flow has p_m = y_m to many digits: the entry of the largest label is taken as minus the
    sum of the others, since p_m - y_m itself would be rounding error once 1 - p_m is near 1e-16.
    """
    n_classes, n_examples = P.shape
    top = np.zeros(n_examples, dtype=np.int64)
    largest = Y[0].copy()
    for n in range(1, n_classes):
        for m in range(n_examples):
            if Y[n, m] > largest[m]:
                largest[m] = Y[n, m]
                top[m] = n
    others = np.zeros(n_examples)
    for n in range(n_classes):
        for m in range(n_examples):
            out[n, m] = w[m] * (P[n, m] - Y[n, m])
            others[m] += out[n, m] if top[m] != n else 0.0
    for m in range(n_examples):
        out[top[m], m] = -others[m]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def covariance_product(P, w, V, out):
    """out[:, m] = A_m V[:, m] with A_m = w_m (diag(p_m) - p_m p_m^T), for (N, M) tables.

    A_m does not see a constant added to V[:, m]: measured from the likeliest class, V minus its
    mean keeps its digits when that class has nearly all the probability.
    """
    n_classes, n_examples = P.shape
    for m in range(n_examples):
        top = 0
        for n in range(1, n_classes):
            if P[n, m] > P[top, m]:
                top = n
        origin = V[top, m]
        mean = 0.0
        for n in range(n_classes):
            mean += P[n, m] * (V[n, m] - origin)
        for n in range(n_classes):
            out[n, m] = w[m] * P[n, m] * ((V[n, m] - origin) - mean)


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def vector_field(F, G, L0, Y, w, lam, X, P, table, out):
    """Right-hand side of the flow at X into out; leaves softmax(logits) in P. See the module.

    `table` (N, M) is scratch.
    """
    product(F, X, table)
    n_classes, n_examples = L0.shape
    for n in range(n_classes):
        for m in range(n_examples):
            table[n, m] = L0[n, m] - table[n, m]
    softmax_classes(table, P)
    if G.shape[0] == 0:
        weighted_residual(P, Y, w, out)
    else:
        weighted_residual(P, Y, w, table)
        product(G, table, out)
    for n in range(n_classes):
        for j in range(X.shape[1]):
            out[n, j] -= lam * X[n, j]


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _power_iteration(F, G, P, w, v, table, table2):
    """Two power iterations for the largest eigenvalue of the flow's Jacobian, v (N, r) in place.

    The operator A K is similar to the positive semi-definite K^1/2 A K^1/2: its spectrum is real
    and not negative, so the iteration converges to its spectral radius. Starting from the last
    step's vector, two iterations a step track it.
    """
    radius = 0.0
    for _ in range(2):
        product(F, v, table)
        covariance_product(P, w, table, table2)
        if G.shape[0] == 0:
            image = table2
        else:
            image = np.empty_like(v)
            product(G, table2, image)
        before = np.sqrt(np.sum(v * v))
        after = np.sqrt(np.sum(image * image))
        if not (before > 0.0 and after > 0.0 and np.isfinite(after)):
            return 0.0
        radius = after / before
        v[:] = image / after
    return radius


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def _starting_vector(n_classes, size):
    """A fixed vector with weight on every mode; what matters is only that no mode is missing."""
    v = np.empty((n_classes, size))
    state = 1
    for n in range(n_classes):
        for j in range(size):
            state = (state * 16807) % 2147483647
            v[n, j] = state / 2147483647.0 - 0.5
    return v


@njit(cache=True, nogil=True, fastmath=_FAST, error_model="numpy")
def integrate(  # noqa: PLR0915 (one loop, kept whole for the compiler and the reader)
    F, G, L0, Y, w, lam, T, rtol, atol, max_steps, limit_steps, record, cancel
):
    """Integrate the flow from X = 0 to time T with Dormand-Prince 5(4), error and step controlled.

    Args:
        F, G, L0, Y: (M, r), (r, M) or (0, 0), (N, M), (N, M); see the module.
        w: (M,) weight of each support example.
        lam, T, rtol, atol: scalars; atol bounds the error of an entry of X, absolute.
        max_steps: tried steps allowed, rejected ones included.
        limit_steps: keep h (rho + lam) <= 3, rho the spectral radius of the Jacobian. Error control
            of X alone lets the step grow to the edge of stability once fast modes have died out,
            where their derivatives are no longer damped: trajectories that are differentiated need
            it.
        record: keep the state at the start of every accepted step, and the step sizes.
        cancel: (1,) bool; set to True by another thread, it ends the solve at the next step.

    Returns:
        status, X (N, r), accepted, rejected, states (accepted, N, r), steps (accepted,), t:
        status is one of the module's codes; states and steps are empty unless `record`.
    """
    n_classes, n_examples = L0.shape
    size = F.shape[1]
    X = np.zeros((n_classes, size))
    X_new = np.empty_like(X)
    stage = np.empty_like(X)
    k = np.empty((STAGES, n_classes, size))
    P = np.empty((n_classes, n_examples))
    table = np.empty_like(P)
    table2 = np.empty_like(P)
    v = _starting_vector(n_classes, size)
    capacity = 64 if record else 0
    states = np.empty((capacity, n_classes, size))
    steps = np.empty(capacity)
    accepted = 0
    rejected = 0
    t = 0.0
    if T == 0.0:
        return OK, X, accepted, rejected, states[:0], steps[:0], t

    vector_field(F, G, L0, Y, w, lam, X, P, table, k[0])
    # The first step: a tenth of the stability limit, found from a few power iterations more than
    # a later step needs, so that the trial step is on the right scale even when T is huge.
    radius = lam
    for _ in range(3):
        radius = lam + _power_iteration(F, G, P, w, v, table, table2)
    h = min(T, 0.1 * _STABLE / radius) if radius > 0.0 else T
    last_error = 1e-4
    after_rejection = False
    new_point = True
    limit = T
    while True:
        if cancel[0]:
            return CANCELLED, X, accepted, rejected, states, steps, t
        if accepted + rejected >= max_steps:
            return TOO_MANY_STEPS, X, accepted, rejected, states, steps, t
        if limit_steps and new_point:
            radius = lam + _power_iteration(F, G, P, w, v, table, table2)
            limit = _STABLE / radius if radius > 0.0 else T
            h = min(h, limit)
        new_point = False
        last = t + h >= T * (1.0 - 1e-14)
        if last:
            h = T - t
        elif t + h <= t:
            return STEP_UNDERFLOW, X, accepted, rejected, states, steps, t

        for i in range(1, STAGES):
            target = X_new if i == STAGES - 1 else stage
            target[:] = X
            for q in range(i):
                weight = h * A[i, q]
                if weight != 0.0:
                    for n in range(n_classes):
                        for j in range(size):
                            target[n, j] += weight * k[q, n, j]
            vector_field(F, G, L0, Y, w, lam, target, P, table, k[i])

        stage[:] = 0.0
        for q in range(STAGES):
            weight = h * E[q]
            if weight != 0.0:
                for n in range(n_classes):
                    for j in range(size):
                        stage[n, j] += weight * k[q, n, j]
        error = 0.0
        finite = True
        for n in range(n_classes):
            for j in range(size):
                scale = atol + rtol * max(abs(X[n, j]), abs(X_new[n, j]))
                ratio = abs(stage[n, j]) / scale
                finite = finite and np.isfinite(ratio)
                error = max(error, ratio)

        if not finite:
            rejected += 1
            after_rejection = True
            h *= 0.1
            if t + h <= t or h < 1e-300:
                return NOT_FINITE, X, accepted, rejected, states, steps, t
            continue
        if error > 1.0:
            rejected += 1
            after_rejection = True
            h *= max(_SHRINK, _SAFETY * error**-0.2)
            continue

        if record:
            if accepted == capacity:
                capacity *= 2
                more_states = np.empty((capacity, n_classes, size))
                more_states[:accepted] = states
                states = more_states
                more_steps = np.empty(capacity)
                more_steps[:accepted] = steps
                steps = more_steps
            states[accepted] = X
            steps[accepted] = h
        accepted += 1
        t += h
        X[:] = X_new
        if last:
            return OK, X, accepted, rejected, states[:accepted], steps[:accepted], T
        k[0] = k[STAGES - 1]
        new_point = True
        growth = _SAFETY * max(error, 1e-10) ** -_PI_ALPHA * last_error**_PI_BETA
        growth = min(_GROW, max(_SHRINK, growth))
        if after_rejection:
            growth = min(growth, 1.0)
        h *= growth
        last_error = max(error, 1e-4)
        after_rejection = False
