"""One thread and quick recordings, as in tests/torch."""

from tests.torch.conftest import quick_recordings

__all__ = ["quick_recordings"]
