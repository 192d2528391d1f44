"""Which images get a thumbnail, and that a server that is to keep none holds none."""

import io

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from comln_serve.configuration.settings import Settings
from comln_serve.domain import support as support_module
from comln_serve.domain.classifier import Classifier
from comln_serve.domain.rejected import Rejected
from comln_serve.domain.support import SupportSet
from comln_serve.engine.adapting.changes import AdaptAgain, RemoveExamples
from comln_serve.engine.adapting.seen import Seen
from comln_serve.engine.classifiers import housekeeping
from comln_serve.engine.embedding import decoders
from comln_serve.engine.engine import Caller, Engine, NewClassifier
from comln_serve.errors import ErrorCode, ServiceError
from comln_serve.imaging import ImageFile, Preprocessing
from tests.support.databases import execute
from tests.support.engines import MakeEngine, fails
from tests.support.image_files import image_bytes
from tests.support.waiting import wait_until

COLOURS = {"red": (220, 30, 30), "green": (30, 220, 30), "blue": (30, 30, 220)}
PAIR = [(image_bytes(COLOURS[label], seed=seed), label) for label in ("red", "green") for seed in range(2)]
BLUE = [(image_bytes(COLOURS["blue"]), "blue")]
BROKEN = b"\x89PNG\r\n\x1a\n"


@pytest.fixture
def keeping(settings: Settings, database_url: str) -> Settings:
    return settings.model_copy(update={"keep_thumbnails": True, "database_url": database_url})


@pytest.fixture
def engine(keeping: Settings, make_engine: MakeEngine) -> Engine:
    return make_engine(keeping)


def shown(classifier: Classifier) -> dict[str, int | None]:
    return {one.label: one.thumbnail for one in classifier.classes}


def colour(jpeg: bytes) -> str:
    """The colour that a thumbnail is of."""
    mean = np.asarray(Image.open(io.BytesIO(jpeg))).mean(axis=(0, 1))
    return min(COLOURS, key=lambda name: float(np.abs(mean - COLOURS[name]).sum()))


def stored(url: str) -> int:
    ((count,),) = execute(url, "SELECT count(*) FROM thumbnails")
    return int(count)


def test_the_first_image_of_each_class(engine: Engine) -> None:
    made = engine.adapt(PAIR + BLUE, NewClassifier(name="colours")).classifier
    assert shown(made) == {"red": 1, "green": 3, "blue": 5}
    assert shown(engine.classifiers.find("colours")) == shown(made)
    found = {number: colour(engine.classifiers.thumbnail("colours", number)) for number in (1, 3, 5)}
    assert found == {1: "red", 3: "green", 5: "blue"}
    error = fails(ErrorCode.THUMBNAIL_NOT_FOUND, lambda: engine.classifiers.thumbnail("colours", 2))
    assert error.detail == {"keep_thumbnails": True, "received": 2}


def test_an_image_is_decoded_once(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[object] = []
    decode = decoders.fit_views

    def counted(file: ImageFile, policy: Preprocessing, count: int) -> NDArray[np.uint8]:
        decoded.append(file)
        return decode(file, policy, count)

    monkeypatch.setattr(decoders, "fit_views", counted)
    engine.adapt(PAIR)
    assert len(decoded) == len(PAIR)


def test_the_first_that_can_be_used(engine: Engine) -> None:
    """Numbers count these only."""
    support = [(BROKEN, "red"), PAIR[0], (BROKEN, "green"), PAIR[1], PAIR[2]]
    adapted = engine.adapt(support, partial=True)
    assert [one.index for one in adapted.rejected] == [0, 2]
    assert shown(adapted.classifier) == {"red": 1, "green": 3}
    assert colour(engine.classifiers.thumbnail(adapted.classifier.id, 3)) == "green"


@pytest.mark.parametrize("name", [None, "colours"])
def test_gone_with_its_image_and_made_of_the_next_that_comes(
    engine: Engine, keeping: Settings, name: str | None
) -> None:
    made = engine.adapt(PAIR, NewClassifier(name=name)).classifier
    reference = name or made.id
    changed = engine.change(reference, RemoveExamples([1])).classifier
    assert shown(changed) == {"red": None, "green": 3}
    fails(ErrorCode.THUMBNAIL_NOT_FOUND, lambda: engine.classifiers.thumbnail(changed.id, 1))
    # No image of the class is left that a thumbnail could be made of, until another comes.
    added = engine.add_examples(reference, [*BLUE, *PAIR[:1], *PAIR[2:]]).classifier
    assert shown(added) == {"red": 6, "green": 3, "blue": 5}
    assert colour(engine.classifiers.thumbnail(reference, 6)) == "red"
    assert shown(engine.change(reference, AdaptAgain()).classifier) == shown(added)
    without_blue = engine.change(reference, RemoveExamples([5])).classifier
    assert shown(without_blue) == {"red": 6, "green": 3}
    assert shown(engine.classifiers.find(reference)) == shown(without_blue)
    assert colour(engine.classifiers.thumbnail(reference, 3)) == "green"
    if name is None:
        assert stored(keeping.database_url) == 2
    else:  # a version keeps what it was made with
        assert shown(engine.classifiers.find("colours@1")) == {"red": 1, "green": 3}


def test_of_so_many_classes_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_module, "MOST_THUMBNAILS", 2)
    made = engine.adapt(BLUE + PAIR).classifier
    assert shown(made) == {"blue": 1, "red": 2, "green": None}
    assert shown(engine.add_examples(made.id, PAIR[2:]).classifier) == {"blue": 1, "red": 2, "green": None}
    assert shown(engine.change(made.id, RemoveExamples([1])).classifier) == {"red": 2, "green": None}
    assert shown(engine.add_examples(made.id, PAIR[2:]).classifier) == {"red": 2, "green": 8}


