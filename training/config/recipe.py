"""Recipes: configurations as YAML, with overrides from the command line."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeGuard, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from comln_serve.unknown_names import no_such
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
        raise ConfigError(
            f"the recipe {path} must be a mapping, found {'nothing' if tree is None else type(tree).__name__}"
        )
    _resolve_paths(tree, path.parent)
    return _validated(tree, overrides, f"the recipe {path}")


def override_config(config: Config, overrides: tuple[str, ...]) -> Config:
    """Apply overrides `section.key=value` to a run's configuration."""
    return _validated(config.model_dump(mode="json"), overrides, "the run's recipe, overridden,")


def _validated(tree: dict[str, Any], overrides: tuple[str, ...], what: str) -> Config:
    for override in overrides:
        _apply(tree, override)
    _resolve_paths(tree, Path.cwd())
    try:
        return Config.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join([f"{what} cannot be used:", *map(_problem, error.errors())])) from error


def _problem(item: ErrorDetails) -> str:
    """One of Pydantic's errors as a line; of an unknown key it names the nearest ones."""
    where = ".".join(map(str, item["loc"])) or "(whole recipe)"
    if item["type"] == "extra_forbidden":
        *sections, key = map(str, item["loc"])
        return f"  {where}: {no_such(key, 'key', _keys(sections))}"
    said = f"  {where}: {item['msg'].removeprefix('Value error, ')}"
    if item["type"] == "value_error" and isinstance(item["input"], dict):
        return said  # which names what is wrong of the section, or of the whole recipe
    return f"{said}, got {item['input']!r}"


def _keys(sections: Sequence[str]) -> Collection[str]:
    """The keys of a section of a recipe, such as those of `data.preprocessing`."""
    section: type[BaseModel] = Config
    for name in sections:
        if name in section.model_fields:  # else it is a position in a list of sections
            kind = section.model_fields[name].annotation
            section = next(part for part in (kind, *get_args(kind)) if isinstance(part, type) and _is_section(part))
    return section.model_fields


def _is_section(kind: type) -> TypeGuard[type[BaseModel]]:
    return issubclass(kind, BaseModel)


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
