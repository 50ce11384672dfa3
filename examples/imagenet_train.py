"""Train a torchvision classifier as on ImageNet: mixed precision, SGD with momentum, a loader with workers.

    pip install torchvision
    python examples/imagenet_train.py --arch resnet18 --batch-size 8 --image-size 64 --steps 3      # also on a CPU
    elbowroom estimate examples/imagenet_train.py --gpu rtx4090,a100-40gb -- --arch resnet50 --batch-size 256
    elbowroom largest examples/imagenet_train.py --vary batch-size=16..2048 --gpu rtx4090 -- --arch resnet50

Without --data the images are random ones. The script knows nothing of elbowroom.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class RandomImages(Dataset[tuple[Tensor, int]]):
    """Images of noise, as many as ImageNet has."""

    def __init__(self, image_size: int) -> None:
        self.image_size = image_size

    def __len__(self) -> int:
        return 1_281_167

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(3, self.image_size, self.image_size), index % 1000


def images(arguments: argparse.Namespace) -> Dataset[tuple[Tensor, int]]:
    if not arguments.data:
        return RandomImages(arguments.image_size)
    from torchvision import datasets, transforms

    resize = [transforms.RandomResizedCrop(arguments.image_size), transforms.RandomHorizontalFlip()]
    scale = transforms.Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    return datasets.ImageFolder(arguments.data, transforms.Compose([*resize, transforms.ToTensor(), scale]))


def batches(arguments: argparse.Namespace) -> Iterator[tuple[Tensor, Tensor]]:
    loader = DataLoader(
        images(arguments),
        batch_size=arguments.batch_size,
        num_workers=arguments.workers,
        pin_memory=torch.cuda.is_available(),
        drop_last=True,
    )
    return itertools.chain.from_iterable(itertools.repeat(loader))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a torchvision classifier.")
    parser.add_argument("--arch", default="resnet50", help="name of a torchvision model")
    parser.add_argument("--data", help="folder of images, one subfolder a class")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--amp", action=argparse.BooleanOptionalAction, default=True, help="float16 autocast")
    arguments = parser.parse_args()

    from torchvision import models

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    amp = arguments.amp and device.type == "cuda"
    model = models.get_model(arguments.arch, weights=None).to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    model.train()
    for step, (image, target) in zip(range(arguments.steps), batches(arguments), strict=False):
        image_NCHW = image.to(device, non_blocking=True, memory_format=torch.channels_last)
        with torch.autocast(device.type, torch.float16, enabled=amp):
            loss = criterion(model(image_NCHW), target.to(device, non_blocking=True))
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
