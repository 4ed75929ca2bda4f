"""MobileNetV2 for small images, and with its original ImageNet strides.

Both end in a global average pool and so take images of any size; they accept `size`
only because every builder is called with the same arguments.
"""

from torch import nn
from torchvision.models import MobileNetV2

from flfa_app.models.norms import norm_layer

# One row per stage: expansion, output channels, blocks, stride of the first block.
# With a stem of stride 1 the last map is 8 times smaller than the image.
CIFAR_STAGES = [
    [1, 16, 1, 1],
    [6, 24, 2, 2],
    [6, 32, 3, 2],
    [6, 64, 4, 2],
    [6, 96, 3, 1],
    [6, 160, 3, 1],
    [6, 320, 1, 1],
]


def mobilenet_v2(*, channels: int, size: int, classes: int, norm: str) -> MobileNetV2:
    """Build a MobileNetV2 of total stride 8, for images of about 32x32.

    Parameters
    ----------
    channels : int
        Channels of the input images.
    size : int
        Not used: the network takes images of any size.
    classes : int
        Number of logits.
    norm : str
        Kind of normalisation layer, one of `flfa_app.models.NORMS`.

    Returns
    -------
    MobileNetV2
        The network, freshly initialised.
    """
    model = MobileNetV2(
        classes, inverted_residual_setting=CIFAR_STAGES, norm_layer=norm_layer(norm)
    )
    _fit_channels(model, channels)
    # torchvision fixes the stem's stride at 2; a stride is no part of the weights.
    model.features[0][0].stride = (1, 1)
    return model


def mobilenet_v2_imagenet(
    *, channels: int, size: int, classes: int, norm: str
) -> MobileNetV2:
    """Build a MobileNetV2 with its original strides, 32 in total.

    The parameters are those of `mobilenet_v2`.
    """
    model = MobileNetV2(classes, norm_layer=norm_layer(norm))
    _fit_channels(model, channels)
    return model


def _fit_channels(model: MobileNetV2, channels: int) -> None:
    """Replace the first convolution if the images do not have its channels."""
    stem = model.features[0]
    conv = stem[0]
    if conv.in_channels == channels:
        return
    stem[0] = nn.Conv2d(
        channels,
        conv.out_channels,
        conv.kernel_size,
        stride=conv.stride,
        padding=conv.padding,
        bias=False,
    )
    # As torchvision initialises every convolution of this network.
    nn.init.kaiming_normal_(stem[0].weight, mode="fan_out")
