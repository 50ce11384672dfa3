"""Compilers: torch.compile, TorchScript, Triton and kernels built on first use, on the virtual device."""
