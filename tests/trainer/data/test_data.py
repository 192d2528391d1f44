"""Images, classes and episodes: layouts, order, seeds, refusals."""

import io
import json
import os
import re
import shutil
import tarfile
from importlib.resources import files
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from comln_serve.imaging import ImageError, Preprocessing
from tests.support.documents import document
from tests.support.image_files import image_bytes, prepare_image
from tests.support.paths import REPOSITORY
from tests.support.training import image_set
from training.config import DataConfig
from training.config.data import SEVERAL
from training.data import _LOADERS, DataError, ImageSet, check_episodes, load_split, sample_episode
from training.data.class_lists import in_several_splits
from training.data.image_folder import load_image_folder
from training.data.images import fit_pixels
from training.data.omniglot import load_omniglot
from training.data.resident import ResidentImages

POLICY = Preprocessing(image_size=16)
SHARES = (0.5, 0.25, 0.25)
ARCHIVE = REPOSITORY.parent / "shared" / "data" / "omniglot" / "images.tar.gz"


def drawing(seed: int) -> bytes:
    """A 1-bit PNG, as Omniglot's are."""
    ink = np.random.default_rng(seed).random((21, 21)) > 0.2
    buffer = io.BytesIO()
    Image.fromarray(ink).save(buffer, "PNG")
    return buffer.getvalue()


def write_folder(root: Path, classes: dict[str, int]) -> None:
    for name, count in classes.items():
        (root / "train" / name).mkdir(parents=True)
        for i in range(count):
            (root / "train" / name / f"{i}.png").write_bytes(image_bytes(seed=i))


def vinyals(split: str) -> list[tuple[str, str, str]]:
    tree = json.loads((files("training.data") / f"splits/omniglot-{split}.json").read_text())
    return [
        (f"images_{half}", alphabet, character)
        for half, alphabets in tree.items()
        for alphabet, characters in alphabets.items()
        for character in characters
    ]


def write_omniglot(root: Path, split: str) -> None:
    for i, (half, alphabet, character) in enumerate(vinyals(split)):
        folder = root / half / alphabet / character
        folder.mkdir(parents=True)
        for j in range(2):
            (folder / f"{i:04}_{j:02}.png").write_bytes(drawing(2 * i + j))
    for half in ("images_background", "images_evaluation"):
        (root / half).mkdir(exist_ok=True)


def toy_set(counts: tuple[int, ...] = (4, 4, 4), rotations: int = 1) -> ImageSet:
    images = np.random.default_rng(0).integers(0, 256, (sum(counts), 4, 4, 3), dtype=np.uint8)
    return image_set(images, counts, rotations=rotations)


