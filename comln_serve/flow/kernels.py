"""Compiled kernels of the gradient flow: products, softmax residual, right-hand side, integrator.

Everything here is float64, C-contiguous and *class-major*: a state X is (N, r) and a table of
logits (N, M), the transpose of the paper's layout, because the inner loops run over examples (M)
or features (r), which are many, rather than over classes (N), which are few.

One right-hand side serves both formulations of the flow (see `comln_serve.flow.solve`):

    logits = L0 - X F^T          F (M, r)
    R      = w (softmax(logits) - Y)
    dX/dt  = R G^T - lam X       G (r, M), or the identity when G is empty

    reduced s-space (Algorithm 6):  X = s^T,        F = K (M, M), G = identity
    weight space:                   X = (W0 - W),   F = phi (M, d), G = phi^T (d, M)

Numba compiles a kernel at its first call, together with those that it calls, and keeps the machine
code on disk until the kernel's own file changes. That is why all of them are in one file: code that
was compiled from an older version of another file would not be noticed.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# Numba infers the types of the kernels' arguments, which the docstrings state.

import math
from typing import Any

import numpy as np
from numba import njit

from comln_serve.flow.tableau import NODES, STAGES, A, D, E

# For exp_of_negatives: ln 2 in two parts, the first with enough trailing zeros that its product
# with k is exact; 1.5 x 2^52; 1 / q! from q = 13 down to 0.
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
FULL = 5

# Indices of the state that `integrate` keeps between calls: its own time, the knee that relates it
# to flow time, step to try, last error, whether the last try was rejected, accepted and rejected
# steps, whether the last step tracked the spectral radius, and the number of marks passed.
TIME, KNEE, STEP, ERROR, SHRUNK, ACCEPTED, REJECTED, TRACKED, PASSED = range(9)
MEMORY = 9

# Re-association lets dot products use vector instructions. NaN and infinity keep their meaning, as
# the integrator detects a step that left the domain by them.
_FAST = {"reassoc", "contract", "nsz", "arcp"}

# Options of kernels that Python calls, and of those that only other kernels call. The latter are
# compiled into their callers: separate entries and copies on disk would only slow the first start.
_ENTRY: dict[str, Any] = {"cache": True, "nogil": True, "no_cfunc_wrapper": True}
_INNER: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}

# Step-size controller (Hairer, Norsett, Wanner, "Solving Ordinary Differential Equations I",
# section II.4; PI form of section IV.2).
_SAFETY = 0.9
_PI_BETA = 0.04
_PI_ALPHA = 0.2 - 0.75 * _PI_BETA
_SHRINK, _GROW = 0.2, 10.0

# Dormand-Prince is stable on the negative real axis to about -3.3; at -3 it damps by 0.57 a step.
_STABLE = 3.0

# A label is soft if its largest entry is below 1 by more than the tolerance of a label's sum.
_SOFT = 1e-6

# Largest horizon in units of the knee: beyond it their quotient or the pace could overflow.
_MOST_KNEES = 1e290

# Rows of a panel of `product`: 1600 float64 in each are 400 KB. A multiple of 4, the rows of a tile.
_PANEL = 32

# Longest step that is differentiated, in units of the knee (see `own_time`).
_LONGEST = 0.5


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def _product_of_panel(F, X, out, first):
    """out[n, first + i] = sum_j F[i, j] X[n, j] for a few rows F (I, J), X (N, J).

    Works in tiles of 4 classes by 2 rows of F: every loaded number is used at least twice, and the
    eight sums of a tile stay in registers. The remaining classes take four rows of F at a time.
    """
    n_rows, n_inner = F.shape
    n_classes = X.shape[0]
    even = n_rows - n_rows % 2
    n = 0
    while n + 4 <= n_classes:
        for i in range(0, even, 2):
            a = b = c = d = a1 = b1 = c1 = d1 = 0.0
            for j in range(n_inner):
                f, f1 = F[i, j], F[i + 1, j]
                x = X[n, j]
                a += f * x
                a1 += f1 * x
                x = X[n + 1, j]
                b += f * x
                b1 += f1 * x
                x = X[n + 2, j]
                c += f * x
                c1 += f1 * x
                x = X[n + 3, j]
                d += f * x
                d1 += f1 * x
            at = first + i
            out[n, at], out[n + 1, at], out[n + 2, at], out[n + 3, at] = a, b, c, d
            at += 1
            out[n, at], out[n + 1, at], out[n + 2, at], out[n + 3, at] = a1, b1, c1, d1
        for i in range(even, n_rows):
            a = b = c = d = 0.0
            for j in range(n_inner):
                f = F[i, j]
                a += f * X[n, j]
                b += f * X[n + 1, j]
                c += f * X[n + 2, j]
                d += f * X[n + 3, j]
            out[n, first + i], out[n + 1, first + i], out[n + 2, first + i], out[n + 3, first + i] = a, b, c, d
        n += 4
    while n < n_classes:
        i = 0
        while i + 4 <= n_rows:
            a = b = c = d = 0.0
            for j in range(n_inner):
                x = X[n, j]
                a += F[i, j] * x
                b += F[i + 1, j] * x
                c += F[i + 2, j] * x
                d += F[i + 3, j] * x
            at = first + i
            out[n, at], out[n, at + 1], out[n, at + 2], out[n, at + 3] = a, b, c, d
            i += 4
        while i < n_rows:
            a = 0.0
            for j in range(n_inner):
                a += F[i, j] * X[n, j]
            out[n, first + i] = a
            i += 1
        n += 1


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def product(F, X, out):
    """out[n, i] = sum_j F[i, j] X[n, j] for F (I, J), X (N, J), out (N, I).

    Some rows of F at a time, which stay in the processor's cache while all classes use them.
    """
    for first in range(0, F.shape[0], _PANEL):
        _product_of_panel(F[first : first + _PANEL], X, out, first)


@njit(**_INNER)
def copy_table(table, out):
    """out = table, for tables of the same shape.

    `out[:] = table` would add 5 s to the first start, as Numba would also compile the error message
    for different shapes.
    """
    for n in range(table.shape[0]):
        for j in range(table.shape[1]):
            out[n, j] = table[n, j]


@njit(**_ENTRY)
def workspace(n_classes, n_examples):
    """Scratch memory for one thread, whose rows the functions below use instead of allocating."""
    return np.empty((3 * n_classes + 3, n_examples))


@njit(**_ENTRY, fastmath={"contract"}, error_model="numpy")
def exp_of_negatives(x, work):
    """exp in place of a flat array whose entries are <= 0, accurate to 2 units in the last place.

    The C library's exp takes one number at a time and would take half of a small solve. This one is
    plain arithmetic, which the compiler vectorises. With k the integer nearest x / ln 2 and
    r = x - k ln 2, exp(x) = 2^k exp(r), and the Taylor series of exp(r) to r^13 is exact to 4e-18
    for |r| <= ln(2) / 2. Below -708 the result stays at exp(-708) = 3e-308.

    Must not be re-associated: adding and subtracting 1.5 x 2^52 rounds to an integer, and the sum
    holds that integer in its low bits. `work` (2, size) is scratch.
    """
    rounded, power = work[0], work[1]
    bits, power_bits = rounded.view(np.int64), power.view(np.int64)
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


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def softmax_classes(logits, P, work):
    """Softmax over the classes (axis 0) of logits (N, M) into P (N, M), safe for any magnitude.

    `work` is a `workspace`; `logits` may be its first N rows.
    """
    n_classes, n_examples = logits.shape
    size = n_classes * n_examples
    row = work[3 * n_classes]
    for m in range(n_examples):
        row[m] = max(logits[0, m], logits[1, m])
    for n in range(2, n_classes):
        for m in range(n_examples):
            row[m] = max(row[m], logits[n, m])
    for n in range(n_classes):
        for m in range(n_examples):
            P[n, m] = logits[n, m] - row[m]
    exp_of_negatives(P.reshape(size), work[n_classes : 3 * n_classes].reshape((2, size)))
    for m in range(n_examples):
        row[m] = P[0, m] + P[1, m]
    for n in range(2, n_classes):
        for m in range(n_examples):
            row[m] += P[n, m]
    for m in range(n_examples):
        row[m] = 1.0 / row[m]
    for n in range(n_classes):
        for m in range(n_examples):
            P[n, m] *= row[m]


@njit(**_INNER)
def likeliest(table):
    """(M,) int64: the class with each example's largest entry in a table (N, M)."""
    top = np.empty(table.shape[1], dtype=np.int64)
    for m in range(table.shape[1]):
        top[m] = 0
    for n in range(1, table.shape[0]):
        for m in range(table.shape[1]):
            if table[n, m] > table[top[m], m]:
                top[m] = n
    return top


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def weighted_residual(P, Y, top, w, out, work):
    """out[:, m] = w_m (p_m - y_m) for (N, M) tables; top = likeliest(Y).

    Late in the flow p_m = y_m to many digits. The entry of the largest label is computed as minus
    the sum of the others, as p_m - y_m would be rounding error once 1 - p_m is near 1e-16.
    """
    n_classes, n_examples = P.shape
    others = work[3 * n_classes]
    for m in range(n_examples):
        others[m] = 0.0
    for n in range(n_classes):
        for m in range(n_examples):
            out[n, m] = w[m] * (P[n, m] - Y[n, m])
            others[m] += out[n, m] if top[m] != n else 0.0
    for m in range(n_examples):
        out[top[m], m] = -others[m]


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def combine(h, coefficients, first, end, terms, start, out):
    """out = start + h sum_q coefficients[q] terms[q] over first <= q < end.

    For terms (S, size), start and out (size,); `out` may be `start`. Adds three terms per pass, as
    reading and writing `out` takes most of the time.
    """
    q, source = first, start
    while q + 3 <= end:
        a, b, c = h * coefficients[q], h * coefficients[q + 1], h * coefficients[q + 2]
        for i in range(out.size):
            out[i] = source[i] + (a * terms[q, i] + b * terms[q + 1, i] + c * terms[q + 2, i])
        q, source = q + 3, out
    if q + 2 == end:
        a, b = h * coefficients[q], h * coefficients[q + 1]
        for i in range(out.size):
            out[i] = source[i] + (a * terms[q, i] + b * terms[q + 1, i])
    elif q + 1 == end:
        a = h * coefficients[q]
        for i in range(out.size):
            out[i] = source[i] + a * terms[q, i]
    elif q == first:
        for i in range(out.size):
            out[i] = start[i]


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def covariance_product(P, w, V, out, work):
    """out[:, m] = A_m V[:, m] with A_m = w_m (diag(p_m) - p_m p_m^T), for (N, M) tables.

    A_m ignores a constant added to V[:, m]. V is taken relative to the likeliest class, so that V
    minus its mean keeps its digits when that class has nearly all the probability. `out` may be V.
    """
    n_classes, n_examples = P.shape
    largest, origin, mean = work[3 * n_classes], work[3 * n_classes + 1], work[3 * n_classes + 2]
    for m in range(n_examples):
        largest[m], origin[m], mean[m] = P[0, m], V[0, m], 0.0
    for n in range(1, n_classes):
        for m in range(n_examples):
            above = P[n, m] > largest[m]
            origin[m] = V[n, m] if above else origin[m]
            largest[m] = P[n, m] if above else largest[m]
    for n in range(n_classes):
        for m in range(n_examples):
            out[n, m] = V[n, m] - origin[m]
            mean[m] += P[n, m] * out[n, m]
    for n in range(n_classes):
        for m in range(n_examples):
            out[n, m] = w[m] * P[n, m] * (out[n, m] - mean[m])


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def vector_field(F, G, L0, Y, top, w, lam, X, P, out, work):
    """Right-hand side of the flow at X into out; leaves softmax(logits) in P. See the module.

    top = likeliest(Y); `work` is a `workspace`.
    """
    n_classes = L0.shape[0]
    logits = work[:n_classes]
    product(F, X, logits)
    flat, start = logits.reshape(L0.size), L0.reshape(L0.size)
    for i in range(flat.size):
        flat[i] = start[i] - flat[i]
    softmax_classes(logits, P, work)
    if G.shape[0] == 0:
        weighted_residual(P, Y, top, w, out, work)
    else:
        residual = work[:n_classes]
        weighted_residual(P, Y, top, w, residual, work)
        product(G, residual, out)
    if lam != 0.0:
        for n in range(n_classes):
            for j in range(X.shape[1]):
                out[n, j] -= lam * X[n, j]


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def starting_vector(n_classes, size):
    """A fixed pseudo-random vector (N, size), so that no mode is missing."""
    v = np.empty((n_classes, size))
    state = 1
    for n in range(n_classes):
        for j in range(size):
            state = (state * 16807) % 2147483647
            v[n, j] = state / 2147483647.0 - 0.5
    return v


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def _absolute_row_sums(F):
    sums = np.zeros(F.shape[0])
    for i in range(F.shape[0]):
        for j in range(F.shape[1]):
            sums[i] += abs(F[i, j])
    return sums


