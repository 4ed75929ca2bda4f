"""Crops and flips: each pixel against a loop, the draws, the layout."""

import pytest
import torch
from torch import Tensor

from clients.augmentation import AUGMENTATIONS, augment
from tests.unit.clients.cases import channels_last
from tests.unit.clients.crops import slow_augment

KINDS = ("crop", "crop-flip")
every_kind = pytest.mark.parametrize("kind", KINDS)


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw images without a zero, which is the value of the padding."""
    return torch.randint(1, 200, shape).to(dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((7, 3, 6, 5), torch.float32),
        ((5, 1, 4, 9), torch.float64),
        ((1, 3, 8, 8), torch.uint8),
        ((6, 2, 1, 1), torch.float32),
        ((4, 2, 2, 3), torch.float32),
    ],
    ids=str,
)
@every_kind
def test_every_pixel_is_the_loops(
    shape: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    """For several batches in a row: as many numbers are drawn as the loop draws."""
    images, theirs = pictures(shape, dtype), generator()
    contiguous, last = generator(), generator()
    for _ in range(3):
        expected = slow_augment(images, kind, theirs)
        for given, draws in ((images, contiguous), (channels_last(images), last)):
            result = augment(given, kind, draws)
            assert result.dtype == dtype
            assert torch.equal(result, expected)


@every_kind
@pytest.mark.parametrize("channels", [1, 3])
def test_the_result_has_the_layout_of_the_images(kind: str, channels: int) -> None:
    """By strides: images of one channel are contiguous in both layouts."""
    images = pictures((4, channels, 6, 5))
    rows = augment(images, kind, generator())
    assert rows.stride() == (30 * channels, 30, 5, 1)
    last = augment(channels_last(images), kind, generator())
    assert last.stride() == (30 * channels, 1, 5 * channels, channels)
    transposed = augment(images.transpose(2, 3), kind, generator())
    assert transposed.is_contiguous()
    expected = slow_augment(images.transpose(2, 3), kind, generator())
    assert torch.equal(transposed, expected)


def test_none_returns_the_images_themselves_and_draws_nothing() -> None:
    """Also inputs that are not images."""
    ours = generator()
    for inputs in (pictures((4, 3, 6, 5)), torch.randn(4, 6)):
        assert augment(inputs, "none", ours) is inputs
    assert torch.equal(ours.get_state(), generator().get_state())


@every_kind
def test_the_generator_alone_decides_and_the_images_stay(kind: str) -> None:
    images = pictures((8, 3, 6, 5))
    before, random = images.clone(), torch.get_rng_state()
    ours = generator(1)
    one, next_batch = (augment(images, kind, ours) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), random)
    torch.manual_seed(99)
    assert torch.equal(augment(images, kind, generator(1)), one)
    assert not torch.equal(augment(images, kind, generator(2)), one)
    assert not torch.equal(next_batch, one)
    one.zero_()
    assert torch.equal(images, before)


def marked(count: int) -> Tensor:
    """Make images of 9 x 9 whose middle pixel is 2, the ones beside it -1 and 1.

    A shift of up to four leaves the middle in the image; its neighbours show whether
    the image is mirrored.
    """
    images = torch.zeros(count, 1, 9, 9)
    images[:, :, 4, 3:6] = torch.tensor([-1.0, 2.0, 1.0])
    return images


def positions(images: Tensor) -> list[tuple[int, int]]:
    """Return the new position of the middle of each image."""
    found = (images[:, 0] == 2).nonzero().tolist()
    assert [i for i, _, _ in found] == list(range(len(images)))
    return [(row, column) for _, row, column in found]


def test_all_81_shifts_occur_each_about_as_often() -> None:
    """100 of each are expected; six standard deviations are 60."""
    shifts = positions(augment(marked(8100), "crop", generator()))
    counts = [shifts.count((i, j)) for i in range(9) for j in range(9)]
    assert sum(counts) == 8100
    assert all(40 < count < 160 for count in counts)


def test_half_of_the_images_are_mirrored_whatever_their_shift() -> None:
    """Seven of nine columns show it: of 3,100 images half, six deviations being 170."""
    for kind in KINDS:
        result = augment(marked(4000), kind, generator())
        seen = [
            (row, column, float(image[0, row, column + 1]))
            for image, (row, column) in zip(result, positions(result), strict=True)
            if 0 < column < 8
        ]
        if kind == "crop":
            assert {right for _, _, right in seen} == {1.0}
            continue
        for axis, values in ((0, range(9)), (1, range(1, 8))):
            pairs = {(one[axis], one[2]) for one in seen}
            assert pairs == {(v, right) for v in values for right in (1.0, -1.0)}
        mirrored = sum(right == -1.0 for _, _, right in seen)
        assert abs(mirrored - len(seen) / 2) < 170


def test_crop_and_crop_flip_share_their_shifts() -> None:
    """A mirrored image is the mirrored crop: arms of an experiment stay paired."""
    images = pictures((40, 3, 6, 5))
    ours, theirs = generator(), generator()
    for _ in range(2):
        cropped = augment(images, "crop", ours)
        flipped = augment(images, "crop-flip", theirs)
        pairs = list(zip(cropped, flipped, strict=True))
        as_is = [torch.equal(a, b) for a, b in pairs]
        mirrored = [torch.equal(a.flip(2), b) for a, b in pairs]
        assert all(a or b for a, b in zip(as_is, mirrored, strict=True))
        assert not all(as_is)
        assert not all(mirrored)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_an_unknown_kind_and_inputs_that_are_no_images_are_errors() -> None:
    with pytest.raises(ValueError, match=r"'cutout' is unknown.*'crop-flip'"):
        augment(pictures((2, 1, 4, 4)), "cutout", generator())
    with pytest.raises(ValueError, match=r"needs images of shape.*not \(2, 4\)"):
        augment(torch.ones(2, 4), "crop", generator())
    assert ["none", *KINDS] == list(AUGMENTATIONS)
