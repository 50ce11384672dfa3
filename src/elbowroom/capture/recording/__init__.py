"""Recording: what a step that runs here shows to torch's profiler, to hooks and to the allocator."""
