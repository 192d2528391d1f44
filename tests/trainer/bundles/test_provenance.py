"""Shipped bundles can be made again: by the recipes that were used, from what other commands export."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import blocks, document
from tests.support.paths import REPOSITORY
from training.config import Config, load_config

MANIFESTS = sorted((REPOSITORY / "models").glob("*/bundle.json"))
# What a command takes from another bundle or file, at a place of its own in every run.
TAKEN = (("backbone", "warm_start"), ("backbone", "path"), ("backbone", "weights"), ("pretraining", "teacher"))


def recipe_of(command: str) -> Config:
    """The recipe that `comln-train fit` reads, with its overrides."""
    words = shlex.split(command)
    overrides = tuple(words[i + 1] for i, word in enumerate(words) if word == "--set")
    return load_config(REPOSITORY / words[2], overrides)


def names(config: dict[str, Any]) -> dict[str, Any]:
    """The recipe with names in the place of paths."""
    for section, key in TAKEN:
        if config.get(section) and config[section].get(key):
            config[section][key] = Path(config[section][key]).name
    return config


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.parent.name)
def test_the_command_of_a_card_has_the_recipe_that_was_used(path: Path) -> None:
    training = json.loads(path.read_text(encoding="utf-8"))["training"]
    used = Config.model_validate(training["config"])  # keys that came later have their defaults
    assert names(recipe_of(training["command"]).model_dump(mode="json")) == names(used.model_dump(mode="json"))


def rebuilding() -> Iterator[list[str]]:
    """The words of the commands that rebuild the shipped bundles."""
    section = document("training.md").split("## Rebuilding the shipped bundles\n")[1].split("\n## ")[0]
    for block in blocks(section, "sh"):
        yield from map(shlex.split, block.replace("\\\n", " ").splitlines())


def test_what_a_rebuilding_run_starts_from_is_made_by_another() -> None:
    commands = [words for words in rebuilding() if words[0] == "comln-train"]
    exports = [words for words in commands if words[1] == "export"]
    made = {Path(words[words.index("--to") + 1]).name for words in exports}
    assert {path.parent.name for path in MANIFESTS} <= made
    runs: list[str] = []
    for words in (words for words in commands if words[1] == "fit"):
        config = recipe_of(shlex.join(words))
        runs.append(words[words.index("--out") + 1])
        graph = Path(config.backbone.path).parent if config.backbone.path else None
        teacher = config.pretraining.teacher if config.pretraining else None
        taken = {Path(bundle).name for bundle in (config.backbone.warm_start, teacher, graph) if bundle}
        assert taken <= made, words
    assert set(runs) == {words[2] for words in exports}
