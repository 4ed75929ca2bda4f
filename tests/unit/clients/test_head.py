"""The head of a classifier, and the features it receives."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from clients.head import capture_features, classifier_head
from tests.unit.clients.federated import data, mlp


def test_the_head_is_the_last_child_with_parameters() -> None:
    model = nn.Sequential(
        OrderedDict(a=nn.Linear(2, 2), fc=nn.Linear(2, 2), pool=nn.Flatten())
    )
    assert classifier_head(model) is model.fc
    for model in (nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.ReLU())):
        with pytest.raises(ValueError, match="no body and head"):
            classifier_head(model)


def test_the_features_of_every_pass_inside_the_block() -> None:
    model, (inputs, _) = mlp(), data()
    with capture_features(model) as features:
        model(inputs)
        model(inputs[:2])
    model(inputs)
    assert len(features) == 2
    assert torch.equal(features[0], model[:-1](inputs))
    assert torch.equal(features[1], model[:-1](inputs[:2]))
    with pytest.raises(RuntimeError), capture_features(model):
        model(torch.ones(1, 5))
    assert not classifier_head(model)._forward_pre_hooks


def test_a_head_that_drops_in_place_does_not_change_the_features() -> None:
    head = nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Linear(7, 2))
    model, inputs = nn.Sequential(nn.Linear(6, 7), head), torch.randn(4, 6)
    with capture_features(model) as features:
        model(inputs)
    assert torch.equal(features[0], model[0](inputs))
