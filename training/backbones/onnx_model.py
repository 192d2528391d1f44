"""An ONNX graph as a frozen network."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training.backbones.onnx_file import OnnxFile
from training.backbones.pixels import check_images
from training.config import BackboneConfig
from training.errors import BackboneError


class OnnxNetwork(nn.Module):
    """Runs a graph in ONNX Runtime: (B, C, S, S) float32, or images with layout "as_is" -> (B, d).

    It has no gradient. The SHA-256 of the graph with its weights is part of the state: a checkpoint
    is refused with any other graph than the one it was trained with.
    """

    digest: Tensor

    def __init__(self, config: BackboneConfig, image_size: int) -> None:
        """Open the graph and run it once; errors as of `OnnxFile`."""
        super().__init__()
        self.file = OnnxFile(config, image_size)
        self.register_buffer("digest", torch.tensor(list(self.file.digest), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        if self.file.layout == "as_is":
            check_images(x, self.file.image_size)
        return torch.from_numpy(self.file.features(x.detach().cpu().numpy())).to(x.device)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        saved = state_dict.get(f"{prefix}digest")
        if saved is not None and not torch.equal(saved.cpu(), self.digest.cpu()):
            raise BackboneError(
                f"{self.file.path} is not the graph this run was trained with: SHA-256 "
                f"{_hex(self.digest)} now, {_hex(saved)} then. Restore the file, or train again"
            )
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def _hex(digest: Tensor) -> str:
    return bytes(digest.tolist()).hex()[:12] + "..."
