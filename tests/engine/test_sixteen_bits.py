"""A model whose bundle has examples stored in 16 bits adapts to what it stores."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from comln_serve.bundle.manifest import MANIFEST
from comln_serve.configuration.settings import Settings
from comln_serve.domain.sixteen_bits import to_int16
from comln_serve.engine.adapting.changes import RemoveExamples
from comln_serve.engine.engine import Engine
from tests.support.bundles import edit_manifest
from tests.support.databases import execute
from tests.support.engines import MakeEngine, predict
from tests.support.image_files import colour_support, image_bytes


@pytest.fixture
def halved(settings: Settings, tmp_path: Path) -> Settings:
    """Settings of a server of such a bundle."""
    folder = tmp_path / "halved"
    assert settings.models_dir is not None
    shutil.copytree(settings.models_dir / "tiny-prototype", folder / "tiny-prototype")
    edit_manifest(
        folder / "tiny-prototype", lambda content: content.update(stored_embeddings="int16", format_version=4)
    )
    assert (folder / "tiny-prototype" / MANIFEST).is_file()
    return settings.model_copy(update={"models_dir": folder, "default_model": "tiny-prototype"})


def embeddings(engine: Engine, reference: str) -> np.ndarray:
    return engine.classifiers.of().support(reference)[1].embeddings


def test_it_adapts_to_what_it_stores(halved: Settings, make_engine: MakeEngine) -> None:
    engine, support = make_engine(halved), colour_support(3)
    made = engine.adapt(support).classifier
    assert to_int16(embeddings(engine, made.id)) is not None
    assert execute(halved.database_url, "SELECT scales IS NOT NULL FROM supports") == [(1,)]
    in_parts = engine.adapt(support[:-1]).classifier
    extended = engine.add_examples(in_parts.id, support[-1:]).classifier
    np.testing.assert_array_equal(extended.W, made.W)
    np.testing.assert_array_equal(embeddings(engine, in_parts.id), embeddings(engine, made.id))
    engine.add_examples(made.id, [(image_bytes(seed=9), support[0][1])])
    again = engine.change(made.id, RemoveExamples([len(support) + 1])).classifier
    np.testing.assert_array_equal(again.W, made.W)


def test_a_classifier_of_before_keeps_its_examples_whole(halved: Settings, make_engine: MakeEngine) -> None:
    """The setting does not change what the model is."""
    before = make_engine(default_model="tiny-prototype")
    made = before.adapt(colour_support(2)).classifier
    whole = embeddings(before, made.id)
    assert to_int16(whole) is None
    before.close()
    engine = make_engine(halved)
    engine.add_examples(made.id, colour_support(1))
    found = embeddings(engine, made.id)
    np.testing.assert_array_equal(found[: len(whole)], whole)
    assert to_int16(found[len(whole) :]) is not None
    assert to_int16(found) is None
    assert execute(halved.database_url, "SELECT scales IS NULL FROM supports") == [(1,)]
    probabilities = predict(engine, [image_bytes()], made.id).probabilities
    assert np.isfinite(probabilities).all()
