"""The network that a bundle is made of."""

from dataclasses import dataclass

from onnx import ModelProto

from training.data.images import Embed


@dataclass(frozen=True)
class Network:
    """A network that is finished.

    Attributes:
        graph: as stored in a bundle: uint8 RGB (batch, S, S, 3) -> float32 (batch, d).
        embedding_size: d.
        embed: computes the embeddings (n, d) of images (n, S, S, 3) without the graph, to verify it.
    """

    graph: ModelProto
    embedding_size: int
    embed: Embed