class TestImageFolder:
    @pytest.mark.parametrize(
        ("root", "split", "message"),
        [
            ("linked", "train", r"a/gone\.png: .*No such file"),
            ("whole", "val", "val"),
            ("gone", "train", "gone"),
            ("nothing", "train", "split train: there is no folder of images in it; expected <class>"),
            ("empty class", "train", "'empty'"),
            ("broken", "train", r"split train: a/broken\.jpg: "),
            ("whole/train", "test", r"class_shares, 0\.75, 0\.25, 0 of .* leaves none of its 4 for test\."),
        ],
    )
    def test_what_cannot_be_read_is_named(self, tmp_path: Path, root: str, split: str, message: str) -> None:
        write_folder(tmp_path / "whole", dict.fromkeys("abcd", 1))
        write_folder(tmp_path / "empty class", {"a": 1, "empty": 0})
        (tmp_path / "nothing" / "train").mkdir(parents=True)
        for name in ("linked", "broken"):
            write_folder(tmp_path / name, {"a": 1})
        (tmp_path / "linked" / "train" / "a" / "gone.png").symlink_to(tmp_path / "gone.png")
        (tmp_path / "broken" / "train" / "a" / "broken.jpg").write_bytes(b"not an image")
        with pytest.raises(DataError, match=message):
            load_image_folder(tmp_path / root, split, POLICY, (0.75, 0.25, 0.0))

    def test_classes_are_sorted_and_whole(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"b": 2, "a": 3})
        data = load_image_folder(tmp_path, "train", POLICY, SHARES)
        assert data.names == ("a", "b")
        assert [len(members) for members in data.members] == [3, 2]
        assert data.images.shape == (5, 16, 16, 3)

    def test_other_files_are_ignored(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"a": 1, "b": 1})
        (tmp_path / "train" / "a" / "notes.txt").write_text("x")
        (tmp_path / "train" / "README").write_text("x")
        os.mkfifo(tmp_path / "train" / "a" / "pipe.png")  # reading it would never end
        (tmp_path / "train" / "a" / "folder.png").mkdir()
        assert load_image_folder(tmp_path, "train", POLICY, SHARES).images.shape[0] == 2

    def test_without_splits_the_classes_are_divided_by_shares(self, tmp_path: Path) -> None:
        names = {f"class{i}": 1 for i in range(8)}
        write_folder(tmp_path, names)
        root = tmp_path / "train"  # as if this split were the whole data set
        drawn = [load_image_folder(root, split, POLICY, SHARES).names for split in ("train", "val", "test")]
        assert [len(part) for part in drawn] == [4, 2, 2]
        assert sorted(name for part in drawn for name in part) == sorted(names)
        again = load_image_folder(root, "val", POLICY, SHARES)
        assert again.names == drawn[1]

    def test_jpegs_as_some_browsers_save_them(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"a": 2})
        image = next((tmp_path / "train" / "a").iterdir())
        image.rename(image.with_suffix(".jfif"))
        assert len(load_image_folder(tmp_path, "train", POLICY, SHARES).images) == 2

    def test_the_folder_that_contains_images_is_the_class(self, tmp_path: Path) -> None:
        for name in ("fruit/apple", "fruit/pear", "milk"):
            write_folder(tmp_path, {name: 2})
        (tmp_path / "train" / "milk" / "notes").mkdir()
        (tmp_path / "train" / "again").symlink_to(tmp_path)
        data = load_image_folder(tmp_path, "train", POLICY, SHARES)
        assert data.names[-3:] == ("fruit/apple", "fruit/pear", "milk")
        (tmp_path / "train" / "fruit" / "empty").mkdir()
        with pytest.raises(DataError, match=r"'fruit/empty' holds no image, of those ending in \.jpg, .* remove the"):
            load_image_folder(tmp_path, "train", POLICY, SHARES)

    def test_all_is_every_class_folder_of_every_split(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"a": 1, "b": 2})
        (tmp_path / "val" / "c").mkdir(parents=True)
        (tmp_path / "val" / "c" / "0.png").write_bytes(image_bytes())
        data = load_image_folder(tmp_path, "all", POLICY, SHARES, {"train": "list.txt"})
        assert data.names == ("train/a", "train/b", "val/c")
        assert load_image_folder(tmp_path / "train", "all", POLICY, SHARES).names == ("a", "b")

    def test_folders_with_other_names_of_splits_are_refused(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"a": 1, "b": 1})
        for folder in ("Train", "Validation"):
            shutil.copytree(tmp_path / "train", tmp_path / "data" / folder)
        with pytest.raises(DataError, match=r"'Train', 'Validation': folders of splits are called train, val, test"):
            load_image_folder(tmp_path / "data", "train", POLICY, SHARES)
        names = load_image_folder(tmp_path / "data", "all", POLICY, SHARES).names
        assert names == ("Train/a", "Train/b", "Validation/a", "Validation/b")
        warning = in_several_splits("data", names)
        assert warning.startswith("data: classes with folders in several splits: 2, first 'a'")
        assert not in_several_splits("data", ("train/a", "val/b", "fruit/c", "milk/c"))
        (tmp_path / "data" / "Validation").rename(tmp_path / "data" / "running")
        names = load_image_folder(tmp_path / "data", "train", POLICY, (1.0, 0.0, 0.0)).names
        assert names == ("Train/a", "Train/b", "running/a", "running/b"), "groups of classes, such as of shoes"

    @pytest.mark.parametrize("form", ["PPM", "TIFF"])
    def test_formats_of_data_sets_that_only_the_trainer_reads(self, tmp_path: Path, form: str) -> None:
        (tmp_path / "signs").mkdir()
        pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, form)
        (tmp_path / "signs" / f"0.{form.lower()}").write_bytes(buffer.getvalue())
        data = load_image_folder(tmp_path, "all", POLICY, SHARES)
        np.testing.assert_array_equal(data.images[0], pixels)
        if form == "PPM":
            with pytest.raises(ImageError, match="JPEG"):
                prepare_image(buffer.getvalue(), POLICY)

    def test_all_broken_images_are_named_at_once(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {"a": 1, "b": 1})
        for name in "ab":
            (tmp_path / "train" / name / "broken.jpg").write_bytes(b"not an image")
        with pytest.raises(DataError, match=r"2 files cannot be used; .*:\n  a/broken\.jpg: .*\n  b/broken\.jpg: .*$"):
            load_image_folder(tmp_path, "train", POLICY, SHARES)
        for i in range(20):
            (tmp_path / "train" / "b" / f"empty{i}.png").write_bytes(b"")
        with pytest.raises(DataError, match=r"(?s)22 files cannot be used; .*\n  and 2 more$"):
            load_image_folder(tmp_path, "train", POLICY, SHARES)


