"""ResNet-50 v1.5, written out, and smaller relatives of it for a CPU.

v1.5: the stride of a bottleneck is at its 3x3 convolution, not at the first 1x1. That costs 5% of
speed and gains half a percent of accuracy; it is what ResNet-50 means today.
"""

import torch
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1, and around them the shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(inputs, outputs, stride)
        nn.init.zeros_(self.bn3.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class Basic(nn.Module):
    """Two 3x3, as in ResNet-18."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _downsample(inputs, width, stride)
        nn.init.zeros_(self.bn2.weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


def _downsample(inputs: int, outputs: int, stride: int) -> nn.Module | None:
    if stride == 1 and inputs == outputs:
        return None
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(nn.Module):
    """Names of layers are torchvision's: its checkpoints load."""

    def __init__(
        self, block: type[Bottleneck | Basic], depths: tuple[int, ...], classes: int, width: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = width
        for stage, depth in enumerate(depths):
            inside = width << stage
            blocks: list[nn.Module] = []
            for number in range(depth):
                stride = 2 if stage and not number else 1
                blocks.append(block(channels, inside, stride))
                channels = inside * block.expansion
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        # The last scale of each block starts at 0, so that the block starts as its shortcut. Large
        # batches then do not diverge in the first steps.

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


_SHAPES: dict[str, tuple[type[Bottleneck | Basic], tuple[int, ...]]] = {
    "resnet50": (Bottleneck, (3, 4, 6, 3)),
    "resnet18": (Basic, (2, 2, 2, 2)),
    "resnet10": (Basic, (1, 1, 1, 1)),
}
MODELS = tuple(_SHAPES)


def make_model(name: str = "resnet50", classes: int = 1000, width: int = 64) -> ResNet:
    """`width`: channels after the first convolution; 64 as published, 16 for a CPU."""
    block, depths = _SHAPES[name]
    return ResNet(block, depths, classes, width)


def weights_and_rest(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return parameters with weight decay, and those without: biases and batch normalisation."""
    decay = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    return decay, [parameter for parameter in model.parameters() if parameter.ndim <= 1]
