"""Private torch symbols of DataLoader. Checked on 2.11.0 (its CUDA build, on the rig) and 2.13.0."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch.utils.data import dataloader
from torch.utils.data._utils import worker

_Base: Any = dataloader._SingleProcessDataLoaderIter


@final
class LoaderHere(_Base):
    """Iterator of a DataLoader in this process; the data set sees it as a single worker.

    Args:
        loader: a loader with the settings of one without workers.
        works: whether the data set sees a worker; else it sees the script itself.
    """

    def __init__(self, loader: Any, works: bool) -> None:
        given: dict[str, Any] = {"seed": torch.initial_seed(), "dataset": loader.dataset}
        self._worker = worker.WorkerInfo(id=0, num_workers=1, **given) if works else None
        with self._working():
            if works and loader.worker_init_fn is not None:
                loader.worker_init_fn(0)
            super().__init__(loader)

    @contextmanager
    def _working(self) -> Iterator[None]:
        before, worker._worker_info = worker._worker_info, self._worker
        try:
            yield
        finally:
            worker._worker_info = before

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Begin again, as persistent workers do; an iterable data set gives a new iterator."""
        super()._reset(loader, first_iter)
        kinds: Any = dataloader._DatasetKind
        how = (self._auto_collation, self._collate_fn, self._drop_last)
        with self._working():
            self._dataset_fetcher = kinds.create_fetcher(self._dataset_kind, self._dataset, *how)

    def _next_data(self) -> Any:
        with self._working():
            return super()._next_data()

    def _shutdown_workers(self) -> None:
        """Do nothing: there are no workers to end."""
