"""Fine-tuning of models whose weights, gradients and optimizer states exceed a card, planned and simulated."""
