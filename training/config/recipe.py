"""Recipes: configurations as YAML, with overrides from the command line."""

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from training.config.files import find_paths
from training.config.run import Config


class ConfigError(ValueError):
    """A recipe or an override that cannot be used; the message names the key."""


def load_config(path: Path, overrides: tuple[str, ...] = ()) -> Config:
    """Read a recipe and apply overrides `section.key=value` (the value is YAML).

    Raises:
        ConfigError: unreadable file, unknown key, value out of range.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot read the recipe {path}: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"the recipe {path} must be a mapping, found {type(tree).__name__}")
    _resolve_paths(tree, path.parent)
    return _validated(tree, overrides, f"the recipe {path}")


def override_config(config: Config, overrides: tuple[str, ...]) -> Config:
    """Apply overrides `section.key=value` to a run's configuration.

    Raises:
        ConfigError: unknown key, value out of range.
    """
    return _validated(config.model_dump(mode="json"), overrides, "the run's recipe, overridden,")


def _validated(tree: dict[str, Any], overrides: tuple[str, ...], what: str) -> Config:
    for override in overrides:
        _apply(tree, override)
    _resolve_paths(tree, Path.cwd())
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or '(whole recipe)'}: {item['msg']}, got {item['input']!r}"
            for item in error.errors()
        ]
        raise ConfigError("\n".join([f"{what} cannot be used:", *lines])) from error


def _resolve_paths(tree: dict[str, Any], base: Path) -> None:
    """Make the tree's paths absolute; relative ones are relative to `base`."""
    for section, key in find_paths(tree):
        section[key] = str((base / Path(section[key]).expanduser()).resolve())


def _apply(tree: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"an override reads section.key=value, got {override!r}")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"the value of {override!r} is not YAML: {error}") from error
    *sections, leaf = key.split(".")
    node = tree
    for section in sections:
        child = node.setdefault(section, {})
        if not isinstance(child, dict):
            raise ConfigError(f"{override!r}: {section!r} is a value, not a section")
        node = child
    node[leaf] = value
