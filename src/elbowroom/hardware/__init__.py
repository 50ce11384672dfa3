"""Hardware: what a computer has, GPUs by name and this computer's own parts."""
