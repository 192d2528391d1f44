"""Values of a configuration that are paths of files or folders."""

from collections.abc import Generator
from pathlib import PurePath
from typing import Any

_KEYS = ("backbone.path", "backbone.warm_start", "backbone.weights", "pretraining.teacher")


def is_path(weights: str) -> bool:
    """Whether this value of `backbone.weights` is a path: names of published weights have no dot and no slash."""
    return any(mark in weights for mark in "./\\")


def find_paths(tree: dict[str, Any]) -> Generator[tuple[dict[str, Any], str], None, None]:
    """(section, key) of each path in a configuration, so that the caller can replace it."""
    for name in _KEYS:
        section_name, _, key = name.partition(".")
        if not isinstance(tree.get(section_name), dict):
            continue
        section: dict[str, Any] = tree[section_name]
        value = section.get(key)
        if isinstance(value, str) and (key != "weights" or is_path(value)):
            yield section, key


def without_folders(tree: dict[str, Any]) -> dict[str, Any]:
    """Replace each path by its last part, for publication: folders are of one machine. Returns `tree`."""
    for section, key in find_paths(tree):
        section[key] = PurePath(section[key]).name
    return tree


def override_without_folders(override: str) -> str:
    """An override `section.key=value` whose value, if it is a path, is cut to its last part."""
    key, _, value = override.partition("=")
    return f"{key}={PurePath(value).name}" if key in _KEYS else override