@njit(**_ENTRY, fastmath=_FAST, error_model="numpy")
def _radius_bound(P, w, reach, work):
    """An upper bound of the spectral radius of A K; reach (M,): the absolute row sums of K.

    As quadratic forms A_m <= w_m trace(A_m / w_m) = w_m sum_n p_n (1 - p_n) =: alpha_m, and A K is
    similar to K^1/2 A K^1/2. So its radius is at most that of diag(alpha) K, which is at most the
    largest absolute row sum of diag(alpha) K.
    """
    n_classes, n_examples = P.shape
    trace = work[3 * n_classes]
    trace[:] = 0.0
    for n in range(n_classes):
        for m in range(n_examples):
            trace[m] += P[n, m] * (1.0 - P[n, m])
    bound = 0.0
    for m in range(n_examples):
        bound = max(bound, w[m] * trace[m] * reach[m])
    return bound


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def _norm(v):
    total = 0.0
    for x in v.flat:
        total += x * x
    return np.sqrt(total)


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def _power_iterations(count, F, G, P, w, v, work):
    """Power iterations for the largest eigenvalue of the flow's Jacobian, v (N, r) in place.

    The operator A K is similar to the positive semi-definite K^1/2 A K^1/2. Its spectrum is real
    and non-negative, so the iteration converges to its spectral radius.
    """
    n_classes = P.shape[0]
    radius = 0.0
    for _ in range(count):
        table = work[:n_classes]
        product(F, v, table)
        covariance_product(P, w, table, table, work)
        before = _norm(v)
        if G.shape[0] == 0:
            copy_table(table, v)
        else:
            product(G, table, v)
        after = _norm(v)
        if not (before > 0.0 and after > 0.0 and np.isfinite(after)):
            copy_table(starting_vector(v.shape[0], v.shape[1]), v)
            return 0.0
        radius = after / before
        v *= 1.0 / after
    return radius


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def _error_ratio(error, X, X_new, atol, rtol):
    """Largest entry of |error| / (atol + rtol |X|), flat; infinite if a value is not finite."""
    largest = total = 0.0
    for j in range(error.size):
        ratio = abs(error[j]) / (atol + rtol * max(abs(X[j]), abs(X_new[j])))
        largest = max(largest, ratio)
        total += ratio  # a maximum may ignore NaN, a sum does not
    return largest if np.isfinite(total) else np.inf


