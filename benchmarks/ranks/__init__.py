"""One rank of many: the estimate of a torchrun script beside the CUDA build of PyTorch, which runs it on the rig."""
