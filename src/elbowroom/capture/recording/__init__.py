"""Recording: a step that runs here, seen by torch's profiler, hooks and the allocator."""