# The integrator's own time tau. Once the examples are fitted, the loss falls as 1/t and W grows as
# log t, so that steps in flow time t can only grow in proportion to t. With
# t = knee (exp(tau / knee) - 1), tau equals t well before the knee, the inverse of the rate at
# which the fastest mode starts. After the knee, tau grows as log t, and a step spans several times
# the flow time passed so far. The flow becomes dX/dtau = pace(tau) dX/dt. A flow that is known to
# come to rest approaches it at a constant rate: its knee is infinite, and tau = t.


@njit(**_ENTRY)
def comes_to_rest(Y, w, lam):
    """Whether the loss is known to have its minimum at a finite W: it is regularised, or a label
    with weight > 0 is soft. Does not recognise hard labels that cannot be separated.
    """
    if lam > 0.0:
        return True
    for m in range(Y.shape[1]):
        largest = 0.0
        for n in range(Y.shape[0]):
            largest = max(largest, Y[n, m])
        if w[m] > 0.0 and largest < 1.0 - _SOFT:
            return True
    return False


@njit(**_ENTRY)
def flow_time(tau, knee):
    """Flow time t at the integrator's time tau, both in units of flow time."""
    return knee * math.expm1(tau / knee) if knee < np.inf else tau


@njit(**_ENTRY)
def own_time(t, knee):
    """The integrator's time tau at flow time t."""
    return knee * math.log1p(t / knee) if knee < np.inf else t


