"""The estimator of scikit-learn: what it learns, and scikit-learn's own checks of estimators."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import cross_val_score
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from comln_serve.client import Client, InputError
from comln_serve.client.estimator import ComlnClassifier
from tests.support.image_files import image_bytes
from tests.support.live import live_server

pytestmark = pytest.mark.slow

SIZE = 16
COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}


@pytest.fixture(scope="module")
def url(models_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with live_server(models_dir, tmp_path_factory.mktemp("estimator"), "--default-model", "tiny-prototype") as server:
        yield server.url


def pictures(each: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[str]]:
    """(n, 16, 16, 3) of three colours, and their names."""
    random = np.random.default_rng(seed)
    images, labels = [], []
    for label, colour in COLOURS.items():
        for _ in range(each):
            noise = random.integers(-20, 20, (SIZE, SIZE, 3))
            images.append(np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8))
            labels.append(label)
    return np.array(images), labels


def test_learns_from_arrays(url: str) -> None:
    X, y = pictures(4)
    estimator = ComlnClassifier(url, name="colours").fit(X, y)
    assert estimator.classes_.tolist() == sorted(COLOURS)
    assert estimator.classifier_.reference == "colours@1"
    others, truth = pictures(3, seed=1)
    assert estimator.predict(others).tolist() == truth
    probabilities = estimator.predict_proba(others)
    assert probabilities.shape == (9, 3)
    assert probabilities.sum(axis=1) == pytest.approx(1)
    assert estimator.classes_[probabilities.argmax(axis=1)].tolist() == truth
    assert estimator.score(others, truth) == 1


def test_learns_from_files_with_numbers_for_labels(url: str, tmp_path: Path) -> None:
    paths, y = [], []
    for label, colour in enumerate(COLOURS.values()):
        for seed in range(2):
            path = tmp_path / f"{label}-{seed}.png"
            path.write_bytes(image_bytes(colour, seed=seed))
            paths.append(path)
            y.append(10 * label)
    estimator = ComlnClassifier(url).fit(paths, y)
    assert estimator.predict(np.array([str(path) for path in paths])).tolist() == y
    assert estimator.classes_.dtype == np.asarray(y).dtype


def test_parameters_clone_and_cross_validation(url: str) -> None:
    estimator = ComlnClassifier(url, horizon=5.0, expires_in_seconds=60)
    twin: Any = clone(estimator)
    assert twin.get_params() == estimator.get_params()
    assert estimator.set_params(horizon="auto").horizon == "auto"
    estimator.set_params(horizon=5.0)
    X, y = pictures(4)
    assert cross_val_score(estimator, X, y, cv=2).min() == 1
    with Client(url) as client:
        assert client.classifiers(limit=1)[0].expires_at is not None


def test_what_it_refuses(url: str) -> None:
    X, y = pictures(2)
    estimator = ComlnClassifier(url)
    with pytest.raises(NotFittedError):
        estimator.predict(X)
    with pytest.raises(InputError, match=r"y has 1 class; at least two"):
        estimator.fit(X, ["red"] * len(X))
    with pytest.raises(InputError, match=r"y has shape \(5,\); give one label for each of the 6 images"):
        estimator.fit(X, y[1:])
    with pytest.raises(InputError, match=r"X has the shape \(6, 768\); give images"):
        estimator.fit(X.reshape(6, -1), y)
    with pytest.raises(
        InputError, match=r"image 1 is an array of shape \(16, 16, 3\) and type float64; allowed are uint8"
    ):
        estimator.fit(X / 255, y)
    with pytest.raises(InputError, match=r"label 2 of y is NaN \(1 in all\); leave these images out"):
        estimator.fit(X, ["a", float("nan"), "a", "b", "b", "b"])
    with pytest.raises(InputError, match="label 1 of y is NaN"):
        estimator.fit(X, np.array([np.nan, 1, 1, 2, 2, 2], dtype=np.float32))
    with pytest.raises(InputError, match="labels of types that cannot be sorted"):
        estimator.fit(X, np.array([1, 1, "1", "1", 2, 2], dtype=object))
    with pytest.raises(InputError, match="not distinct as texts, or blank"):
        estimator.fit(X, ["a", "a", " ", " ", "b", "b"])
    estimator.fit(X, y)
    with pytest.raises(InputError, match="images is a str; give a list of images"):
        estimator.predict("photo.png")
    with pytest.raises(InputError, match=r"images has the shape \(16, 16, 3\), as of a single image"):
        estimator.predict_proba(X[0])
    estimator.classes_ = np.arange(101)
    with pytest.raises(InputError, match="101 classes; predict_proba is for at most 100"):
        estimator.predict_proba(X)


def _checked(estimator: Any, *data: Any, **options: Any) -> Any:
    """`validate_data`, whose type says too little."""
    return validate_data(estimator, *data, **options)


class OfRows(ComlnClassifier):
    """The estimator on rows of numbers, each drawn as a picture: scikit-learn's checks have no images.

    The rows are checked as scikit-learn wants it; all else is the estimator's.
    """

    def fit(self, X: Any, y: Any) -> Self:
        rows, labels = _checked(self, X, y)
        check_classification_targets(labels)
        self.low_, self.high_ = rows.min(), rows.max()
        return super().fit(self._draw(rows), labels)

    def predict(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        return super().predict(self._draw(_checked(self, X, reset=False)))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        check_is_fitted(self)
        return super().predict_proba(self._draw(_checked(self, X, reset=False)))

    def _draw(self, rows: NDArray[Any]) -> NDArray[np.uint8]:
        """A picture of vertical stripes, one a number, of each row."""
        scaled = np.clip((rows - self.low_) / max(self.high_ - self.low_, 1e-9), 0, 1) * 255
        stripes = scaled[:, np.arange(SIZE) * rows.shape[1] // SIZE].astype(np.uint8)
        return np.repeat(stripes[:, None, :], SIZE, axis=1)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.no_validation = False
        return tags


def test_checks_of_scikit_learn(url: str) -> None:
    """All that apply, on rows drawn as pictures. Skipped are two that need what is not set or installed here:
    SCIPY_ARRAY_API, and pandas.
    """
    results = check_estimator(OfRows(url), on_fail=None, on_skip=None)
    failed = {item["check_name"]: item["exception"] for item in results if item["status"] == "failed"}
    assert failed == {}
    skipped = {item["check_name"] for item in results if item["status"] == "skipped"}
    assert skipped <= {"check_array_api_input", "check_classifier_data_not_an_array"}
    assert sum(item["status"] == "passed" for item in results) > 40


def test_scikit_learn_has_no_checks_for_images(url: str) -> None:
    """Of the estimator as it is, it checks that it can be cloned, and warns that it has no images for the others."""
    with pytest.warns(SkipTestWarning, match="Can't test estimator ComlnClassifier"):
        results = check_estimator(ComlnClassifier(url), on_fail=None)
    assert {item["status"] for item in results} == {"passed"}
