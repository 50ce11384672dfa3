"""Virtual device: it finds what a training allocates on a CUDA GPU, without a GPU."""

from __future__ import annotations

from elbowroom.capture.virtual.device import Enough, VirtualDevice
from elbowroom.capture.virtual.scratch_memory.cudnn_workspaces import ConvolutionCall, PassWorkspace
from elbowroom.capture.virtual.torch_cuda.library_settings import CudnnModel

__all__ = ["ConvolutionCall", "CudnnModel", "Enough", "PassWorkspace", "VirtualDevice"]
