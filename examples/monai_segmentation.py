"""Train MONAI's 3D U-Net to segment balls in volumes that MONAI makes up: Dice and cross entropy, mixed precision.

    pip install monai
    python examples/monai_segmentation.py --side 48 --steps 3                                 # also on a CPU
    elbowroom estimate examples/monai_segmentation.py --gpu rtx4090 -- --side 160
    elbowroom largest examples/monai_segmentation.py --vary side=64..512 --multiple-of 16 --gpu rtx4090

The script knows nothing of elbowroom.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor

CHANNELS = (32, 64, 128, 256, 320)
CLASSES = 4


def volumes(batch_size: int, side: int) -> tuple[Tensor, Tensor]:
    """Noisy volumes with balls in them, and the class of each voxel."""
    from monai.data.synthetic import create_test_image_3d

    made = [
        create_test_image_3d(side, side, side, num_objs=6, rad_max=max(6, side // 8), num_seg_classes=CLASSES - 1)
        for _ in range(batch_size)
    ]
    images = torch.from_numpy(np.stack([image for image, _ in made])[:, None]).float()
    return images, torch.from_numpy(np.stack([labels for _, labels in made])[:, None]).long()


def main() -> None:
    parser = argparse.ArgumentParser(description="Segment volumes with a 3D U-Net.")
    parser.add_argument("--side", type=int, default=96, help="voxels along each side, a multiple of 16")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()

    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    amp = device.type == "cuda"
    strides = (2,) * (len(CHANNELS) - 1)
    model = UNet(3, 1, CLASSES, channels=CHANNELS, strides=strides, num_res_units=2).to(device)
    criterion = DiceCELoss(to_onehot_y=True, softmax=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device.type, enabled=amp)
    for step in range(arguments.steps):
        images, labels = (each.to(device) for each in volumes(arguments.batch_size, arguments.side))
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.float16, enabled=amp):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print(f"step {step}  loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
