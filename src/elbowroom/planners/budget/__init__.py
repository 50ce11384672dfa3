"""Budgets: plans for the bytes that an allocator reserves, and the least budget that can be met."""
