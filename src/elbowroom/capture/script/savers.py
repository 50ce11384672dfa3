"""Savers: libraries that open files below Python get the overlay's path. Loggers start no run."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from elbowroom.capture.arrivals import Arrivals
from elbowroom.capture.script.kept_away import loggers_off
from elbowroom.capture.script.overlay import Overlay
from elbowroom.capture.script.safetensors_opened import opener, saver

Wrapper = Callable[[Overlay, Any], Any]

READ, ANEW, KEEP, FOLDER = "read", "anew", "keep", "folder"
"""Uses of a path by a library: it reads the file, writes it anew, changes its content, or writes files in a folder."""
_SIDES = ("-wal", "-shm", "-journal")
"""Endings of further files that belong to a database of SQLite."""


def is_path(what: Any) -> bool:
    """Return whether a value names a file."""
    return isinstance(what, str | bytes | os.PathLike)


def given_to(overlay: Overlay, path: Any, use: str) -> Any:
    """Return the path that a library gets for one of the script's.

    Args:
        overlay: the layers.
        path: path of the script.
        use: what the library does with it.
    """
    if not is_path(path):
        return path
    if use == READ:
        return overlay.reading(path)
    name = overlay.target(path)
    if name is None:
        return os.fspath(path)
    if use == FOLDER:
        return overlay.filling(name)
    return overlay.writing(name, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if use == ANEW else 0), path)


def at(index: int, use: str) -> Wrapper:
    """Wrap functions whose argument at a position, or by its name, is a path, for one use."""

    def wrapper(overlay: Overlay, function: Any) -> Any:
        name = _name_at(function, index)

        @functools.wraps(function, updated=())
        def called(*args: Any, **how: Any) -> Any:
            return function(*_with_path(overlay, args, index, use), **_with_named(overlay, how, name, use))

        return called

    return wrapper


def _with_path(overlay: Overlay, args: tuple[Any, ...], index: int, use: str) -> tuple[Any, ...]:
    """Return the arguments with the path at a position, if it is given, in the right layer."""
    if len(args) <= index:
        return args
    return (*args[:index], given_to(overlay, args[index], use), *args[index + 1 :])


def read_from(first: int, *names: str) -> Wrapper:
    """Wrap functions that read files or lists of files: arguments of these names, in this order from `first` on."""
    last = first + len(names)

    def wrapper(overlay: Overlay, function: Any) -> Any:
        def place(value: Any) -> Any:
            return [place(each) for each in value] if isinstance(value, list) else given_to(overlay, value, READ)

        @functools.wraps(function, updated=())
        def called(*args: Any, **how: Any) -> Any:
            places = (*args[:first], *map(place, args[first:last]), *args[last:])
            return function(*places, **{name: place(value) if name in names else value for name, value in how.items()})

        return called

    return wrapper


def _with_named(overlay: Overlay, how: dict[str, Any], name: str, use: str) -> dict[str, Any]:
    """Return the arguments with the path of a name, if it is given, in the right layer."""
    return {**how, name: given_to(overlay, how[name], use)} if name in how else how


def _name_at(function: Any, index: int) -> str:
    """Return the name of a parameter by its position; "" if a function of C has no names."""
    try:
        names = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ""
    return names[index] if index < len(names) else ""


def with_mode(index: int) -> Wrapper:
    """Wrap functions like `open`: a path at a position, then a mode."""

    def wrapper(overlay: Overlay, function: Any) -> Any:
        name = _name_at(function, index)

        @functools.wraps(function, updated=())
        def called(*args: Any, **how: Any) -> Any:
            mode = (args[index + 1] if len(args) > index + 1 else how.get("mode")) or "r"
            use = READ if mode in ("r", "rb") else ANEW if mode.startswith("w") else KEEP
            return function(*_with_path(overlay, args, index, use), **_with_named(overlay, how, name, use))

        return called

    return wrapper


def _static(wrapper: Wrapper) -> Wrapper:
    return lambda overlay, function: staticmethod(wrapper(overlay, function))


def _through_a_file(overlay: Overlay, save: Any) -> Any:  # noqa: ARG001  a Wrapper
    """Wrap `torch.save` and the like to write through a file object, as their writers of paths are C++."""

    @functools.wraps(save)
    def saved(obj: Any, f: Any, *args: Any, **how: Any) -> Any:
        if not is_path(f):
            return save(obj, f, *args, **how)
        with open(f, "wb") as file:
            return save(obj, file, *args, **how)

    return saved


def _sentencepiece(overlay: Overlay, train: Any) -> Any:
    """Wrap sentencepiece's trainer: C++ reads `input` and writes two files that begin with `model_prefix`."""

    @functools.wraps(train)
    def trained(arg: Any = None, **how: Any) -> Any:
        given = how.get("input")
        if isinstance(given, str | list | tuple):
            files = given.split(",") if isinstance(given, str) else given
            how["input"] = [given_to(overlay, each, READ) for each in files]
        if is_path(how.get("model_prefix")):
            model, _ = (given_to(overlay, f"{how['model_prefix']}{end}", ANEW) for end in (".model", ".vocab"))
            how["model_prefix"] = model.removesuffix(".model")
        return train(arg, **how)

    return staticmethod(trained)