class TestOmniglot:
    def test_the_split_is_vinyals(self) -> None:
        sizes = {split: len(vinyals(split)) for split in ("train", "val", "test")}
        assert sizes == {"train": 1028, "val": 172, "test": 423}
        everything = [key for split in sizes for key in vinyals(split)]
        assert len(set(everything)) == 1623

    @pytest.mark.parametrize("nested", [False, True], ids=["folders", "torchvision"])
    def test_folders_and_archive_are_the_same_images(self, tmp_path: Path, nested: bool) -> None:
        root = tmp_path / "data"
        base = root / "omniglot-py" if nested else root
        write_omniglot(base, "val")
        archive = tmp_path / "images.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            for half in ("images_background", "images_evaluation"):
                tar.add(base / half, half)
        from_folders = load_omniglot(root, "val", POLICY, rotations=False)
        from_archive = load_omniglot(archive, "val", POLICY, rotations=False)
        assert from_folders.names == from_archive.names
        assert from_folders.n_classes == 172
        np.testing.assert_array_equal(from_folders.images, from_archive.images)

    def test_rotations_are_classes_of_their_own(self, tmp_path: Path) -> None:
        write_omniglot(tmp_path, "val")
        assert load_omniglot(tmp_path, "val", POLICY, rotations=True).n_classes == 4 * 172

    def test_a_missing_character_is_named(self, tmp_path: Path) -> None:
        write_omniglot(tmp_path, "val")
        half, alphabet, character = vinyals("val")[3]
        for path in (tmp_path / half / alphabet / character).iterdir():
            path.unlink()
        with pytest.raises(DataError, match=f"1 of the 172.*{alphabet}/{character}"):
            load_omniglot(tmp_path, "val", POLICY, rotations=False)

    def test_neither_archive_nor_folders(self, tmp_path: Path) -> None:
        (tmp_path / "x.tar.gz").write_bytes(b"x")
        with pytest.raises(DataError, match="not a readable tar"):
            load_omniglot(tmp_path / "x.tar.gz", "val", POLICY, rotations=False)
        with pytest.raises(DataError, match="images_background"):
            load_omniglot(tmp_path, "val", POLICY, rotations=False)

    def test_all_is_the_three_splits_together(self, tmp_path: Path) -> None:
        for split in ("train", "val", "test"):
            write_omniglot(tmp_path, split)
        config = DataConfig(kind="omniglot", preprocessing=POLICY, group=r"^\d{4}")
        data = load_split(config, tmp_path, "all")
        assert data.n_classes == 1623
        assert len(set(data.names)) == 1623
        val = load_split(config, tmp_path, "val")
        first = data.names.index(val.names[0])
        np.testing.assert_array_equal(data.images[data.members[first]], val.images[val.members[0]])
        assert data.groups is not None
        assert data.groups[data.members[first]].tolist() == 2 * [2 * 1028]

    @pytest.mark.skipif(not ARCHIVE.exists(), reason="the full Omniglot archive is not here")
    def test_the_real_archive(self) -> None:
        data = load_omniglot(ARCHIVE, "val", Preprocessing(image_size=28), rotations=False)
        assert data.images.shape == (172 * 20, 28, 28, 3)
        assert {len(members) for members in data.members} == {20}


