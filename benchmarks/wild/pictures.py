"""Small pictures of noise in the folders that scripts read, with labels, masks, boxes and attributes beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def random() -> np.random.Generator:
    return np.random.default_rng(0)


def image(path: Path, size: tuple[int, int], rng: np.random.Generator) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
    noise.resize(size).save(path)


def images(root: Path, classes: int = 4) -> None:
    """train and val, four classes, 24 and 8 of each."""
    rng = random()
    for part, count in (("train", 24), ("val", 8)):
        for label in range(classes):
            for number in range(count):
                image(root / f"{part}/c{label}/{number}.jpg", (320, 256), rng)


def images_of_eight(root: Path) -> None:
    """As `images`, of eight classes, for scripts that look at the best five."""
    images(root, 8)


def pairs(root: Path) -> None:
    """imgs/*.jpg and masks/*.png, as segmentation scripts read them."""
    from PIL import Image

    rng = random()
    for number in range(12):
        image(root / f"imgs/{number}.jpg", (192, 128), rng)
        (root / "masks").mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 2, (128, 192), dtype=np.uint8) * 255).save(root / f"masks/{number}.png")


def bsds(root: Path) -> None:
    """images/train and images/test of 481 x 321."""
    rng = random()
    for part, count in (("train", 40), ("test", 8)):
        for number in range(count):
            image(root / f"images/{part}/{number}.jpg", (481, 321), rng)


def pets(root: Path) -> None:
    """breed_1.jpg and so on: 16 of each of four breeds, and a list of them."""
    rng = random()
    for label in ("beagle", "boxer", "bengal", "birman"):
        for number in range(16):
            image(root / f"{label}_{number}.jpg", (256, 256), rng)


def facades(root: Path) -> None:
    """train, val and test: pictures of two halves, side by side."""
    rng = random()
    for part, count in (("train", 10), ("val", 6), ("test", 2)):
        for number in range(count):
            image(root / f"{part}/{number}.jpg", (512, 256), rng)


def unpaired(root: Path) -> None:
    """train/A, train/B, test/A and test/B: pictures of two kinds that do not belong together."""
    rng = random()
    for part, count in (("train", 6), ("test", 6)):
        for kind in "AB":
            for number in range(count):
                image(root / f"{part}/{kind}/{number}.jpg", (256, 256), rng)


def picture(path: Path, size: tuple[int, int], rng: np.random.Generator) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(rng.integers(0, 256, (8, 8, 4), dtype=np.uint8), "RGBA").resize(size).save(path)


def duts(root: Path) -> None:
    """im_aug/*.jpg and gt_aug/*.png: pictures with the mask of what is salient."""
    from PIL import Image

    rng = random()
    (root / "gt_aug").mkdir()
    for number in range(24):
        image(root / f"im_aug/{number}.jpg", (240, 200), rng)
        Image.fromarray(rng.integers(0, 2, (200, 240), dtype=np.uint8) * 255).save(root / f"gt_aug/{number}.png")


def celeba(root: Path) -> None:
    """images/*.jpg and list_attr_celeba.txt with five attributes of each; the first 2,000 are for tests."""
    rng = random()
    names = [f"{number:06}.jpg" for number in range(1, 2041)]
    for name in names:
        image(root / f"images/{name}", (178, 218), rng)
    rows = [f"{name} {' '.join(rng.choice(['1', '-1'], 5))}" for name in names]
    head = [str(len(names)), "Black_Hair Blond_Hair Brown_Hair Male Young"]
    (root / "list_attr_celeba.txt").write_text("\n".join([*head, *rows]) + "\n")


def coco(root: Path) -> None:
    """train2017, val2017 and annotations/instances_*.json: pictures with boxes of three kinds."""
    rng = random()
    kinds = [{"id": number, "name": f"kind {number}"} for number in (1, 2, 3)]
    (root / "annotations").mkdir()
    for part, count in (("train2017", 16), ("val2017", 4)):
        pictures = [{"id": n, "file_name": f"{n:012}.jpg", "width": 320, "height": 240} for n in range(1, count + 1)]
        boxes: list[dict[str, Any]] = []
        for each in pictures:
            image(root / part / each["file_name"], (320, 240), rng)
            boxes += [_box(len(boxes) + n, each["id"], rng) for n in range(1, int(rng.integers(2, 6)))]
        read = {"images": pictures, "annotations": boxes, "categories": kinds}
        (root / f"annotations/instances_{part}.json").write_text(json.dumps(read))


def _box(number: int, picture_id: int, rng: np.random.Generator) -> dict[str, Any]:
    x, y, width, height = (int(n) for n in rng.integers((0, 0, 40, 40), (200, 140, 120, 100)))
    corners = [x, y, x + width, y, x + width, y + height, x, y + height]
    return {
        "id": number,
        "image_id": picture_id,
        "category_id": int(rng.integers(1, 4)),
        "bbox": [x, y, width, height],
        "segmentation": [corners],
        "area": width * height,
        "iscrowd": 0,
    }


def boxes(root: Path) -> None:
    """images and labels in train and val, as YOLO reads them: class, middle and size of each box, as shares."""
    rng = random()
    for part, count in (("train", 16), ("val", 4)):
        (root / f"labels/{part}").mkdir(parents=True)
        for number in range(count):
            image(root / f"images/{part}/{number}.jpg", (320, 240), rng)
            rows = [f"{rng.integers(0, 3)} " + " ".join(f"{n:.4f}" for n in rng.uniform(0.3, 0.5, 4)) for _ in range(3)]
            (root / f"labels/{part}/{number}.txt").write_text("\n".join(rows) + "\n")


def cifar100(root: Path) -> None:
    """cifar-100-python: 400 and 100 pictures, as CIFAR100 reads them without its checksums."""
    import pickle

    rng = random()
    for name, count in (("train", 400), ("test", 100)):
        rows = {"data": rng.integers(0, 256, (count, 3072), dtype=np.uint8)}
        labels = {kind: rng.integers(0, most, count).tolist() for kind, most in (("fine", 100), ("coarse", 20))}
        (root / name).write_bytes(pickle.dumps({**rows, **{f"{kind}_labels": each for kind, each in labels.items()}}))
    names = {f"{kind}_label_names": [f"{n}" for n in range(most)] for kind, most in (("fine", 100), ("coarse", 20))}
    (root / "meta").write_bytes(pickle.dumps(names))


def cells(root: Path) -> None:
    """train.h5 and val.h5: a volume of noise with the number of a cell for each voxel."""
    import h5py

    rng = random()
    for name in ("train", "val"):
        label = np.kron(rng.integers(1, 50, (4, 8, 8)), np.ones((24, 24, 24))).astype(np.uint16)
        with h5py.File(root / f"{name}.h5", "w") as file:
            file["raw"] = rng.integers(0, 256, label.shape).astype(np.uint8)
            file["label"] = label


def voc(root: Path) -> None:
    """JPEGImages, SegmentationClass and ImageSets/Segmentation, as PASCAL VOC has them."""
    from PIL import Image

    rng = random()
    for folder in ("SegmentationClass", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    for part, count in (("train", 16), ("val", 4)):
        names = [f"{part}_{number}" for number in range(count)]
        for name in names:
            image(root / f"JPEGImages/{name}.jpg", (320, 256), rng)
            kinds = np.kron(rng.integers(0, 21, (8, 10), dtype=np.uint8), np.ones((32, 32), np.uint8))
            Image.fromarray(kinds).save(root / f"SegmentationClass/{name}.png")
        (root / f"ImageSets/Segmentation/{part}.txt").write_text("\n".join(names) + "\n")
