"""The blocks of the models, by which the paper counts the layers FLFA selects."""

from __future__ import annotations

import re
from bisect import bisect_left
from itertools import accumulate

__all__ = ["block_of"]

# Inverted residual blocks of each stage of MobileNetV2, whatever the strides.
MOBILENET_BLOCKS = (1, 2, 3, 4, 3, 3, 1)
_MOBILENET_STAGE_ENDS = tuple(accumulate(MOBILENET_BLOCKS))


def block_of(model: str, layer: str) -> str:
    """Return the block of a layer, as in the paper's table of selected layers.

    MobileNetV2 has a stem, stages 1 to 7, a head (its last convolution) and a
    classifier; a ResNet has a stem, stages 1 to 4 and a classifier; in the small CNN
    every layer is a block.

    Parameters
    ----------
    model : str
        The run config's key ``model``.
    layer : str
        The name of a layer in it.
    """
    if model == "cnn":
        return layer
    if model.startswith("mobilenet_v2"):
        if match := re.match(r"features\.(\d+)\.", layer):
            return _mobilenet_block(int(match[1]), layer)
        names = {"classifier.1": "classifier"}
    elif model.startswith("resnet"):
        if match := re.match(r"layer(\d)\.", layer):
            return f"stage {match[1]}"
        names = {"conv1": "stem", "fc": "classifier"}
    else:
        raise ValueError(f"no blocks are known of the model {model!r}")
    if layer not in names:
        raise ValueError(f"{model} has no layer {layer!r}")
    return names[layer]


def _mobilenet_block(index: int, layer: str) -> str:
    last = _MOBILENET_STAGE_ENDS[-1]
    if index > last + 1:
        raise ValueError(f"MobileNetV2 has no layer {layer!r}")
    if index == 0:
        return "stem"
    if index > last:
        return "head"
    return f"stage {bisect_left(_MOBILENET_STAGE_ENDS, index) + 1}"
