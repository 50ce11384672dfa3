"""Budgets: plans for the bytes that an allocator reserves, the least budget that can be met, and refusals."""
