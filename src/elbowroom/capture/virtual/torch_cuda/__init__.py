"""torch.cuda as Python sees it while a virtual device is on: its functions, streams, tensors and files."""
