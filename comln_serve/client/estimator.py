"""`ComlnClassifier`: a classifier on the server as an estimator of scikit-learn, which this module needs."""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from comln_serve.client.arguments import Horizon
from comln_serve.client.clients import DEFAULT_TIMEOUT, Client
from comln_serve.client.errors import InputError
from comln_serve.client.images import DEFAULT_MAX_SIDE, ImageSource, sources
from comln_serve.client.results import Adapted

MOST_CLASSES = 100  # the server lists the probabilities of at most so many


class ComlnClassifier(ClassifierMixin, BaseEstimator):
    """Fitting adapts on the server, predicting classifies there.

    Images are a sequence of what `Client.predict` takes (paths, bytes, Pillow images, arrays), or one array of shape
    (n, height, width, 3) or (n, height, width), uint8.

    Args:
        url, key, timeout, max_side: of the server, as for `Client`. scikit-learn prints parameters, so rather set the
            environment's COMLN_KEY than `key`.
        name, model, horizon, expires_in_seconds: as for `Client.adapt`. Every fit makes a classifier on the server: the
            name's next version, or one without a name. Let it expire where many are fitted, as in cross-validation.

    Attributes:
        classes_: (N,) the labels, sorted.
        classifier_: what `Client.adapt` returned: the classifier on the server with its report.
    """

    classes_: NDArray[Any]
    classifier_: Adapted

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        name: str | None = None,
        model: str | None = None,
        horizon: Horizon = None,
        expires_in_seconds: int | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        max_side: int | None = DEFAULT_MAX_SIDE,
    ) -> None:
        self.url = url
        self.key = key
        self.name = name
        self.model = model
        self.horizon: Horizon = horizon
        self.expires_in_seconds = expires_in_seconds
        self.timeout = timeout
        self.max_side = max_side

    def fit(self, X: Sequence[ImageSource] | NDArray[np.uint8], y: ArrayLike) -> Self:
        """Adapt to n labelled images.

        Args:
            X: n images.
            y: (n,) labels of two classes or more, of any type that sorts; the server gets them as text.

        Raises:
            InputError: X or y cannot be used; it is a ValueError.
            ComlnError: the server refused it, or cannot be reached.
        """
        images, labels = _images(X), np.asarray(y)
        if labels.ndim != 1 or len(labels) != len(images):
            raise InputError(f"y has shape {labels.shape}; give one label for each of the {len(images)} images")
        # In the list that was given: beside texts, NumPy makes NaN a text, too.
        given = y if isinstance(y, list | tuple) else labels
        missing = [n for n, item in enumerate(given, 1) if isinstance(item, float | np.floating) and np.isnan(item)]
        if missing:
            raise InputError(f"label {missing[0]} of y is NaN ({len(missing)} in all); leave these images out")
        try:
            classes, index = np.unique(labels, return_inverse=True)
        except TypeError as error:
            raise InputError(
                f"y has labels of types that cannot be sorted ({error}); give labels of one type"
            ) from error
        texts = _texts(classes)
        if len(classes) < 2:
            raise InputError(f"y has {len(classes)} class; at least two classes are needed")
        with self._client() as client:
            self.classifier_ = client.adapt(
                images,
                [texts[i] for i in index],
                name=self.name,
                model=self.model,
                horizon=self.horizon,
                expires_in_seconds=self.expires_in_seconds,
            )
        self.classes_ = classes
        return self

    def predict(self, X: Sequence[ImageSource] | NDArray[np.uint8]) -> NDArray[Any]:
        """The likeliest class (n,) of each of n images.

        Raises:
            NotFittedError: `fit` has not been called.
            InputError, ComlnError: as in `fit`.
        """
        check_is_fitted(self)
        return self.classes_[self._probabilities(X, 1).argmax(axis=1)]

    def predict_proba(self, X: Sequence[ImageSource] | NDArray[np.uint8]) -> NDArray[np.float64]:
        """Probabilities (n, N) of n images, in the order of `classes_`.

        Raises:
            InputError: there are more than 100 classes, of which the server lists the 100 likeliest only.
            NotFittedError, ComlnError: as in `predict`.
        """
        check_is_fitted(self)
        if len(self.classes_) > MOST_CLASSES:
            raise InputError(
                f"the classifier has {len(self.classes_)} classes; predict_proba is for at most {MOST_CLASSES}, as "
                "the server lists no more. Use predict"
            )
        return self._probabilities(X, len(self.classes_))

    def _probabilities(self, X: Sequence[ImageSource] | NDArray[np.uint8], top_k: int) -> NDArray[np.float64]:
        """(n, N), 0 for all but the `top_k` likeliest classes of an image."""
        position = {text: i for i, text in enumerate(_texts(self.classes_))}
        with self._client() as client:
            found = client.predict(_images(X), self.classifier_, top_k=top_k)
        probabilities = np.zeros((len(found), len(self.classes_)))
        for row, prediction in enumerate(found):
            for item in prediction.top:
                probabilities[row, position[item.label]] = item.probability
        return probabilities

    def _client(self) -> Client:
        return Client(self.url, key=self.key, timeout=self.timeout, max_side=self.max_side)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False  # images are no rows of features
        tags.input_tags.string = True  # paths
        tags.no_validation = True  # of features; what images may be, the client checks
        return tags


def _images(X: Any) -> list[ImageSource]:
    shape = tuple(getattr(X, "shape", (0,)))
    if len(shape) == 2:  # features, or a table, which would be taken for its columns
        raise InputError(
            f"X has the shape {shape}; give images: a list or a column of paths or pictures, or an array of shape "
            "(n, height, width, 3) or (n, height, width), uint8"
        )
    return [source.content for source in sources(X)]


def _texts(classes: NDArray[Any]) -> list[str]:
    """The classes as the server's labels."""
    texts = [str(item) for item in classes]
    if len(set(texts)) != len(texts) or not all(text.strip() for text in texts):
        raise InputError(f"the labels {texts} are not distinct as texts, or blank; the server needs texts for labels")
    return texts
