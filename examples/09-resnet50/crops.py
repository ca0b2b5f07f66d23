"""Crops, resizes, flips and normalises a batch of images of any size at once, on any device.

Resizing is linear and separable: out = A_y · image · A_x, where a row of A holds the weights with
which one output pixel sums the input's. The two matrices contain crop, filter and flip, so a whole
batch is two matrix products, which a GPU does best: 0.2 TFLOP for 256 images
of 500x375, less than a millisecond. The filter is a triangle, widened when shrinking: what PIL and
torchvision call bilinear with antialias.
"""

from collections.abc import Sequence
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, for values from 0 to 1
_LARGEST = 1024  # pixels of a crop; a few photographs of ImageNet have 4,000 and set the padding


def random_boxes(sizes: Tensor, smallest: float, random: torch.Generator) -> Tensor:
    """Return top, left, height and width for each of `sizes` (height, width): with `smallest` to
    all of its area and an aspect from 3:4 to 4:3, as is usual for ImageNet. On the CPU."""
    count, tries = len(sizes), 10
    height, width = sizes[:, :1].float(), sizes[:, 1:].float()
    share = torch.rand(count, tries, generator=random) * (1 - smallest) + smallest
    low, high = torch.log(torch.tensor([3 / 4, 4 / 3]))
    aspect = torch.exp(torch.rand(count, tries, generator=random) * (high - low) + low)
    wide = torch.round(torch.sqrt(height * width * share * aspect))
    tall = torch.round(torch.sqrt(height * width * share / aspect))
    fits = (wide >= 1) & (tall >= 1) & (wide <= width) & (tall <= height)
    first = fits.int().argmax(1, keepdim=True)  # the first of several equal maxima
    wide, tall = wide.gather(1, first), tall.gather(1, first)
    # None of the ten fits a very long image: use its middle.
    none = ~fits.any(1, keepdim=True)
    wide = torch.where(none, torch.minimum(width, torch.round(height * 4 / 3)), wide)
    tall = torch.where(none, torch.minimum(height, torch.round(width * 4 / 3)), tall)
    places = torch.rand(count, 2, generator=random)
    places[none[:, 0]] = 0.5
    top = torch.floor(places[:, :1] * (height - tall + 1)).clamp(max=height - tall)
    left = torch.floor(places[:, 1:] * (width - wide + 1)).clamp(max=width - wide)
    return torch.cat([top, left, tall, wide], 1).long()


def middle_boxes(sizes: Tensor, share: float = 224 / 256) -> Tensor:
    """Return the centre square of each: like resizing the short side to 256 and cropping 224."""
    side = torch.round(sizes.min(1).values * share).clamp(min=1).long()
    top, left = (sizes[:, 0] - side) // 2, (sizes[:, 1] - side) // 2
    return torch.stack([top, left, side, side], 1)


def crop_and_resize(
    images: Sequence[Tensor], boxes: Tensor, flips: Tensor, side: int, dtype: torch.dtype
) -> Tensor:
    """Return `side` by `side` pixels of each box, from uint8 images (3, height, width):
    (n, 3, side, side), still from 0 to 255. `boxes` and `flips` are on the CPU, which knows the
    sizes."""
    device = images[0].device
    crops = [
        image[:, top : top + tall, left : left + wide]
        for image, (top, left, tall, wide) in zip(images, boxes.tolist(), strict=True)
    ]
    if max(max(crop.shape[1:]) for crop in crops) > _LARGEST:
        crops = [_not_too_large(crop) for crop in crops]
    lengths = torch.tensor([crop.shape[1:] for crop in crops])
    tallest, widest = (lengths.max(0).values + 7).div(8, rounding_mode="floor").mul(8).tolist()
    # Every integer up to 256 is exact in bfloat16. Rows come before colours, so that one product
    # covers the rows of all three. Zeros, because 0 times uninitialised memory may be NaN.
    padded = torch.zeros(len(crops), tallest, 3, widest, dtype=dtype, device=device)
    for place, crop in zip(padded.unbind(), crops, strict=True):
        place[: crop.shape[1], :, : crop.shape[2]].copy_(crop.transpose(0, 1))
    lengths, flips = lengths.to(device, non_blocking=True), flips.to(device, non_blocking=True)
    down = _weights(lengths[:, 0], tallest, side, torch.zeros_like(flips)).to(dtype)
    across = _weights(lengths[:, 1], widest, side, flips).to(dtype)
    rows = torch.bmm(down, padded.flatten(2)).view(-1, side * 3, widest)
    pixels = torch.bmm(rows, across.transpose(1, 2)).view(-1, side, 3, side)
    return pixels.transpose(1, 2)


def normalise(pixels: Tensor, dtype: torch.dtype) -> Tensor:
    """Scale (n, 3, side, side) from 0 to 255 to mean 0 and deviation 1, in channels-last order.
    One pass over memory if `pixels` are of this type already."""
    scale, shift = _scale_and_shift(pixels.device, dtype)
    result = torch.empty(
        pixels.shape, dtype=dtype, device=pixels.device, memory_format=torch.channels_last
    )
    return torch.addcmul(shift, pixels.to(dtype), scale, out=result)


@cache
def _scale_and_shift(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    scale = torch.tensor([1 / (255 * deviation) for deviation in STD])
    shift = torch.tensor([-mean / deviation for mean, deviation in zip(MEAN, STD, strict=True)])
    scale, shift = scale.view(1, 3, 1, 1), shift.view(1, 3, 1, 1)
    return scale.to(device, dtype), shift.to(device, dtype)


def _weights(lengths: Tensor, most: int, side: int, flips: Tensor) -> Tensor:
    """Return (n, side, most): the weight of each input pixel in each output pixel."""
    scale = lengths.view(-1, 1, 1) / side
    outputs = torch.arange(side, device=lengths.device).view(1, -1, 1)
    outputs = torch.where(flips.view(-1, 1, 1), side - 1 - outputs, outputs)
    inputs = torch.arange(most, device=lengths.device).view(1, 1, -1)
    apart = (inputs + 0.5 - (outputs + 0.5) * scale).abs()
    weights = (1 - apart / scale.clamp(min=1)).clamp(min=0)
    weights = weights * (inputs < lengths.view(-1, 1, 1))
    return weights / weights.sum(2, keepdim=True)


def _not_too_large(crop: Tensor) -> Tensor:
    factor = -(-max(crop.shape[1:]) // _LARGEST)
    if factor == 1 or min(crop.shape[1:]) < factor:
        return crop
    smaller = F.avg_pool2d(crop[None].float(), factor)[0]
    return smaller.round().to(torch.uint8)