def _packing(overlay: Overlay, init: Any) -> Any:
    """Wrap packages of torch.package: the code that rebuilds virtual tensors is not packed with them."""
    begin = at(1, ANEW)(overlay, init)

    @functools.wraps(init)
    def begun(self: Any, *args: Any, **how: Any) -> None:
        begin(self, *args, **how)
        self.extern("elbowroom.**")

    return begun


def _opening(_: Overlay, opener_of: Any) -> Any:
    """Wrap NumPy's table of openers by the ending of a file's name: it has imported `open` by name."""

    @functools.wraps(opener_of)
    def found(self: Any, key: Any) -> Any:
        made = opener_of(self, key)
        return open if made.__module__ in ("io", "_io") else made

    return found


def _next_to_model(overlay: Overlay, opens: Any) -> Any:
    """Wrap ONNX's opener of weights that lie next to a model: C++ opens them by folder and name."""

    @functools.wraps(opens)
    def opened(base_dir: Any, location: str, tensor_name: str, read_only: bool) -> int:
        place = given_to(overlay, os.path.join(base_dir, location), READ if read_only else KEEP)
        folder = place[: -len(location)] if place.endswith(location) else base_dir
        return opens(folder, location, tensor_name, read_only)

    return opened


def _both(first: Wrapper, second: Wrapper) -> Wrapper:
    return lambda overlay, function: second(overlay, first(overlay, function))


def _sqlite(overlay: Overlay, connect: Any) -> Any:
    """Wrap the opening of databases with their further files; a database may be named by a URI."""

    @functools.wraps(connect)
    def connected(database: Any, *args: Any, **how: Any) -> Any:
        if not is_path(database) or os.fspath(database) in ("", b"", ":memory:", b":memory:"):
            return connect(database, *args, **how)
        text = os.fsdecode(database)
        scheme = "file:" if how.get("uri") and text.startswith("file:") else ""
        path, question, options = text[len(scheme) :].partition("?") if scheme else (text, "", "")
        if not path or path == ":memory:" or "mode=memory" in options:
            return connect(database, *args, **how)
        use = READ if "mode=ro" in options or "immutable=1" in options else KEEP
        for side in _SIDES:
            if use == KEEP and os.path.exists(path + side):
                given_to(overlay, path + side, KEEP)
        return connect(f"{scheme}{given_to(overlay, path, use)}{question}{options}", *args, **how)

    return connected


def _off(name: str) -> Wrapper:
    """Wrap a logger's call that starts a run: it gets arguments that turn it off."""

    def wrapper(_: Overlay, start: Any) -> Any:
        @functools.wraps(start)
        def started(*args: Any, **how: Any) -> Any:
            return start(*args, **loggers_off(name, how))

        return started

    return wrapper


def _ignored(_: Overlay, function: Any) -> Any:
    return functools.wraps(function)(lambda *_args, **_how: None)