def test_a_class_of_several_images_takes_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support_module, "MOST_THUMBNAILS", 3)
    labels = ["red", "red", "blue", "green", "blue", "white"]
    assert support_module.labels_to_show(labels, {"green": 4, "blue": None}) == {"red", "blue"}


def test_a_repeated_request_is_answered_with_the_same(engine: Engine) -> None:
    first = engine.adapt(PAIR, caller=Caller(idempotency_key="one"))
    again = engine.adapt(PAIR, caller=Caller(idempotency_key="one"))
    assert again.replayed
    assert again.classifier.thumbnails == first.classifier.thumbnails == (1, 3)


def test_a_server_that_keeps_none(make_engine: MakeEngine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> bytes:
        raise AssertionError("nothing is to be made")

    monkeypatch.setattr("comln_serve.engine.adapting.seen.thumbnail", fail)
    engine = make_engine(database_url=database_url)
    made = engine.adapt(PAIR).classifier
    assert shown(made) == {"red": None, "green": None}
    assert stored(database_url) == 0
    error = fails(ErrorCode.THUMBNAIL_NOT_FOUND, lambda: engine.classifiers.thumbnail(made.id, 1))
    assert error.detail == {"keep_thumbnails": False}


def test_switched_off_they_are_deleted_at_start(
    keeping: Settings, engine: Engine, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those that a server still running stores afterwards."""
    monkeypatch.setattr(housekeeping, "_EVERY_SECONDS", 0.05)
    made = engine.adapt(PAIR, NewClassifier(name="colours")).classifier
    other = make_engine(keeping.model_copy(update={"keep_thumbnails": False}))
    assert shown(other.classifiers.find("colours")) == {"red": None, "green": None}
    fails(ErrorCode.THUMBNAIL_NOT_FOUND, lambda: other.classifiers.thumbnail("colours", 1))
    assert stored(keeping.database_url) == 2
    other.warm()
    wait_until(lambda: stored(keeping.database_url) == 0)
    engine.adapt(PAIR, NewClassifier(name="colours"))
    wait_until(lambda: stored(keeping.database_url) == 0)
    # Classifiers stay as they were, and get thumbnails of later images once they are allowed again.
    assert other.classifiers.find(made.id).W.tobytes() == made.W.tobytes()
    other.close()
    assert shown(engine.classifiers.of().describe("colours")) == {"red": None, "green": None}
    assert shown(engine.add_examples("colours", PAIR[:1]).classifier) == {"red": 5, "green": None}


def test_a_failed_request_keeps_nothing(engine: Engine, keeping: Settings) -> None:
    for support in ([*PAIR, (BROKEN, "red")], PAIR[:2]):
        with pytest.raises(ServiceError):
            engine.adapt(support)
    assert stored(keeping.database_url) == 0


# --- Taken in any order -----------------------------------------------------------------------------


def pixels(label: str) -> np.ndarray:
    return np.asarray(Image.new("RGB", (16, 16), COLOURS[label]))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_images_decoded_in_any_order_give_the_same(order: tuple[int, ...]) -> None:
    seen = Seen(["green", "red", "red", "green"], {"red"})
    for position in order:
        seen.take(position, pixels("red" if position in (1, 2) else "green"))
    assert list(seen.thumbnails(())) == [1]
    bad = Rejected(0, ErrorCode.INVALID_IMAGE, "", {})
    assert list(seen.thumbnails([bad])) == [0]
    assert len(seen.hashes([bad])) == 3


def test_a_later_image_is_not_even_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr("comln_serve.engine.adapting.seen.thumbnail", lambda _pixels: bytes(made.append(1) or 1))
    seen = Seen(["red"] * 100, {"red"})
    for position in range(100):
        seen.take(position, pixels("red"))
    assert len(made) == 1


def test_an_earlier_addition_keeps_its_thumbnail() -> None:
    """Of two requests that bring the first thumbnail of a class, the one that is stored first wins."""
    phi = np.zeros((1, 2), np.float32)
    one = SupportSet.of(phi, [None], ["a"]).extended(SupportSet.of(phi, [None], ["b"], {0: b"first"}))
    assert one.thumbnails == {2: b"first"}
    assert one.extended(SupportSet.of(phi, [None], ["b"], {0: b"second"})).thumbnails == {2: b"first"}
