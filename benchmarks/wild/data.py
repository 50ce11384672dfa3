"""Small data in the formats that the scripts read: python -m benchmarks.wild data FOLDER.

Digits of scikit-learn as MNIST's idx files, images of noise in folders, text of Python's own sources, and language
models of a few hundred thousand parameters with random weights. Needs numpy, pillow, scikit-learn, and transformers for
the models.
"""

from __future__ import annotations

import json
import struct
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np  # the scripts that are tried need it too

WORDS = "the a cat dog sat ran on in mat house big small red blue he she it saw took gave and or not was".split()  # noqa: SIM905


def make_all(root: Path) -> None:
    """Every kind of data, where it is not there already."""
    for name, make in MAKERS.items():
        if not (root / name).exists():
            (root / name).mkdir(parents=True)
            make(root / name)
            print(name, flush=True)


def random() -> np.random.Generator:
    return np.random.default_rng(0)


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


def image(path: Path, size: tuple[int, int], rng: np.random.Generator) -> None:
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
    noise.resize(size).save(path)


def images(root: Path) -> None:
    """train and val, four classes, 24 and 8 of each."""
    rng = random()
    for part, count in (("train", 24), ("val", 8)):
        for label in range(4):
            for number in range(count):
                image(root / f"{part}/c{label}/{number}.jpg", (320, 256), rng)


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


def bert(root: Path) -> None:
    """A BERT of two layers."""
    from transformers import BertConfig, BertForMaskedLM

    names = len(tokenizer(root))
    config = BertConfig(
        vocab_size=names, hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=256
    )
    BertForMaskedLM(config).save_pretrained(root)


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


MAKERS: dict[str, Callable[[Path], None]] = {
    "mnist": mnist,
    "cifar": cifar,
    "images": images,
    "pairs": pairs,
    "bsds": bsds,
    "pets": pets,
    "wikitext": wikitext,
    "shakespeare": shakespeare,
    "cora": cora,
    "glue": glue,
    "texts": texts,
    "bert": bert,
    "llama": llama,
    "gpt2": gpt2,
    "t5": t5,
    "vit": vit,
}
