"""Embeddings that are feature maps or tokens, made one vector by `comln-train wrap`."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from tests.support.graphs import NODE, SIZE, Change, ending, write_model
from tests.trainer.backbones.test_backbones import images
from tests.trainer.backbones.test_onnx_backbones import by_torch
from tests.trainer.bundles.wrapping import MEAN_AND_STD, backbone_of, embed, refusal, unit, wrap
from training.backbones.centre import centre_weights
from training.backbones.onnx_reduction import suitable_reduction

SIDE = SIZE - 2  # of the feature map "embeddings", which has 6 channels


PATCHES = (
    NODE("Transpose", ["embeddings"], ["last"], perm=[0, 2, 3, 1]),
    NODE("Reshape", ["last", "square"], ["patches"]),
)
SQUARE = np.array([0, SIDE**2, 6])
CHANNELS_LAST = ending(NODE("Transpose", ["embeddings"], ["map"], perm=[0, 2, 3, 1]))
TOKENS = ending(*PATCHES, square=SQUARE)
# The class token is ten times the first patch.
WITH_CLASS = ending(
    *PATCHES,
    NODE("Gather", ["patches", "zero"], ["patch"], axis=1),
    NODE("Mul", ["patch", "ten"], ["class"]),
    NODE("Concat", ["class", "patches"], ["tokens"], axis=1),
    square=SQUARE,
    zero=np.array([0]),
    ten=np.array(10, dtype=np.float32),
)


@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "as_is"])
@pytest.mark.parametrize("change", [None, CHANNELS_LAST, TOKENS], ids=["channels first", "channels last", "tokens"])
def test_positions_are_averaged(
    layout: str, opset: int, change: Change | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever the layout of the input: converters of Keras models keep channels second inside."""
    dtype = TensorProto.UINT8 if layout == "as_is" else TensorProto.FLOAT
    model = write_model(tmp_path / "m.onnx", opset=opset, layout=layout, dtype=dtype, change=change)
    flags: tuple[str, ...] = () if layout == "as_is" else MEAN_AND_STD
    bundle = wrap(model, *flags, *(("--output", "embeddings") if change is None else ()))
    shown = " ".join(capsys.readouterr().out.split())
    assert "reduction: mean" in shown
    assert "(change it with --reduction)" in shown
    assert backbone_of(bundle)["reduction"] == "mean"
    x = images(4, SIZE)
    if layout == "as_is":
        kernel = numpy_helper.to_array(onnx.load(model).graph.initializer[0])
        maps = torch.relu(torch.nn.functional.conv2d(x.permute(0, 3, 1, 2).float(), torch.from_numpy(kernel.copy())))
        expected = maps.mean(dim=(2, 3))
    else:
        expected = by_torch(x)["flat"]
    torch.testing.assert_close(embed(bundle, x), unit(expected), rtol=1e-4, atol=1e-5)


def test_the_class_token_is_the_embedding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, x = write_model(tmp_path / "m.onnx", change=WITH_CLASS), images(4, SIZE)
    bundle = wrap(model, *MEAN_AND_STD)
    assert "101 tokens, the first of them for the class" in capsys.readouterr().out
    maps = by_torch(x)["embeddings"].unflatten(1, (6, SIDE, SIDE))
    torch.testing.assert_close(embed(bundle, x), unit(maps[:, :, 0, 0]))
    averaged = wrap(model, *MEAN_AND_STD, "--reduction", "mean")
    together = (10 * maps[:, :, 0, 0] + maps.sum(dim=(2, 3))) / 101
    torch.testing.assert_close(embed(averaged, x), unit(together), rtol=1e-4, atol=1e-5)
    put_together = wrap(model, *MEAN_AND_STD, "--reduction", "none")
    assert embed(put_together, x).shape == (4, 101 * 6)


def test_the_command_on_the_card_makes_the_same_bundle(tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", change=WITH_CLASS)
    card = (wrap(model, *MEAN_AND_STD) / "README.md").read_text()
    assert "--reduction first" in card


def test_the_mean_can_weigh_the_centre(tmp_path: Path) -> None:
    """As `--pooling` does with a mean that the graph takes itself."""
    model, x = write_model(tmp_path / "m.onnx"), images(4, SIZE)
    bundle = wrap(model, *MEAN_AND_STD, "--output", "embeddings", "--pooling", "0.3")
    weights = torch.from_numpy(centre_weights(SIDE, SIDE, 0.3))
    expected = (by_torch(x)["embeddings"].unflatten(1, (6, SIDE, SIDE)) * weights).sum(dim=(2, 3))
    torch.testing.assert_close(embed(bundle, x), unit(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("output", "reduction", "said"),
    [
        (
            "flat",
            "mean",
            'reduction "mean" takes tokens (batch, tokens, d) or a feature map; the output flat is [1, 6]',
        ),
        ("flat", "first", 'reduction "first" takes tokens (batch, tokens, d); the output flat is [1, 6]'),
        ("embeddings", "first", "the output embeddings is [1, 6, 10, 10] for an image"),
    ],
)
def test_what_cannot_be_reduced(
    output: str, reduction: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.onnx")
    message = refusal(capsys, model, *MEAN_AND_STD, "--output", output, "--reduction", reduction)
    assert said in message
    assert "--reduction" in message


@pytest.mark.parametrize(
    ("shape", "layout", "found"),
    [
        ((1, 384), "nchw", None),
        ((6, 1, 1), "nchw", None),
        ((1, 1, 6), "nhwc", None),
        ((197, 768), "nchw", "first"),
        ((261, 384), "nchw", "first"),  # with registers
        ((196, 768), "nchw", "mean"),
        ((2048, 7, 7), "nhwc", "mean"),
        ((7, 7, 7), "nhwc", "mean"),
        ((2, 3, 4, 5), "nchw", None),
    ],
)
def test_what_suits_an_output(shape: tuple[int, ...], layout: Any, found: str | None) -> None:
    suitable = suitable_reduction(shape, layout)
    assert (None if suitable is None else suitable[0]) == found
