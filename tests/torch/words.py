"""A transformer of the tests."""

from __future__ import annotations

from torch import Tensor, nn


class Words(nn.Module):
    """Blocks of a transformer, dropout everywhere: tokens (samples, places) to scores (samples x places, words).

    Args:
        words: how many there are.
        width: of the embedding.
        inner: of the feed-forward layers.
        blocks, dropout: how many, and its share.
        is_causal: whether each place sees only those before it.
    """

    def __init__(
        self, words: int, width: int, inner: int, *, blocks: int, dropout: float, is_causal: bool = False
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        layer = nn.TransformerEncoderLayer(width, 4, inner, dropout=dropout, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)
        self.is_causal = is_causal

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]) if self.is_causal else None
        return self.head(self.layers(self.embedding(tokens), mask=mask, is_causal=self.is_causal)).flatten(0, 1)
