"""LEO's embeddings: reading, episodes, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.data_files import pickle_of_python2, write_pickle
from training.config import DataConfig
from training.data import DataError, ImageSet, load_split, sample_episode
from training.data.resident import ResidentImages


def vectors(count: int = 6, size: int = 5, dtype: type = np.float32) -> Any:
    return np.random.default_rng(0).normal(size=(count, size)).astype(dtype)


def keys(count: int = 6) -> list[str]:
    """As in LEO's files: a number, the class, and the image, whose name contains the class."""
    return [f"{10**18 + i}-n{i % 2:08}-n{i % 2:08}_{i}.JPEG" for i in range(count)]


def read(root: Path, split: str = "val") -> ImageSet:
    return load_split(DataConfig(kind="embeddings"), root, split)


def write(root: Path, **content: Any) -> None:
    write_pickle(root / "val_embeddings.pkl", {"keys": keys(), "embeddings": vectors()} | content)


class TestWhatIsRead:
    def test_classes_are_those_of_the_keys(self, tmp_path: Path) -> None:
        write(tmp_path)
        data = read(tmp_path)
        assert data.names == ("n00000000", "n00000001")
        assert [list(members) for members in data.members] == [[0, 2, 4], [1, 3, 5]]
        np.testing.assert_array_equal(data.images, vectors())

    @pytest.mark.parametrize(
        "other",
        [
            {"keys": np.array(keys())},
            {"keys": np.array(keys(), dtype="S")},
            {"keys": np.array(keys(), dtype=object)},
            {"keys": tuple(key.encode() for key in keys())},
            {"embeddings": vectors(dtype=np.float64)},
            {"embeddings": vectors().astype(">f4")},
            {"embeddings": [*vectors()]},
            {"labels": [1]},
        ],
    )
    def test_other_types_of_the_same(self, tmp_path: Path, other: Any) -> None:
        write(tmp_path, **other)
        data = read(tmp_path)
        assert data.names == ("n00000000", "n00000001")
        assert data.images.dtype == np.float32
        np.testing.assert_allclose(data.images, vectors(), rtol=1e-6)

    def test_a_file_of_python_2(self, tmp_path: Path) -> None:
        content = pickle_of_python2({"keys": keys(), "embeddings": vectors()})
        (tmp_path / "train_embeddings.pkl").write_bytes(content)
        np.testing.assert_array_equal(read(tmp_path, "train").images, vectors())

    def test_episodes_are_of_vectors(self, tmp_path: Path) -> None:
        write(tmp_path)
        data = read(tmp_path)
        episode = sample_episode(np.random.default_rng(0), data, ways=2, shots=1, queries=2)
        drawn = np.concatenate([episode.support, episode.query], axis=1)
        resident = ResidentImages(data, torch.device("cpu"))
        gathered = resident.gather(np.repeat(episode.classes, 3), drawn.ravel()).numpy()
        assert gathered.shape == (6, 5)
        assert gathered.dtype == np.float32
        np.testing.assert_array_equal(gathered, vectors()[drawn.ravel()])


class TestWhatIsRefused:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"val_embeddings\.pkl: No such file"):
            read(tmp_path)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"keys": keys(5)}, "'keys': 5 labels for 6 images"),
            ({"keys": None}, "'keys': expected a list of strings, found NoneType"),
            ({"keys": ["n01532829"] * 6}, "expected '<number>-<class>-<image file>'.*'n01532829'"),
            ({"keys": ["1--x.JPEG"] * 6}, "found '1--x.JPEG'"),
            ({"embeddings": vectors()[0]}, r"'embeddings': expected \(n, d\) floats, found an arr"),
            ({"embeddings": np.ones((6, 5), int)}, r"expected \(n, d\) floats"),
            ({"embeddings": [np.ones(2), np.ones(3)]}, "vectors of different sizes"),
            ({"embeddings": vectors(0), "keys": []}, r"expected \(n, d\) floats"),
            ({"embeddings": np.where(vectors() > 1, np.nan, vectors())}, "row . is not finite"),
            ({"embeddings": np.full((6, 5), 1e300)}, "row 0 is not finite in float32"),
        ],
    )
    def test_wrong_content(self, tmp_path: Path, content: Any, message: str) -> None:
        write(tmp_path, **content)
        with pytest.raises(DataError, match=rf"val_embeddings\.pkl.*{message}"):
            read(tmp_path)

    @pytest.mark.parametrize("missing", ["keys", "embeddings"])
    def test_a_missing_key(self, tmp_path: Path, missing: str) -> None:
        content = {"keys": keys(), "embeddings": vectors()}
        del content[missing]
        write_pickle(tmp_path / "val_embeddings.pkl", content)
        with pytest.raises(DataError, match=f"no '{missing}'; it holds"):
            read(tmp_path)
