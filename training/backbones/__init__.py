"""Embedding networks f_Phi, one per file."""

from training.backbones.backbone import Backbone, Precomputed
from training.backbones.errors import BackboneError

__all__ = ["Backbone", "BackboneError", "Precomputed"]
