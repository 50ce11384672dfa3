"""Small data in the formats that the scripts read: python -m benchmarks.wild data FOLDER.

Digits of scikit-learn as MNIST's idx files, pictures of noise in folders (pictures.py), text of Python's own sources,
and language models of a few hundred thousand parameters with random weights. Needs numpy, pillow, scikit-learn, h5py
and nibabel; torchvision, transformers, diffusers and timm for the models.
"""

from __future__ import annotations

import itertools
import json
import struct
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np  # the scripts that are tried need it too

from .pictures import (
    boxes,
    bsds,
    celeba,
    cells,
    cifar100,
    coco,
    duts,
    facades,
    image,
    images,
    images_of_eight,
    pairs,
    pets,
    picture,
    random,
    unpaired,
    voc,
)
from .sounds import speech

WORDS = "the a cat dog sat ran on in mat house big small red blue he she it saw took gave and or not was".split()  # noqa: SIM905


def make_all(root: Path) -> None:
    """Every kind of data, where it is not there already."""
    for name, make in MAKERS.items():
        if not (root / name).exists():
            (root / name).mkdir(parents=True)
            make(root / name)
            print(name, flush=True)


def mnist(root: Path) -> None:
    """raw/*-ubyte: 2,560 and 512 digits of 28 x 28."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for name, count in (("train", 2560), ("t10k", 512)):
        chosen = random().integers(0, len(digits.images), count)
        images = np.zeros((count, 28, 28), np.uint8)
        images[:, 2:26, 2:26] = np.kron(digits.images[chosen] * 15.9, np.ones((1, 3, 3)))
        _idx(root / f"raw/{name}-images-idx3-ubyte", images)
        _idx(root / f"raw/{name}-labels-idx1-ubyte", digits.target[chosen].astype(np.uint8))


def _idx(path: Path, values: np.ndarray[Any, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(">" + "I" * values.ndim, *values.shape)
    path.write_bytes(head + values.tobytes())


def cifar(root: Path) -> None:
    """cifar-10-batches-py: five files of 100 images and one of tests, as CIFAR10 reads them without its checksums."""
    import pickle

    rng = random()
    for name in [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]:
        rows = {"data": rng.integers(0, 256, (100, 3072), dtype=np.uint8), "labels": rng.integers(0, 10, 100).tolist()}
        (root / name).write_bytes(pickle.dumps(rows))
    (root / "batches.meta").write_bytes(pickle.dumps({"label_names": [f"class {n}" for n in range(10)]}))


def text() -> str:
    sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:60]
    return "".join(path.read_bytes().decode("ascii", "ignore") for path in sources)


def wikitext(root: Path) -> None:
    """train.txt, valid.txt and test.txt."""
    for part, size in (("train", 150_000), ("valid", 20_000), ("test", 20_000)):
        (root / f"{part}.txt").write_text(text()[:size])


def shakespeare(root: Path) -> None:
    """input.txt."""
    (root / "input.txt").write_text(text()[:400_000])


def cora(root: Path) -> None:
    """cora.content and cora.cites: 2,708 papers of 1,433 words, 5,429 citations, as the original has."""
    rng = random()
    kinds = ["Case_Based", "Genetic_Algorithms", "Neural_Networks", "Probabilistic_Methods"]
    kinds += ["Reinforcement_Learning", "Rule_Learning", "Theory"]
    words = (rng.random((2708, 1433)) < 0.012).astype(np.int8).astype(str)
    rows = [f"{n}\t" + "\t".join(row) + f"\t{kinds[n % 7]}" for n, row in enumerate(words, 1000)]
    (root / "cora.content").write_text("\n".join(rows) + "\n")
    cites = rng.integers(1000, 3708, (5429, 2)).astype(str)
    (root / "cora.cites").write_text("".join(f"{a}\t{b}\n" for a, b in cites))


def sentence(rng: np.random.Generator, least: int = 8, most: int = 24) -> str:
    return " ".join(rng.choice(WORDS, rng.integers(least, most)))


def glue(root: Path) -> None:
    """mrpc as a folder of the library datasets: pairs of sentences with a label."""
    rng = random()
    for part, count in (("train", 64), ("validation", 32), ("test", 32)):
        rows = [
            {"sentence1": sentence(rng), "sentence2": sentence(rng), "label": int(rng.integers(0, 2)), "idx": n}
            for n in range(count)
        ]
        _jsonl(root / f"mrpc/{part}.jsonl", rows)
    (root / "README.md").write_text(
        "---\nconfigs:\n- config_name: mrpc\n  data_files:\n"
        + "".join(f"  - split: {part}\n    path: mrpc/{part}.jsonl\n" for part in ("train", "validation", "test"))
        + "---\n"
    )


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def texts(root: Path) -> None:
    """Rows of text in the shapes that fine-tuning scripts read: text, prompts with answers, preferences, pairs."""
    rng = random()
    _jsonl(root / "text.jsonl", [{"text": sentence(rng, 40, 80)} for _ in range(64)])
    said = [
        [{"role": "user", "content": sentence(rng)}, {"role": "assistant", "content": sentence(rng)}] for _ in range(64)
    ]
    _jsonl(root / "chat.jsonl", [{"messages": rows} for rows in said])
    empty = {"reasoning_content": "", "tools": "", "tool_calls": ""}
    _jsonl(root / "conversations.jsonl", [{"conversations": [{**row, **empty} for row in rows]} for rows in said])
    choices = [{"chosen": rows, "rejected": other} for rows, other in itertools.pairwise(said)]
    _jsonl(root / "choices.jsonl", choices)
    _jsonl(root / "prompts.jsonl", [{"prompt": sentence(rng)} for _ in range(64)])
    prefer = [{"prompt": sentence(rng), "chosen": sentence(rng), "rejected": sentence(rng)} for _ in range(64)]
    _jsonl(root / "preferences.jsonl", prefer)
    scored = [{"sentence1": sentence(rng), "sentence2": sentence(rng), "score": float(rng.random())} for _ in range(64)]
    _jsonl(root / "scored.jsonl", scored)
    _jsonl(root / "summaries.jsonl", [{"text": sentence(rng, 60, 90), "summary": sentence(rng)} for _ in range(48)])
    asked = []
    for number in range(48):
        context = sentence(rng, 60, 90)
        answer = {"text": [context.split()[0]], "answer_start": [0]}
        asked.append(
            {"id": str(number), "title": "t", "context": context, "question": sentence(rng), "answers": answer}
        )
    _jsonl(root / "questions.jsonl", asked)
    tagged = [sentence(rng).split() for _ in range(48)]
    _jsonl(root / "tags.jsonl", [{"tokens": row, "ner_tags": [len(word) % 3 for word in row]} for row in tagged])


def tokenizer(root: Path, *, chat: bool = False) -> Any:
    """A word-piece tokenizer of the words above and all letters, saved where a model is."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(n) for n in range(33, 127)]
    names = [*special, *letters, *(f"##{letter}" for letter in letters), *(word for word in WORDS if len(word) > 1)]
    fast = Tokenizer(models.WordPiece({name: n for n, name in enumerate(names)}, unk_token="[UNK]"))
    fast.normalizer = normalizers.BertNormalizer(lowercase=True)
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    fast.decoder = decoders.WordPiece()
    fast.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    named = {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    made = PreTrainedTokenizerFast(
        tokenizer_object=fast, eos_token="[SEP]", bos_token="[CLS]", model_max_length=128, **named
    )
    if chat:
        made.chat_template = (
            "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {{ eos_token }}{% endfor %}"
            "{% if add_generation_prompt %}assistant : {% endif %}"
        )
    made.save_pretrained(root)
    return made


def bert(root: Path, hidden: int = 128) -> None:
    """A BERT of two layers."""
    from transformers import BertConfig, BertForMaskedLM

    names = len(tokenizer(root))
    config = BertConfig(
        vocab_size=names, hidden_size=hidden, num_hidden_layers=2, num_attention_heads=2, intermediate_size=2 * hidden
    )
    BertForMaskedLM(config).save_pretrained(root)


def bert_wide(root: Path) -> None:
    """A BERT of two layers of the usual width, for embeddings of 768."""
    bert(root, 768)


def llama(root: Path) -> None:
    """A LLaMA of two layers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    names = len(tokenizer(root, chat=True))
    config = LlamaConfig(
        vocab_size=names,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=256,
        max_position_embeddings=256,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(root)


def gpt2(root: Path) -> None:
    """A GPT-2 of two layers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    names = len(tokenizer(root, chat=True))
    config = GPT2Config(vocab_size=names, n_embd=128, n_layer=2, n_head=4, bos_token_id=2, eos_token_id=3)
    GPT2LMHeadModel(config).save_pretrained(root)


def t5(root: Path) -> None:
    """A T5 of two layers."""
    from transformers import T5Config, T5ForConditionalGeneration

    names = len(tokenizer(root))
    sizes = {"d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4}
    config = T5Config(vocab_size=names, decoder_start_token_id=0, pad_token_id=0, eos_token_id=3, **sizes)
    T5ForConditionalGeneration(config).save_pretrained(root)


def vit(root: Path) -> None:
    """A vision transformer of two layers, for images of 224 x 224."""
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    config = ViTConfig(hidden_size=96, num_hidden_layers=2, num_attention_heads=2, intermediate_size=192, num_labels=4)
    ViTForImageClassification(config).save_pretrained(root)
    ViTImageProcessor().save_pretrained(root)


def captions(root: Path) -> None:
    """Pictures and metadata.jsonl with a text for each, as the library datasets reads a folder of pictures."""
    rng = random()
    for number in range(12):
        image(root / f"train/{number}.jpg", (160, 128), rng)
    rows = [{"file_name": f"{number}.jpg", "text": sentence(rng)} for number in range(12)]
    _jsonl(root / "train/metadata.jsonl", rows)


def planetoid(root: Path) -> None:
    """ind.cora.*: a graph of 2,708 papers in the pickles that Planetoid has."""
    import pickle

    from scipy import sparse

    rng = random()
    words = sparse.csr_matrix((rng.random((2708, 1433)) < 0.012).astype(np.float32))
    kinds = np.eye(7, dtype=np.int32)[np.arange(2708) % 7]
    cited = rng.integers(0, 2708, (2708, 2))
    parts: dict[str, Any] = {
        "x": words[:140],
        "y": kinds[:140],
        "allx": words[:1708],
        "ally": kinds[:1708],
        "tx": words[1708:],
        "ty": kinds[1708:],
        "graph": {paper: [int(other) for other in row] for paper, row in enumerate(cited)},
    }
    for name, part in parts.items():
        (root / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (root / "ind.cora.test.index").write_text("".join(f"{n}\n" for n in range(1708, 2708)))


def graphs(root: Path) -> None:
    """MUTAG and PROTEINS as TUDataset reads them: 188 graphs of 10 to 40 nodes."""
    rng = random()
    for name, labels in (("MUTAG", 7), ("PROTEINS", 3)):
        sizes = rng.integers(10, 40, 188)
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]) + 1
        pairs_of = [rng.integers(0, size, (2 * size, 2)) + start for size, start in zip(sizes, starts, strict=True)]
        edges = np.concatenate([each[each[:, 0] != each[:, 1]] for each in pairs_of])
        lines = {
            "A": [f"{a}, {b}" for a, b in np.concatenate([edges, edges[:, ::-1]])],
            "graph_indicator": np.repeat(np.arange(1, 189), sizes),
            "graph_labels": rng.integers(0, 2, 188) * 2 - 1,
            "node_labels": rng.integers(0, labels, sizes.sum()),
        }
        for kind, rows in lines.items():
            (root / name).mkdir(exist_ok=True)
            (root / f"{name}/{name}_{kind}.txt").write_text("".join(f"{row}\n" for row in rows))


def ett(root: Path) -> None:
    """ETTh1.csv: seven series of 14,400 hours."""
    hours = np.datetime64("2016-07-01T00") + np.arange(14_400)
    values = np.sin(np.arange(14_400)[:, None] / (5 + np.arange(7))) + random().normal(0, 0.1, (14_400, 7))
    rows = [
        f"{str(h).replace('T', ' ')}:00:00," + ",".join(f"{v:.4f}" for v in row)
        for h, row in zip(hours, values, strict=True)
    ]
    (root / "ETTh1.csv").write_text("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n" + "\n".join(rows) + "\n")


def scored(root: Path) -> None:
    """Pairs of sentences with a score, as the library datasets reads them: train, validation and test."""
    rng = random()
    for part, count in (("train", 128), ("validation", 32), ("test", 32)):
        rows = [
            {"sentence1": sentence(rng), "sentence2": sentence(rng), "score": float(rng.random())} for _ in range(count)
        ]
        _jsonl(root / f"{part}.jsonl", rows)


def instructions(root: Path) -> None:
    """train.jsonl: instructions with an input and an output, the same as a text, and as a query with its response."""
    rng = random()
    rows = [
        {"instruction": sentence(rng), "input": "", "output": sentence(rng), "text": sentence(rng, 40, 80)}
        for _ in range(96)
    ]
    _jsonl(root / "train.jsonl", [{**row, "query": row["instruction"], "response": row["output"]} for row in rows])


IXI = (
    *("020-Guys-0700", "066-Guys-0731", "092-HH-1436", "130-HH-1528", "134-Guys-0780", "173-HH-1590", "175-HH-1570"),
    *("249-Guys-1072", "253-HH-1694", "314-IOP-0889", "342-Guys-0909", "344-Guys-0905", "385-HH-2078", "409-Guys-0960"),
    *("574-IOP-1156", "577-HH-2661", "584-Guys-1129", "585-Guys-1130", "607-Guys-1097", "609-HH-2600"),
)
"""Numbers of the images of the IXI data set that MONAI's tutorials of classification name."""


def volumes(root: Path) -> None:
    """IXI*-T1.nii.gz of noise, with the names of the IXI data set."""
    import nibabel

    rng = random()
    for name in IXI:
        noise = rng.integers(0, 1000, (64, 64, 48), dtype=np.int16)
        nibabel.save(nibabel.Nifti1Image(noise, np.eye(4)), root / f"IXI{name}-T1.nii.gz")


def talks(root: Path) -> None:
    """train.jsonl: prompts that are conversations."""
    rng = random()
    _jsonl(root / "train.jsonl", [{"prompt": [{"role": "user", "content": sentence(rng)}]} for _ in range(64)])


def lego(root: Path) -> None:
    """transforms_*.json and pictures with four channels, as NeRF's synthetic scenes have."""
    rng = random()
    for part, count in (("train", 6), ("val", 2), ("test", 9)):
        poses = [np.linalg.qr(rng.normal(size=(4, 4)))[0].tolist() for _ in range(count)]
        frames = [{"file_path": f"./{part}/r_{n}", "transform_matrix": pose} for n, pose in enumerate(poses)]
        (root / f"transforms_{part}.json").write_text(json.dumps({"camera_angle_x": 0.69, "frames": frames}))
        for number in range(count):
            picture(root / f"{part}/r_{number}.png", (200, 200), rng)


def shapes(root: Path) -> None:
    """Clouds of 400 points of two kinds, with a label for each point, as ShapeNet's part segmentation has."""
    rng = random()
    (root / "synsetoffset2category.txt").write_text("Airplane\t02691156\nChair\t03001627\n")
    names = [f"shape_data/{kind}/{n}" for kind in ("02691156", "03001627") for n in range(40)]
    for name in names:
        _, kind, number = name.split("/")
        for folder, values, ending in (
            ("points", rng.normal(size=(400, 3)), "pts"),
            ("points_label", rng.integers(1, 5, (400, 1)), "seg"),
        ):
            path = root / kind / folder / f"{number}.{ending}"
            path.parent.mkdir(parents=True, exist_ok=True)
            np.savetxt(path, values, fmt="%.5f" if ending == "pts" else "%d")
    (root / "train_test_split").mkdir(exist_ok=True)
    for part in ("train", "test"):
        (root / f"train_test_split/shuffled_{part}_file_list.json").write_text(json.dumps(names))


def diffusion(root: Path) -> None:
    """A Stable Diffusion of tiny parts."""
    from diffusers import AutoencoderKL, DDPMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    letters = [chr(n) for n in range(33, 127)]
    names = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (root / "made").mkdir()
    (root / "made/vocab.json").write_text(json.dumps({name: n for n, name in enumerate(names)}))
    (root / "made/merges.txt").write_text("#version: 0.2\n")
    tokens = CLIPTokenizer(str(root / "made/vocab.json"), str(root / "made/merges.txt"), model_max_length=77)
    text = CLIPTextConfig(
        vocab_size=len(names), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    blocks = ("CrossAttnDownBlock2D", "DownBlock2D"), ("UpBlock2D", "CrossAttnUpBlock2D")
    network = UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=blocks[0],
        up_block_types=blocks[1],
        cross_attention_dim=32,
        attention_head_dim=8,
    )
    halves = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    coder = AutoencoderKL(block_out_channels=(32, 64), latent_channels=4, **halves)
    StableDiffusionPipeline(
        vae=coder,
        text_encoder=CLIPTextModel(text),
        tokenizer=tokens,
        unet=network,
        scheduler=DDPMScheduler(),
        safety_checker=None,  # type: ignore[arg-type]
        feature_extractor=None,  # type: ignore[arg-type]
        requires_safety_checker=False,
    ).save_pretrained(root)


def resnet50d(root: Path) -> None:
    """Random weights of timm's ResNet-50-D where the hub's cache has the trained ones."""
    import timm
    from safetensors.torch import save_file

    kept = root / "models--timm--resnet50d.ra2_in1k"
    snapshot = kept / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (kept / "refs").mkdir()
    (kept / "refs/main").write_text("0" * 40)
    save_file(timm.create_model("resnet50d").state_dict(), snapshot / "model.safetensors")


def resnet50(root: Path) -> None:
    """Random weights of torchvision's ResNet-50 where torch.hub has the trained ones."""
    import torch
    import torchvision

    path = root / "hub/checkpoints/resnet50-0676ba61.pth"
    path.parent.mkdir(parents=True)
    torch.save(torchvision.models.resnet50().state_dict(), path)


def vgg(root: Path) -> None:
    """Random weights of torchvision's VGG-16 and VGG-19 where torch.hub has the trained ones."""
    import torch
    import torchvision

    for model, name in (("vgg16", "vgg16-397923af"), ("vgg19", "vgg19-dcbb9e9d")):
        path = root / f"hub/checkpoints/{name}.pth"
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(getattr(torchvision.models, model)().state_dict(), path)


def enwik8(root: Path) -> None:
    """enwik8.gz: 95 MB of text, the same again and again."""
    import gzip

    once = text().encode()[:1_000_000]
    (root / "enwik8.gz").write_bytes(gzip.compress(once * (95_000_000 // len(once) + 1), 1))


def tokens(root: Path) -> None:
    """tokens.bin: 40,000 tokens of GPT-2's, after a header of 256 numbers."""
    head = np.zeros(256, np.int32)
    head[:3] = 20240520, 1, 40_000
    (root / "tokens.bin").write_bytes(head.tobytes() + random().integers(0, 50_257, 40_000, dtype=np.uint16).tobytes())


def stories(root: Path) -> None:
    """data00.bin and data01.bin: 60,000 tokens of LLaMA's each, as they lie in memory."""
    for number in range(2):
        (root / f"data0{number}.bin").write_bytes(random().integers(0, 32_000, 60_000, dtype=np.uint16).tobytes())


def solids(root: Path) -> None:
    """Clouds of 1,024 points with normals of ten kinds, and lists of them, as ModelNet has."""
    rng = random()
    kinds = [f"kind{number}" for number in range(10)]
    (root / "modelnet10_shape_names.txt").write_text("\n".join(kinds) + "\n")
    for part, count in (("train", 4), ("test", 1)):
        names = [f"{kind}_{part}{number}" for kind in kinds for number in range(count)]
        (root / f"modelnet10_{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            path = root / name.split("_")[0] / f"{name}.txt"
            path.parent.mkdir(exist_ok=True)
            np.savetxt(path, rng.normal(size=(1024, 6)), fmt="%.4f", delimiter=",")


def articles(root: Path) -> None:
    """The configuration en of a folder of the library datasets: texts in train and validation."""
    rng = random()
    parts = {"train": 256, "validation": 32}
    for part, count in parts.items():
        _jsonl(root / f"en/{part}.jsonl", [{"text": sentence(rng, 200, 300)} for _ in range(count)])
    files = "".join(f"  - split: {part}\n    path: en/{part}.jsonl\n" for part in parts)
    (root / "README.md").write_text(f"---\nconfigs:\n- config_name: en\n  data_files:\n{files}---\n")


def coder(root: Path) -> None:
    """An autoencoder that makes an eighth of each side, with random weights."""
    from diffusers import AutoencoderKL

    halves = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    AutoencoderKL(block_out_channels=(32, 32, 32, 32), latent_channels=4, **halves).save_pretrained(root)


MAKERS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "cifar": cifar,
    "images": images,
    "images_of_eight": images_of_eight,
    "pairs": pairs,
    "bsds": bsds,
    "pets": pets,
    "wikitext": wikitext,
    "shakespeare": shakespeare,
    "cora": cora,
    "glue": glue,
    "texts": texts,
    "bert": bert,
    "bert_wide": bert_wide,
    "llama": llama,
    "gpt2": gpt2,
    "t5": t5,
    "vit": vit,
    "facades": facades,
    "unpaired": unpaired,
    "captions": captions,
    "planetoid": planetoid,
    "graphs": graphs,
    "ett": ett,
    "scored": scored,
    "instructions": instructions,
    "volumes": volumes,
    "talks": talks,
    "lego": lego,
    "shapes": shapes,
    "diffusion": diffusion,
    "resnet50d": resnet50d,
    "duts": duts,
    "celeba": celeba,
    "coco": coco,
    "boxes": boxes,
    "cifar100": cifar100,
    "cells": cells,
    "resnet50": resnet50,
    "enwik8": enwik8,
    "tokens": tokens,
    "coder": coder,
    "articles": articles,
    "stories": stories,
    "solids": solids,
    "voc": voc,
    "vgg": vgg,
    "speech": speech,
}
