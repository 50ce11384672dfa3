"""A test per way of saving: the user's file stays, and a script finds what it saved, on its device."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from elbowroom.capture.script import capture_script
from elbowroom.machine import Machine

A100 = Machine.of("a100-40gb")
MINE = b"the user's own"
TRAINING = """
import copy, os, torch, warnings
from torch import nn
warnings.simplefilter("ignore")
model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 4)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randn(2, 3, 8, 8, device="cuda")

def same(given, found):
    given, found = dict(given), dict(found)
    assert given.keys() == found.keys()
    for name, tensor in given.items():
        other = found[name]
        assert (tensor.shape, tensor.dtype, tensor.device) == (other.shape, other.dtype, other.device), name

for step in range(2):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
    if step == 0:
        model.eval()
        {}
        model.train()
"""
LIGHTNING = """
import lightning
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)
    def training_step(self, batch, _):
        return self.layer(batch[0]).sum()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

trainer = lightning.Trainer(max_steps=2, default_root_dir="folder", logger=False, enable_progress_bar=False)
module = Module()
trainer.fit(module, DataLoader(TensorDataset(torch.randn(16, 16)), batch_size=8))
trainer.save_checkpoint("file")
found = Module.load_from_checkpoint("file", weights_only=False)
same(module.state_dict(), {name: each.to(module.device) for name, each in found.state_dict().items()})
"""
WAYS = {
    "torch_jit_script": """
made = torch.jit.script(model)
torch.jit.save(made, "file")
found = torch.jit.load("file")
same(made.state_dict(), found.state_dict())
assert found(x).shape == (2, 4) and found(x).is_cuda
assert all(each.is_cpu for each in torch.jit.load("file", map_location="cpu").parameters())
same(made.state_dict(), torch.load("file", weights_only=False).state_dict())
""",
    "torch_jit_trace": """
made = torch.jit.trace(model, x)
made.save("file")
found = torch.jit.load("file", map_location="cuda")
same(made.state_dict(), found.state_dict())
assert found(x).shape == (2, 4) and "_convolution" in str(found.inlined_graph)
torch.jit.freeze(made).save("file")
assert torch.jit.load("file")(x).shape == (2, 4)
""",
    "torch_jit_on_the_host": """
made = torch.jit.trace(copy.deepcopy(model).cpu(), x.cpu())
made.save("file")
found = torch.jit.load("file")
same(made.state_dict(), found.state_dict())
assert found(x.cpu()).shape == (2, 4)
""",
    "torch_export": """
made = torch.export.export(model, (x,))
torch.export.save(made, "file.pt2")
found = torch.export.load("file.pt2")
same(made.state_dict, found.state_dict)
assert found.module()(x).shape == (2, 4)
""",
    "torch_package": """
from torch.package import PackageExporter, PackageImporter
with PackageExporter("file") as package:
    package.extern("torch.**")
    package.save_pickle("model", "model.pkl", model)
found = PackageImporter("file").load_pickle("model", "model.pkl")
same(model.state_dict(), found.state_dict())
""",
    "torch_distributed_checkpoint": """
import torch.distributed.checkpoint as checkpoint
checkpoint.save({"model": model.state_dict()}, checkpoint_id="folder")
found = {"model": {name: torch.zeros_like(each) for name, each in model.state_dict().items()}}
checkpoint.load(found, checkpoint_id="folder")
same(model.state_dict(), found["model"])
checkpoint.async_save({"model": model.state_dict()}, checkpoint_id="folder").result()
""",
    "numpy": """
import numpy
weight = model[3].weight.detach().cpu().numpy()
for save, load in ((numpy.save, numpy.load), (numpy.savetxt, numpy.loadtxt)):
    with open("file", "wb") as file:
        save(file, weight)
    assert load("file").shape == (4, 144)
numpy.savetxt("file", weight)
assert numpy.loadtxt("file").shape == (4, 144)
weight.tofile("file")
assert numpy.fromfile("file", dtype="float32").size == 576
numpy.memmap("file", mode="w+", dtype="float32", shape=(4, 144))[:] = weight
assert numpy.memmap("file", mode="r", dtype="float32", shape=(4, 144)).size == 576
""",
    "pickle": """
import pickle
with open("file", "wb") as file:
    pickle.dump({"model": model, "x": x}, file)
with open("file", "rb") as file:
    found = pickle.load(file)
same(model.state_dict(), found["model"].state_dict())
same({"x": x}, {"x": found["x"]})
""",
    "joblib": """
import joblib
for compress in (0, 3):
    joblib.dump(model, "file", compress=compress)
    same(model.state_dict(), joblib.load("file").state_dict())
""",
    "onnx": """
import onnx
torch.onnx.export(model, (x,), "file", dynamo=False)
assert len(onnx.load("file").graph.node) > 1
onnx.checker.check_model("file")
""",
    "onnxscript": """
import onnx
torch.onnx.export(model, (x,), "file", dynamo=True)
assert len(onnx.load("file").graph.node) > 1
onnx.checker.check_model("file")
""",
    "h5py": """
import h5py
with h5py.File("file", "w") as file:
    file["weight"] = model[3].weight.detach().cpu().numpy()
with h5py.File(name="file", mode="r") as file:
    assert file["weight"].shape == (4, 144)
""",
    "safetensors": """
from safetensors.torch import load_file, save_file
save_file(tensors=model.state_dict(), filename="file")
same(model.state_dict(), load_file("file", device="cuda"))
""",
    "transformers": """
from transformers import BertConfig, BertModel
sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100)
made = BertModel(BertConfig(**sizes)).cuda()
made.save_pretrained("folder")
same(made.state_dict(), BertModel.from_pretrained("folder", device_map="cuda").state_dict())
""",
    "accelerate": """
from accelerate import Accelerator
accelerator = Accelerator()
prepared, _ = accelerator.prepare(model, optimizer)
accelerator.save_state("folder")
accelerator.load_state("folder")
accelerator.save(prepared.state_dict(), "file")
same(prepared.state_dict(), torch.load("file"))
""",
    "lightning": LIGHTNING,
    "tensorboard": """
from torch.utils.tensorboard import SummaryWriter
with SummaryWriter("folder") as writer:
    writer.add_graph(model, x)
    writer.add_histogram("weight", model[3].weight, 0)
""",
}
LIBRARIES = {
    *("onnx", "onnxscript", "joblib", "h5py", "safetensors", "transformers", "accelerate", "lightning", "tensorboard"),
}
OLD = ("file", "file.pt2", "folder/.metadata", "folder/model.safetensors", "folder/__0_0.distcp")


@pytest.mark.parametrize("way", WAYS)
def test_the_users_file_stays_and_the_script_finds_what_it_saved(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way in LIBRARIES and importlib.util.find_spec(way) is None:
        pytest.skip(f"{way} is not installed")
    # given a folder with files of the names that the script saves to
    folder = tmp_path / "work"
    (folder / "folder").mkdir(parents=True)
    for name in OLD:
        (folder / name).write_bytes(MINE)
    script = tmp_path / "train.py"
    script.write_text(TRAINING.format(WAYS[way].replace("\n", "\n        ")))
    monkeypatch.chdir(folder)

    trace = capture_script(script, machine=A100, steps=2)

    assert [each.name for each in trace.remarks if each.kind == "ended_early"] == []
    left = {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}
    assert left == dict.fromkeys(OLD, MINE)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["train.py", "work"]
