"""Names of weights in the EfficientNet-PyTorch port, converted to timm's.

The port numbers all blocks in one sequence, `_blocks.5`; timm numbers them within stages,
`blocks.2.1`. In timm, layers of blocks with and without expansion have different names.
"""

from collections.abc import Iterable, Mapping

from torch import Tensor

_OUTER = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}
_SQUEEZE = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_PLAIN_BLOCK = _SQUEEZE | {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_EXPANDING_BLOCK = _SQUEEZE | {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def timm_names(state: dict[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The port's state dict with timm's names; other names, and other state dicts, are unchanged.

    Args:
        names: of timm's state dict, in order; they give the number of blocks in each stage.
    """
    if "_conv_stem.weight" not in state:
        return state
    blocks = list(dict.fromkeys(".".join(name.split(".")[:3]) for name in names if name.startswith("blocks.")))
    return {_timm_name(name, state, blocks): tensor for name, tensor in state.items()}


def _timm_name(name: str, state: Mapping[str, Tensor], blocks: list[str]) -> str:
    if not name.startswith("_blocks."):
        module, _, tensor = name.partition(".")
        return f"{_OUTER.get(module, module)}.{tensor}"
    _, number, module, tensor = name.split(".", 3)
    if not number.isdecimal() or int(number) >= len(blocks):
        return name
    expands = f"_blocks.{number}._expand_conv.weight" in state
    own = (_EXPANDING_BLOCK if expands else _PLAIN_BLOCK).get(module, module)
    return f"{blocks[int(number)]}.{own}.{tensor}"
