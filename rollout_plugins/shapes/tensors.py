"""Tensors off their device, in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def to_host(tensors: Sequence[Any]) -> list[Any]:
    """Copies on the CPU that later changes do not show in; one transfer for all tensors of a device.

    Each is taken as the bytes it is, so nothing is converted, and widest first, so that each begins where its type
    may begin. None for what is not a tensor of plain numbers, or cannot be copied.
    """
    flat = [_plain(tensor) for tensor in tensors]
    copies: list[Any] = [None] * len(flat)
    for device in dict.fromkeys(tensor.device for tensor in flat if tensor is not None):
        here = [place for place, tensor in enumerate(flat) if tensor is not None and tensor.device == device]
        here.sort(key=lambda place: -flat[place].element_size())
        for place, copied in zip(here, _copied([flat[place] for place in here]), strict=True):
            copies[place] = copied
    return copies


def _plain(value: Any) -> Any:
    import torch

    try:
        tensor = torch.as_tensor(value).detach()
        return tensor.to_dense() if tensor.layout != torch.strided else tensor
    except (Exception, SystemExit):
        return None


def _copied(tensors: Sequence[Any]) -> list[Any]:
    """All in one transfer; where one of them cannot be copied like this, each alone."""
    try:
        return _together(tensors)
    except Exception:
        return [_alone(tensor) for tensor in tensors]


def _together(tensors: Sequence[Any]) -> list[Any]:
    import torch

    packed = torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]).cpu()
    copies, start = [], 0
    for tensor in tensors:
        end = start + tensor.numel() * tensor.element_size()
        copies.append(packed[start:end].view(tensor.dtype).reshape(tensor.shape))
        start = end
    return copies


def _alone(tensor: Any) -> Any:
    import torch

    try:
        return tensor.to("cpu", memory_format=torch.contiguous_format, copy=True)
    except Exception:
        return None
