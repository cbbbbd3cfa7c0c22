"""Tensors off their device, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def to_host(tensors: Sequence[Any]) -> list[Any]:
    """Copies on the CPU that later changes do not show in; one transfer for all tensors of a device.

    Each is taken as the bytes it is, so nothing is converted, and widest first, so that each begins where its type
    may begin.
    """
    import torch

    flat = [torch.as_tensor(tensor).detach() for tensor in tensors]
    copies: list[Any] = [None] * len(flat)
    for device in dict.fromkeys(tensor.device for tensor in flat):
        here = [place for place, tensor in enumerate(flat) if tensor.device == device]
        here.sort(key=lambda place: -flat[place].element_size())
        packed = torch.cat([flat[place].reshape(-1).view(torch.uint8) for place in here]).cpu()
        start = 0
        for place in here:
            end = start + flat[place].numel() * flat[place].element_size()
            copies[place] = packed[start:end].view(flat[place].dtype).reshape(flat[place].shape)
            start = end
    return copies
