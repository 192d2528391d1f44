"""The Dormand-Prince coefficients: every order condition, in exact arithmetic."""

from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest

from comln_serve.flow import tableau

Tree = tuple["Tree", ...]


def test_rows_sum_to_their_nodes_and_the_last_stage_is_the_first_of_the_next_step() -> None:
    assert [sum(row, Fraction(0)) for row in tableau._A] == list(tableau._C)
    assert tableau._C[5] == tableau._C[6] == 1


@pytest.mark.parametrize("theta", [Fraction(1, 7), Fraction(1, 2), Fraction(6, 7)])
def test_the_state_inside_a_step_is_of_order_four(theta: Fraction) -> None:
    """Weights at the fraction theta of a step integrate 1, c, c^2 and c^3 exactly from 0 to theta."""
    weights = []
    for i, (b, d) in enumerate(zip(tableau._B5, tableau._D, strict=True)):
        first, last = Fraction(i == 0), Fraction(i == tableau.STAGES - 1)
        inner = 2 * b - last - first + (1 - theta) * d
        weights.append(theta * (b + (1 - theta) * (first - b + theta * inner)))
    for k in range(4):
        found = sum(b * c**k for b, c in zip(weights, tableau._C, strict=True))
        assert found == theta ** (k + 1) / (k + 1)


def test_arrays_are_the_fractions_and_cannot_be_written() -> None:
    for i in range(7):
        assert tableau.A[i].tolist() == [float(a) for a in tableau._A[i]] + [0.0] * (7 - i)
    b4 = np.array([float(b) for b in tableau._B4])
    np.testing.assert_allclose(tableau.E, np.append(tableau.A[6, :6], 0.0) - b4, atol=1e-16)
    for array in (tableau.A, tableau.E):
        with pytest.raises(ValueError, match="read-only"):
            array[0, ...] = 1.0


def rooted_trees(order: int) -> set[Tree]:
    """Rooted trees of `order` vertices; a tree is the sorted tuple of the trees on its root."""

    def forests(size: int, largest: int) -> set[Tree]:
        if size == 0:
            return {()}
        return {
            tuple(sorted((*trees, *rest)))
            for top in range(1, min(size, largest) + 1)
            for count in range(1, size // top + 1)
            for trees in combinations_with_replacement(sorted(rooted_trees(top)), count)
            for rest in forests(size - top * count, top - 1)
        }

    return forests(order - 1, order - 1)


def vertices(tree: Tree) -> int:
    return 1 + sum(vertices(child) for child in tree)


def density(tree: Tree) -> int:
    product = vertices(tree)
    for child in tree:
        product *= density(child)
    return product


def elementary_weights(tree: Tree) -> list[Fraction]:
    """Per stage, the product over the root's children of sum_j a_ij weight_j(child)."""
    weights = [Fraction(1)] * 7
    for child in tree:
        inner = elementary_weights(child)
        weights = [
            w * sum((a * x for a, x in zip(row, inner, strict=False)), Fraction(0))
            for w, row in zip(weights, tableau._A, strict=True)
        ]
    return weights


@pytest.mark.parametrize(("formula", "order"), [("_B5", 5), ("_B4", 4)])
def test_every_order_condition_holds(formula: str, order: int) -> None:
    """Butcher's conditions, one for each rooted tree: 17 up to order 5, 8 up to order 4."""
    trees = [tree for size in range(1, order + 1) for tree in rooted_trees(size)]
    assert len(trees) == {5: 17, 4: 8}[order]
    for tree in trees:
        weights = elementary_weights(tree)
        total = sum(b * x for b, x in zip(getattr(tableau, formula), weights, strict=True))
        assert total == Fraction(1, density(tree)), tree


@pytest.mark.parametrize(("formula", "order"), [("_B5", 5), ("_B4", 4)])
def test_the_order_is_no_higher_than_stated(formula: str, order: int) -> None:
    """Some condition of the next order fails: an error estimate of b5 - b4 measures something."""
    misses = [
        sum(b * x for b, x in zip(getattr(tableau, formula), elementary_weights(tree), strict=True))
        != Fraction(1, density(tree))
        for tree in rooted_trees(order + 1)
    ]
    assert any(misses)


def test_damping_at_the_step_limit() -> None:
    """|R(-3)| < 1 < |R(-3.4)|: the step limit h rho <= 3 is inside the stability interval."""

    def growth(x: float) -> float:
        """The stability function 1 + x b^T (I - x A)^-1 1 of the solution formula."""
        lower, b = tableau.A[:6, :6], tableau.A[6, :6]
        return float(1 + x * b @ np.linalg.solve(np.eye(6) - x * lower, np.ones(6)))

    assert abs(growth(-3.0)) == pytest.approx(0.565, abs=5e-4)
    assert abs(growth(-3.3)) < 1.0 < abs(growth(-3.4))
