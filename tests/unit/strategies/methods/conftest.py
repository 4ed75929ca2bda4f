"""Flower draws the participants of a round with the global ``random``."""

import random

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_participants():
    before = random.getstate()
    random.seed(7)
    yield
    random.setstate(before)


@pytest.fixture(autouse=True)
def _one_thread():
    """The networks are tiny: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