@njit(**_ENTRY)
def pace(tau, knee):
    """dt/dtau at tau; 1 at time 0."""
    return math.exp(tau / knee)


@njit(**_INNER)
def pace_weights(w, tau, knee, out):
    """out (M,) = w pace(tau). Scales the right-hand side: wherever the pace is not 1, lam = 0."""
    factor = pace(tau, knee)
    for m in range(w.size):
        out[m] = w[m] * factor


@njit(**_INNER, fastmath=_FAST, error_model="numpy")
def state_inside(theta, h, rates, start, out):
    """out (size,) = the state at the fraction theta (0 to 1) of an accepted step of length h.

    Order 4, from the stages' rates (7, size) and the state at the step's start (size,).
    """
    weights = np.empty(STAGES)
    for i in range(STAGES):
        b = A[STAGES - 1, i]
        first = 1.0 if i == 0 else 0.0
        last = 1.0 if i == STAGES - 1 else 0.0
        inner = 2.0 * b - last - first + (1.0 - theta) * D[i]
        weights[i] = theta * (b + (1.0 - theta) * (first - b + theta * inner))
    combine(h, weights, 0, STAGES, rates, start, out)


@njit(**_ENTRY, fastmath=_FAST, error_model="numpy")
def integrate(  # noqa: PLR0915 (one loop, kept whole for the compiler and the reader)
    F,
    G,
    L0,
    Y,
    w,
    lam,
    T,
    rtol,
    atol,
    max_steps,
    limit_steps,
    cancel,
    X,
    P,
    rate,
    mode,
    memory,
    steps,
    stage_X,
    stage_P,
    marks,
    marked,
):
    """Advance the flow to time T with Dormand-Prince 5(4) and step-size control.

    Args:
        F, G, L0, Y: (M, r), (r, M) or (0, 0), (N, M), (N, M); see the module.
        w: (M,) weight of each support example.
        lam, T: scalars, T > 0.
        rtol, atol: tolerance of the error of a step, atol on the logits.
        max_steps: most tried steps from time 0, rejected ones included.
        limit_steps: for trajectories that are differentiated. Keeps h pace (rho + lam) <= 3, rho
            the spectral radius of the Jacobian: once fast modes have died out, error control of X
            alone lets the step grow to the edge of stability, where their derivatives are no longer
            damped. Also keeps h <= knee / 2: where X grows as log t, its derivative in lam grows as
            t, which is exp(tau).
        cancel: (1,) bool; another thread sets it to True to end the solve at the next step.
        X: (N, r) the state, advanced in place; 0 at time 0.
        P, rate: (N, M) softmax(logits) and (N, r) right-hand side at X, updated in place.
        mode: (N, r) the power iteration's vector, updated in place.
        memory: (9,) time and controller, updated in place; 0 at time 0. Indices TIME ... PASSED.
        steps, stage_X, stage_P: (c, 6), (c, 6, N, r) and (c, 6, N, M), filled for every accepted
            step with the factor of dX/dt at each stage (the step's length times the pace there) and
            with X and softmax(logits) at the stages; X at the first stage is the state at the
            step's start. c = 0 records nothing.
        marks, marked: (m,) ascending flow times up to T, and (m, N, r) filled with the state at
            each, interpolated within the steps: marks cost no steps.

    Returns:
        status, kept: OK at T; FULL if `steps` is full, and a further call with the same arrays
        continues; else one of the module's codes. The first `kept` steps of the buffers are valid.
    """
    n_classes, n_examples = L0.shape
    shape, size = X.shape, X.size
    capacity, kept = len(steps), 0
    if capacity == 0:  # only the first stage is needed later: the others share a place
        stage_X = np.empty((1, 2, *shape))
        stage_P = np.empty((1, 2, n_classes, n_examples))
    flat_X = stage_X.reshape((len(stage_X), stage_X.shape[1], size))
    k = np.empty((STAGES, *shape))
    rates = k.reshape((STAGES, size))
    X_new, error = np.empty(shape), np.empty(size)
    old, new, zero = X.reshape(size), X_new.reshape(size), np.zeros(size)
    work, paced = workspace(n_classes, n_examples), np.empty(n_examples)
    top = likeliest(Y)

    # An error e in X changes the logits by at most (largest absolute row sum of F) |e|.
    reach, furthest = _absolute_row_sums(F), 1e-300
    for m in range(reach.size):
        furthest = max(furthest, reach[m])
    atol /= furthest

    if memory[STEP] == 0.0:
        vector_field(F, G, L0, Y, top, w, lam, X, P, rate, work)
        # The first step is a tenth of the stability limit, so that its scale is right even if T is
        # huge. Finding the limit takes more power iterations here than at later steps.
        copy_table(starting_vector(shape[0], shape[1]), mode)
        radius = lam + _power_iterations(np.int64(6), F, G, P, w, mode, work)
        logarithmic = 0.0 < T * radius < _MOST_KNEES and not comes_to_rest(Y, w, lam)
        memory[KNEE] = 1.0 / radius if logarithmic else np.inf
        memory[STEP] = min(T, 0.1 * _STABLE / radius) if radius > 0.0 else T
        memory[ERROR] = 1e-4
    h, knee = memory[STEP], memory[KNEE]
    end = own_time(T, knee)
    copy_table(rate, k[0])
    new_point = True
    while True:
        tau = memory[TIME]
        if cancel[0]:
            return CANCELLED, kept
        if memory[ACCEPTED] + memory[REJECTED] >= max_steps:
            return TOO_MANY_STEPS, kept
        if limit_steps and new_point:
            # A power iteration costs more than a stage. A cheap bound of the radius shows that most
            # flows never come near the limit.
            near = True
            pace_weights(w, tau, knee, paced)
            if G.shape[0] == 0:
                near = h * (lam + _radius_bound(P, paced, reach, work)) > _STABLE
            if near:
                # From the previous step's vector, two iterations track the largest eigenvalue.
                count = 2 if memory[TRACKED] != 0.0 else 6
                radius = lam + _power_iterations(count, F, G, P, paced, mode, work)
                if radius > 0.0:
                    h = min(h, _STABLE / radius)
            h = min(h, _LONGEST * knee)
            memory[TRACKED] = 1.0 if near else 0.0
        new_point = False
        last = tau + h >= end * (1.0 - 1e-14)
        if last:
            h = end - tau
        elif tau + h <= tau:
            return STEP_UNDERFLOW, kept

        slot = kept if capacity else 0
        copy_table(X, stage_X[slot, 0])
        copy_table(P, stage_P[slot, 0])
        for i in range(1, STAGES - 1):
            place = i if capacity else 1
            combine(h, A[i], 0, i, rates, old, flat_X[slot, place])
            pace_weights(w, tau + NODES[i] * h, knee, paced)
            vector_field(F, G, L0, Y, top, paced, lam, stage_X[slot, place], stage_P[slot, place], k[i], work)
        combine(h, A[STAGES - 1], 0, STAGES - 1, rates, old, new)
        # The previous stage is at the end of the step, too, so `paced` is right for this one.
        vector_field(F, G, L0, Y, top, paced, lam, X_new, P, k[STAGES - 1], work)

        combine(h, E, 0, len(rates), rates, zero, error)
        ratio = _error_ratio(error, old, new, atol, rtol)
        if ratio > 1.0:
            memory[REJECTED] += 1
            memory[SHRUNK] = 1.0
            copy_table(stage_P[slot, 0], P)
            if ratio < np.inf:
                h *= max(_SHRINK, _SAFETY * ratio**-0.2)
                continue
            h *= 0.1
            if tau + h <= tau or h < 1e-300:
                return NOT_FINITE, kept
            continue

        if capacity:
            for i in range(STAGES - 1):
                steps[kept, i] = h * pace(tau + NODES[i] * h, knee)
            kept += 1
        memory[ACCEPTED] += 1
        while memory[PASSED] < len(marks):
            mark = int(memory[PASSED])
            at = own_time(marks[mark], knee)
            if at > tau + h and not last:
                break
            state_inside(min((at - tau) / h, 1.0), h, rates, old, marked[mark].reshape(size))
            memory[PASSED] += 1
        memory[TIME] = end if last else tau + h
        copy_table(X_new, X)
        if last:
            return OK, kept
        copy_table(k[STAGES - 1], k[0])
        copy_table(k[0], rate)
        new_point = True
        growth = _SAFETY * max(ratio, 1e-10) ** -_PI_ALPHA * memory[ERROR] ** _PI_BETA
        growth = min(_GROW, max(_SHRINK, growth))
        if memory[SHRUNK] != 0.0:
            growth = min(growth, 1.0)
        h *= growth
        memory[STEP] = h
        memory[ERROR] = max(ratio, 1e-4)
        memory[SHRUNK] = 0.0
        if capacity and kept == capacity:
            return FULL, kept
