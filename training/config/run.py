"""The whole configuration of a run."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from training.config.backbone import BackboneConfig
from training.config.data import AugmentationConfig, DataConfig
from training.config.flow import FlowConfig
from training.config.head import HeadConfig
from training.config.phases import EpisodeConfig, OptimiserConfig, PretrainingConfig, ValidationConfig
from training.config.section import Section


class Config(Section):
    """The whole configuration of a run.

    Attributes:
        updates: of meta-training. 0 is for a bundle whose frozen network was wrapped without
            training; `fit` refuses it.
        precision: of the backbone's matrix products and activations in training ("bfloat16": automatic mixed
            precision). Parameters and the flow are not affected, and bundles hold float32.
        seed: of the initial weights, the episodes and the augmentation.
    """

    data: DataConfig
    augmentation: AugmentationConfig = AugmentationConfig()
    backbone: BackboneConfig = BackboneConfig()
    pretraining: PretrainingConfig | None = None
    head: HeadConfig = HeadConfig()
    flow: FlowConfig = FlowConfig()
    episodes: EpisodeConfig = EpisodeConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    validation: ValidationConfig = ValidationConfig()
    updates: Annotated[int, Field(ge=0)]
    precision: Literal["float32", "bfloat16"] = "float32"
    seed: Annotated[int, Field(ge=0)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head.start == "learned":
            least, most = self.episodes.ways
            if least != most:
                raise ValueError(f"a learned start is tied to one number of ways, got {least} to {most}")
            other = [ways for ways, _ in self.validation.tasks if ways != least]
            if other:
                raise ValueError(f"a learned start is tied to {least} ways; validation asks for {other[0]}")
        head = self.head
        if self.updates and head.initial_shot_offset is not None and not self.episodes.unequal:
            raise ValueError(
                "head.initial_shot_offset has no effect on classes of equal shots, so it cannot be learned: set "
                "episodes.unequal, or leave it out"
            )
        if self.backbone.is_frozen and head.start == "zero" and not head.learn_horizon:
            raise ValueError(
                "nothing is left to learn: the backbone is frozen, the start is zero and head.learn_horizon is false"
            )
        if not self.updates and not self.backbone.is_frozen:
            raise ValueError("updates must be 1 or more: the backbone starts at random")
        # A run on embeddings is exported with the ONNX graph that computed them.
        if self.data.kind == "embeddings" and self.backbone.kind not in {"identity", "onnx"}:
            raise ValueError('data.kind "embeddings" needs backbone.kind "identity"')
        if self.pretraining is not None and len(self.data.used_for("train")) > 1:
            raise ValueError(
                "pretraining is on the classes of one data set, and several of data.sets are for "
                "training: leave it out, or begin with trained weights (backbone.warm_start, "
                "backbone.weights)"
            )
        if self.pretraining is not None and self.pretraining.teacher is not None and self.data.rotations:
            raise ValueError("pretraining.teacher sees images upright only: leave it or data.rotations out")
        if self.backbone.is_frozen and self.pretraining is not None:
            raise ValueError("a frozen backbone is not trained: leave pretraining out")
        if self.backbone.is_frozen and self.augmentation != AugmentationConfig():
            raise ValueError("a frozen backbone sees every image once, as it is: leave augmentation out")
        return self
