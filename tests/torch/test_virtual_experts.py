"""A loop over experts on the virtual device: what it holds by how a router spreads the tokens."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from elbowroom.capture.virtual import VirtualDevice
from tests.torch.virtual_gpu import H100

TOKENS, WIDTH, HIDDEN, EXPERTS, CHOSEN = 4096, 64, 256, 8, 2


def mixed(tokens: torch.Tensor, chosen: torch.Tensor, experts: nn.ModuleList) -> torch.Tensor:
    """Each expert's output is added for the tokens that chose it, one expert after the other."""
    made = torch.zeros_like(tokens)
    for number, expert in enumerate(experts):
        own = torch.where(chosen == number)[0]
        made = made.index_add(0, own, expert(tokens[own]))
    return made


def held(chosen: torch.Tensor) -> tuple[int, int]:
    """Bytes after the forward, and most bytes of forward and backward, over what there was before."""
    device = VirtualDevice(H100, steps=None)
    with device:
        experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, WIDTH)) for _ in range(EXPERTS)
        ).cuda()
        tokens, places = torch.randn(TOKENS, WIDTH, device="cuda"), chosen.cuda()
        F.linear(tokens, tokens).sum()  # so that the workspaces of cuBLAS are there
        mixed(tokens, places, experts).sum().backward()
        experts.zero_grad()
        ledger = device.ledger
        before = ledger.peak_bytes = ledger.allocated_bytes
        out = mixed(tokens, places, experts)
        saved = ledger.allocated_bytes - before
        out.sum().backward()
    return saved, ledger.peak_bytes - before


EVEN = (torch.arange(TOKENS).unsqueeze(1) + torch.arange(CHOSEN)) % EXPERTS
SKEWED = torch.arange(CHOSEN).expand(TOKENS, CHOSEN).contiguous()


def test_a_router_that_favours_some_experts_saves_as_much_and_holds_more_for_a_while() -> None:
    (even, peak), (skewed, peak_of_skewed) = held(EVEN), held(SKEWED)
    # What is saved is of TOKENS * CHOSEN rows however these are spread; blocks are rounded up to 512 bytes.
    assert abs(even - skewed) <= EXPERTS * 8 * 512
    # One expert has all tokens where it had a fourth: HIDDEN and WIDTH floats a token, and gradients of them.
    grown = TOKENS * (1 - CHOSEN / EXPERTS) * 4 * (2 * HIDDEN + 2 * WIDTH)
    assert 0 <= peak_of_skewed - peak <= grown
    # The figures of docs/values.md, in MiB.
    assert [round(each / 2**20, 1) for each in (even, skewed, peak, peak_of_skewed)] == [21.1, 21.1, 22.2, 26.4]