_KINDS, _READERS = ("BPE", "WordPiece", "WordLevel"), ("from_file", "read_file")
"""Models of tokenizers that are made from files."""
SAVERS: dict[str, dict[str, Wrapper]] = {
    "torch": {"save": _through_a_file, "load": at(0, READ)},
    "torch.jit": {
        "save": _through_a_file,
        "load": at(0, READ),
        "ScriptModule.save": at(1, ANEW),
        "RecursiveScriptModule.save": at(1, ANEW),
    },
    "torch.package.package_exporter": {"PackageExporter.__init__": _packing},
    "torch.package.package_importer": {"PackageImporter.__init__": at(1, READ)},
    "numpy.lib._datasource": {"_FileOpeners.__getitem__": _opening},
    "torch.export.pt2_archive._package": {
        "PT2ArchiveWriter.__init__": at(1, ANEW),
        "PT2ArchiveReader.__init__": at(1, READ),
    },
    "onnx.external_data_helper": {"_open_external_data_fd": _next_to_model},
    "onnx.checker": {"check_model": at(0, READ)},
    "onnx.shape_inference": {"infer_shapes_path": _both(at(0, READ), at(1, ANEW))},
    "onnxruntime": {"InferenceSession.__init__": at(1, READ)},
    "safetensors": {"serialize_file": at(1, ANEW), "safe_open": opener},
    "safetensors.torch": {"save_file": saver},
    "tokenizers": {
        "Tokenizer.save": at(1, ANEW),
        "Tokenizer.from_file": _static(at(0, READ)),
        "Tokenizer.train": read_from(1, "files"),
    },
    "tokenizers.models": {
        "Model.save": at(1, FOLDER),
        **{f"{kind}.{reader}": _static(read_from(0, "vocab", "merges")) for kind in _KINDS for reader in _READERS},
    },
    "tokenizers.implementations": {
        "BertWordPieceTokenizer.__init__": at(1, READ),
        **{
            f"{kind}BPETokenizer.__init__": read_from(1, "vocab", "merges")
            for kind in ("Char", "ByteLevel", "SentencePiece")
        },
    },
    "sentencepiece": {
        "SentencePieceProcessor.LoadFromFile": at(1, READ),
        "SentencePieceTrainer._Train": _sentencepiece,
    },
    "h5py": {"File.__init__": with_mode(1)},
    "soundfile": {"SoundFile.__init__": with_mode(1)},
    "sqlite3": {"connect": _sqlite},
    "pyarrow": {"memory_map": with_mode(0), "OSFile": with_mode(0)},
    "pyarrow.parquet": {"write_table": at(1, ANEW), "read_table": at(0, READ)},
    "cv2": {"imwrite": at(0, ANEW), "imread": at(0, READ)},
    "lmdb": {"open": at(0, FOLDER)},
    "torchvision.io.image": {"write_file": at(0, ANEW), "read_file": at(0, READ)},
    "SimpleITK": {"WriteImage": at(1, ANEW), "ReadImage": at(0, READ)},
    "wandb": {"init": _off("wandb")},
    "swanlab": {"init": _off("swanlab")},
    "neptune": {"init_run": _off("neptune")},
    "mlflow": {"set_tracking_uri": _ignored},
}
"""Wrappers by module, for its functions and methods that take paths or start runs."""


def install(overlay: Overlay) -> Mapping[int, Any]:
    """Change modules that are imported now or later; return the replacements by id of the original."""
    replaced: dict[int, Any] = {}
    for name, wrappers in SAVERS.items():
        if name in sys.modules:
            replaced |= _changed(sys.modules[name], wrappers, overlay)
    waiting = {name: wrappers for name, wrappers in SAVERS.items() if name not in sys.modules}
    sys.meta_path.insert(
        0,
        Arrivals(
            {
                name: functools.partial(_changed, wrappers=wrappers, overlay=overlay)
                for name, wrappers in waiting.items()
            }
        ),
    )
    return replaced


def _changed(module: Any, wrappers: Mapping[str, Wrapper], overlay: Overlay) -> dict[int, Any]:
    replaced: dict[int, Any] = {}
    for path, wrapper in wrappers.items():
        holder, _, attribute = path.rpartition(".")
        place = getattr(module, holder, None) if holder else module
        real = getattr(place, attribute, None)
        if real is not None:
            made = wrapper(overlay, real)
            setattr(place, attribute, made)
            if place is module:
                replaced[id(real)] = made
    return replaced