class TestEpisodes:
    def test_an_episode_is_disjoint_and_of_its_classes(self) -> None:
        data = toy_set()
        episode = sample_episode(np.random.default_rng(0), data, 3, 2, 2)
        assert sorted(episode.classes) == [0, 1, 2]
        for c, support, query in zip(episode.classes, episode.support, episode.query, strict=True):
            drawn = [*support, *query]
            assert sorted(drawn) == sorted(data.members[c])

    def test_equal_seeds_give_equal_episodes(self) -> None:
        one, two = (sample_episode(np.random.default_rng((7, 3)), toy_set(), 2, 1, 1) for _ in range(2))
        np.testing.assert_array_equal(one.support, two.support)
        np.testing.assert_array_equal(one.query, two.query)

    def test_more_ways_or_images_than_there_are_is_refused(self) -> None:
        with pytest.raises(DataError, match="4-way"):
            sample_episode(np.random.default_rng(0), toy_set(), 4, 1, 1)
        with pytest.raises(DataError, match=r"'[01]' has 4 images; an episode needs 3 \+ 2"):
            sample_episode(np.random.default_rng(0), toy_set((4, 4)), 2, 3, 2)

    def test_data_too_small_for_an_episode_is_refused_in_advance(self) -> None:
        data = toy_set((4, 3, 4))
        check_episodes(data, 3, 1, 2)
        with pytest.raises(DataError, match="class '1' has 3 images; an episode needs 3"):
            check_episodes(data, 2, 3, 1)
        with pytest.raises(DataError, match=r"class '1' has 3 images; .* 3 \+ 1; 1 more have too few, such as '2'$"):
            check_episodes(toy_set((4, 3, 2)), 2, 3, 1)
        with pytest.raises(DataError, match="4-way"):
            check_episodes(data, 4, 1, 0)
        check_episodes(toy_set((4, 4), rotations=4), 8, 2, 2)

    def test_rotated_classes_have_rotated_images(self) -> None:
        data = toy_set(rotations=4)
        classes = np.array([0, 1, 2, 3])
        resident = ResidentImages(data, torch.device("cpu"))
        turned = resident.gather(classes, np.zeros(4, dtype=np.intp)).numpy()
        for turn in range(4):
            np.testing.assert_array_equal(turned[turn], np.rot90(data.images[0], turn))


@pytest.mark.parametrize("resize", ["crop", "pad", "stretch"])
@pytest.mark.parametrize("shape", [(16, 16), (10, 30), (40, 20)])
def test_arrays_are_preprocessed_like_files(resize: str, shape: tuple[int, int]) -> None:
    policy = Preprocessing.model_validate({"image_size": 16, "resize": resize})
    images = np.random.default_rng(0).integers(0, 256, (3, *shape, 3), dtype=np.uint8)
    for image, found in zip(images, fit_pixels(images, policy), strict=True):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        np.testing.assert_array_equal(found, prepare_image(buffer.getvalue(), policy))


def test_every_kind_has_a_reader_and_is_documented() -> None:
    kinds = set(get_args(DataConfig.model_fields["kind"].annotation)) - {SEVERAL}
    assert set(_LOADERS) == kinds
    first_column = "".join(re.findall(r"^\| (`[^|]+) \|", document("data.md"), re.MULTILINE))
    assert set(re.findall(r"`(\w+)`", first_column)) == kinds
