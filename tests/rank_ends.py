"""The end of a rank over gloo.

Note: [The end of a rank]
A thread of gloo that has done a collective drops it after the rank may go on. A collective of backward holds a Python
object (the context that torch.autograd.graph keeps), so that thread waits for the interpreter. If the interpreter ends
in that moment, the process ends with SIGABRT, "terminate called without an active exception". It happens where all
processors are busy: https://github.com/pytorch/pytorch/issues/190489. A barrier does not help.

`destroy_process_group` waits for these threads only where nothing else holds the group. A model that trains holds it.
So do the defaults of functions in torch.distributed.nn, which DistributedDataParallel imports, if a group was there
first. So scripts of tests import that module, train in a function, and destroy the group after it. A function that
`mp.spawn` runs calls `end_rank`.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def end_rank() -> NoReturn:
    """End a process that has done its work, without the end of the interpreter."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
