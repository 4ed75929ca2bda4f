"""Crops and flips: each pixel against a loop, the draws, the layout."""

from typing import Any

import pytest
import torch
from torch import Tensor

from clients.augmentation import AUGMENTATIONS, augment
from tests.unit.clients.cases import channels_last
from tests.unit.clients.crops import slow_augment

KINDS = ("crop", "crop-flip")
every_kind = pytest.mark.parametrize("kind", KINDS)
# Square or not, of one channel or more, one image, and smaller than the padding.
every_shape = pytest.mark.parametrize(
    "shape",
    [
        (7, 3, 6, 5),
        (5, 1, 4, 9),
        (1, 3, 8, 8),
        (1, 1, 6, 6),
        (6, 2, 1, 1),
        (4, 2, 2, 3),
    ],
    ids=str,
)


def generator(seed: int = 3) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pictures(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Draw images without a zero, so that what is brought in can be told apart."""
    return torch.randint(1, 200, shape).to(dtype)


def strides(images: Tensor) -> tuple[int, ...]:
    return images.stride()


@every_shape
@every_kind
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.uint8], ids=str)
@pytest.mark.parametrize("lay_out", [torch.clone, channels_last], ids=["rows", "last"])
def test_every_pixel_is_the_loops(
    shape: tuple[int, ...], kind: str, dtype: torch.dtype, lay_out: Any
) -> None:
    """For several batches in a row: as many numbers are drawn as the loop draws."""
    images, ours, theirs = pictures(shape, dtype), generator(), generator()
    for _ in range(3):
        result = augment(lay_out(images), kind, ours)
        assert result.dtype == dtype
        assert torch.equal(result, slow_augment(images, kind, theirs))


@every_kind
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_contiguous_images_stay_so_in_their_strides(kind: str, channels: int) -> None:
    rows = augment(pictures((4, channels, 6, 5)), kind, generator())
    assert rows.is_contiguous()
    assert strides(rows) == (30 * channels, 30, 5, 1)


@every_kind
@pytest.mark.parametrize("channels", [1, 3])
def test_the_result_has_the_layout_of_the_images(kind: str, channels: int) -> None:
    """By strides: images of one channel are contiguous in both layouts."""
    images = pictures((4, channels, 6, 5))
    rows = augment(images, kind, generator())
    assert rows.is_contiguous()
    last = augment(channels_last(images), kind, generator())
    assert strides(last) == (30 * channels, 1, 5 * channels, channels)
    assert torch.equal(last, rows)


@every_kind
def test_images_of_no_layout_become_contiguous(kind: str) -> None:
    images = pictures((4, 3, 5, 6)).transpose(2, 3)
    result = augment(images, kind, generator())
    assert result.is_contiguous()
    assert torch.equal(result, slow_augment(images, kind, generator()))


def test_none_is_the_images_themselves_and_draws_nothing() -> None:
    """Also of inputs that are not images."""
    ours = generator()
    for inputs in (pictures((4, 3, 6, 5)), torch.randn(4, 6)):
        assert augment(inputs, "none", ours) is inputs
    assert torch.equal(ours.get_state(), generator().get_state())


@every_kind
def test_the_images_are_left_alone_and_the_global_generator_too(kind: str) -> None:
    images = pictures((4, 3, 6, 5))
    before, random = images.clone(), torch.get_rng_state()
    result = augment(images, kind, generator())
    result.zero_()
    assert torch.equal(images, before)
    assert torch.equal(torch.get_rng_state(), random)


@every_kind
def test_the_seed_decides_and_nothing_else(kind: str) -> None:
    images = pictures((8, 3, 6, 5))
    one = augment(images, kind, generator(1))
    torch.manual_seed(99)
    assert torch.equal(augment(images, kind, generator(1)), one)
    assert not torch.equal(augment(images, kind, generator(2)), one)
    # The second batch of a generator is not the first again.
    going_on = generator(1)
    augment(images, kind, going_on)
    assert not torch.equal(augment(images, kind, going_on), one)


def marked(count: int) -> Tensor:
    """Make images of 9 x 9 whose middle pixel is 2, the one right of it 1.

    A shift of up to four leaves the middle in the image; its neighbour says whether the
    image is mirrored, or has left.
    """
    images = torch.zeros(count, 1, 9, 9)
    images[:, :, 4, 4], images[:, :, 4, 5] = 2.0, 1.0
    return images


def places(images: Tensor) -> list[tuple[int, int]]:
    """Return where the middle of each image has gone."""
    found = (images[:, 0] == 2).nonzero().tolist()
    assert [i for i, _, _ in found] == list(range(len(images)))
    return [(row, column) for _, row, column in found]


def test_all_81_shifts_occur_each_about_as_often() -> None:
    """100 of each are expected; six standard deviations are 60."""
    shifts = places(augment(marked(8100), "crop", generator()))
    counts = [shifts.count((i, j)) for i in range(9) for j in range(9)]
    assert sum(counts) == 8100
    assert all(40 < count < 160 for count in counts)


def test_half_of_the_images_are_mirrored_whatever_their_shift() -> None:
    """Of 4000 images 2000, six standard deviations being 190."""
    images = marked(4000)
    images[:, :, 4, 3] = -1.0
    result = augment(images, "crop-flip", generator())
    seen = [
        (r, c, float(image[0, r, c + 1]))
        for image, (r, c) in zip(result, places(result), strict=True)
        if 0 < c < 8
    ]
    assert {right for _, _, right in seen} == {1.0, -1.0}
    for down in range(9):
        assert {right for r, _, right in seen if r == down} == {1.0, -1.0}
    columns = [(c, right) for _, c, right in seen]
    assert {c for c, _ in columns} == set(range(1, 8))
    mirrored = sum(right == -1.0 for _, _, right in seen)
    # Seven of nine columns are looked at.
    assert abs(mirrored - len(seen) / 2) < 190
    assert len(seen) > 2500
    # A crop alone never mirrors.
    for image in augment(images, "crop", generator()):
        (row,) = image[0].abs().sum(1).nonzero().flatten().tolist()
        here = [float(v) for v in image[0, row] if v]
        assert here == sorted(here, key=[-1.0, 2.0, 1.0].index)


def test_each_image_has_its_own_shift() -> None:
    """Among 50 images no shift is common to all, in neither direction."""
    shifts = places(augment(marked(50), "crop", generator()))
    assert len({row for row, _ in shifts}) == 9
    assert len({column for _, column in shifts}) == 9
    assert any(row != column for row, column in shifts)


def test_crop_and_crop_flip_share_their_shifts() -> None:
    """What is mirrored is the same cut: arms of an experiment stay paired."""
    images = pictures((40, 3, 6, 5))
    ours, theirs = generator(), generator()
    for _ in range(2):
        cropped = augment(images, "crop", ours)
        flipped = augment(images, "crop-flip", theirs)
        as_is = [torch.equal(a, b) for a, b in zip(cropped, flipped, strict=True)]
        mirrored = [
            torch.equal(a.flip(2), b) for a, b in zip(cropped, flipped, strict=True)
        ]
        assert all(a or b for a, b in zip(as_is, mirrored, strict=True))
        assert not all(as_is)
        assert not all(mirrored)
    assert torch.equal(ours.get_state(), theirs.get_state())


def test_an_unknown_kind_is_an_error_naming_it() -> None:
    with pytest.raises(ValueError, match=r"'cutout' is unknown.*'crop-flip'"):
        augment(pictures((2, 1, 4, 4)), "cutout", generator())
    assert ["none", *KINDS] == list(AUGMENTATIONS)
