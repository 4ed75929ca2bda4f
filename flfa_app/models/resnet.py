"""ResNets with the stem used for CIFAR: no reduction before the first stage.

They end in a global average pool and so take images of any size; they accept `size`
only because every builder is called with the same arguments.
"""

from torch import nn
from torchvision.models.resnet import (
    BasicBlock,
    Bottleneck,
    ResNet,
)

from flfa_app.models.norms import norm_layer


def resnet18(*, channels: int, size: int, classes: int, norm: str) -> ResNet:
    """Build a ResNet-18 with the CIFAR stem.

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
    ResNet
        The network, freshly initialised.
    """
    model = ResNet(BasicBlock, [2, 2, 2, 2], classes, norm_layer=norm_layer(norm))
    _use_cifar_stem(model, channels)
    return model


def resnet50(*, channels: int, size: int, classes: int, norm: str) -> ResNet:
    """Build a ResNet-50 with the CIFAR stem.

    The parameters are those of `resnet18`.
    """
    model = ResNet(Bottleneck, [3, 4, 6, 3], classes, norm_layer=norm_layer(norm))
    _use_cifar_stem(model, channels)
    return model


def _use_cifar_stem(model: ResNet, channels: int) -> None:
    """Replace the 7x7 convolution of stride 2 by a 3x3 one, drop the max pool."""
    width = model.conv1.out_channels
    model.conv1 = nn.Conv2d(channels, width, 3, padding=1, bias=False)
    # As torchvision initialises every convolution of this network.
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
