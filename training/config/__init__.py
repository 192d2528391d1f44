"""The configuration of a training run, as one typed value.

A recipe is the configuration as YAML. It is stored in every checkpoint and in every bundle's manifest.
"""

from training.config.backbone import BackboneConfig, DropBlockConfig
from training.config.data import AugmentationConfig, DataConfig
from training.config.head import HeadConfig
from training.config.phases import OptimiserConfig
from training.config.recipe import ConfigError, load_config, override_config
from training.config.run import Config

__all__ = [
    "AugmentationConfig",
    "BackboneConfig",
    "Config",
    "ConfigError",
    "DataConfig",
    "DropBlockConfig",
    "HeadConfig",
    "OptimiserConfig",
    "load_config",
    "override_config",
]
