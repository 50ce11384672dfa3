"""One thread, quick recordings and plans that are waited for, as in tests/torch."""

from tests.torch.conftest import plans_are_waited_for, quick_recordings

__all__ = ["plans_are_waited_for", "quick_recordings"]
