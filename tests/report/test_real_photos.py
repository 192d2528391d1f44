"""Photos as users send them, through the whole server: bursts, and one photo under a wrong label."""

import tarfile
from itertools import chain

import numpy as np
import pytest

from comln_serve.domain.report import Report
from comln_serve.engine.adapting.changes import RemoveExamples
from comln_serve.engine.engine import Engine, NewClassifier
from tests.support.engines import MakeEngine
from tests.support.image_files import frame
from tests.support.paths import REPOSITORY

Labelled = list[tuple[bytes, str]]

GROCERIES = REPOSITORY / "examples" / "groceries"
SHARED = REPOSITORY.parent / "shared" / "data" / "photos"
WAYS = FRAMES = 5


@pytest.fixture
def photos(make_engine: MakeEngine) -> Engine:
    """The model of photos."""
    engine = make_engine(models_dir=REPOSITORY / "models", default_model="photos-efficientnet-lite0")
    engine.warm()
    return engine


def report_on(engine: Engine, support: Labelled) -> Report:
    report = engine.adapt(support).classifier.report
    assert report is not None
    return report


def products(*, burst: bool) -> Labelled:
    folders = sorted(GROCERIES.glob("*/support"))[:WAYS]
    return [
        (
            frame((folder / "1.jpg").read_bytes(), n) if burst else (folder / f"{n + 1}.jpg").read_bytes(),
            folder.parent.name,
        )
        for folder in folders
        for n in range(FRAMES)
    ]


def test_a_burst_of_each_product_has_no_held_out_accuracy(photos: Engine) -> None:
    report = report_on(photos, products(burst=True))
    assert report.held_out is None
    assert report.near_duplicates == [list(range(n, n + FRAMES)) for n in range(1, WAYS * FRAMES, FRAMES)]
    assert "all nearly the same photo were not judged" in report.notes[0]
    assert "1, 2, 3, 4, 5 of 'arla-medium-fat-milk'" in report.notes[1]


def test_different_photos_of_each_product_are_all_judged(photos: Engine) -> None:
    report = report_on(photos, products(burst=False))
    assert report.held_out is not None
    assert (report.held_out.judged, report.near_duplicates, report.notes) == (WAYS * FRAMES, [], [])
    assert report.held_out.predicted is not None
    right = np.equal(report.held_out.predicted, np.repeat(np.arange(WAYS), FRAMES))
    assert right.mean() == report.held_out.accuracy


def test_frames_added_later_are_recognised(photos: Engine) -> None:
    """The hashes of the examples are stored, and go with them when they are removed."""
    support = products(burst=False)
    made = photos.adapt(support, NewClassifier(name="shop")).classifier
    label = support[0][1]
    added = photos.add_examples("shop", [(frame(support[0][0], 1), label)]).classifier.report
    assert added is not None
    assert added.near_duplicates == [[1, len(support) + 1]]
    removed = photos.change("shop", RemoveExamples([1])).classifier.report
    assert removed is not None
    assert removed.near_duplicates == []
    assert made.report is not None
    assert made.report.near_duplicates == []


@pytest.mark.skipif(not SHARED.exists(), reason="the photos of traffic signs are not at ../shared/data")
def test_frames_of_one_track_do_not_pass_for_new_photos(photos: Engine) -> None:
    """Their accuracy was 0.99 on average where photos of other tracks of these signs get 0.66."""
    with tarfile.open(SHARED / "gtsrb43.tar") as archive:
        names = np.array([name for name in archive.getnames() if name.endswith(".png")])
        sign = np.array([name.split("/")[-2] for name in names])
        track = np.array([name.split("/")[-1][:5] for name in names])

        def draw(rng: np.random.Generator, *, burst: bool) -> Labelled:
            drawn: list[list[tuple[bytes, str]]] = []
            for c in rng.permutation(np.unique(sign)):
                tracks, counts = np.unique(track[sign == c], return_counts=True)
                if len(drawn) == WAYS or (burst and counts.max() < FRAMES) or len(tracks) < FRAMES:
                    continue
                of_one = np.flatnonzero((sign == c) & (track == tracks[counts.argmax()]))
                of_each = [rng.choice(np.flatnonzero((sign == c) & (track == t))) for t in rng.permutation(tracks)]
                chosen = rng.permutation(of_one) if burst else of_each
                drawn.append([(archive.extractfile(names[i]).read(), c) for i in chosen[:FRAMES]])  # type: ignore[union-attr]
            return list(chain(*drawn))

        judged: list[int] = []
        for seed in range(6):
            report = report_on(photos, draw(np.random.default_rng(seed), burst=True))
            assert report.near_duplicates
            assert any("nearly the same photo as others" in note for note in report.notes)
            assert report.held_out is None or report.held_out.judged < WAYS * FRAMES
            report = report_on(photos, draw(np.random.default_rng(seed), burst=False))
            assert report.held_out is not None
            judged.append(report.held_out.judged)
        # Signs of one kind are alike: one image in four is taken for a repeat (docs/reports.md).
        assert np.mean(judged) >= 0.75 * WAYS * FRAMES


def share_found(engine: Engine, classes: dict[str, list[bytes]], rng: np.random.Generator, tasks: int) -> float:
    """Share of tasks of three classes whose one wrong photo of 13 is listed, and of the only class it can be of."""
    found = 0
    for _ in range(tasks):
        a, b, c = (str(label) for label in rng.permutation(sorted(classes))[:3])
        support = [
            (photo, label)
            for label in (a, b, c)
            for photo in [classes[label][i] for i in rng.permutation(len(classes[label]))[:4]]
        ]
        others = [photo for photo in classes[b] if (photo, b) not in support]
        report = report_on(engine, [*support, (others[0], a)])
        assert report.held_out is not None
        found += any((one.number, one.label, one.likelier) == (13, a, b) for one in report.held_out.suspects)
    return found / tasks


@pytest.mark.slow
def test_a_wrong_photo_among_thirteen_is_listed(photos: Engine) -> None:
    """Of products that are unlike; it was 12 of these 15 while only scores from 0.95 were listed."""
    names = ("arla-standard-milk", "aubergine", "banana", "bravo-orange-juice", "cucumber", "royal-gala")
    classes = {name: [path.read_bytes() for path in sorted((GROCERIES / name).glob("*/*.jpg"))] for name in names}
    assert share_found(photos, classes, np.random.default_rng(0), tasks=15) >= 0.85


@pytest.mark.skipif(not SHARED.exists(), reason="the photos of groceries are not at ../shared/data")
def test_a_wrong_photo_of_many_products_is_listed(photos: Engine) -> None:
    classes: dict[str, list[bytes]] = {}
    with tarfile.open(SHARED / "grocery.tar") as archive:
        for name in archive.getnames():
            _, label, file = name.split("/") if name.endswith(".jpg") else ("", "", "")
            if file and len(classes.setdefault(label, [])) < 8:
                classes[label].append(archive.extractfile(name).read())  # type: ignore[union-attr]
    assert share_found(photos, classes, np.random.default_rng(0), tasks=40) >= 0.75
