"""Host values: what Python may read of tensors without bytes, known or assumed."""
