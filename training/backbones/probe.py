"""The embedding size of a network from a library, found by running it."""

import torch
from torch import nn

from training.errors import BackboneError


def embedding_size(network: nn.Module, name: str, image_size: int) -> int:
    """Size d of the network's embedding of an image (1, 3, S, S).

    Args:
        name: of the network, for error messages. image_size: S in pixels.

    Raises:
        BackboneError: the network does not take images of this size, or its output is not a vector.
    """
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            embedding = network(torch.zeros(1, 3, image_size, image_size))
    except BackboneError:  # its message already says what is wrong
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError) as error:
        raise BackboneError(
            f"{name} does not take images of {image_size} px ({error}); set "
            "data.preprocessing.image_size to a size it takes, usually 224"
        ) from error
    finally:
        network.train(was_training)
    if embedding.ndim != 2:
        raise BackboneError(f"{name} gives {tuple(embedding.shape)}, not one vector per image")
    return int(embedding.shape[1])
