"""Copy tensors from their device in one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def to_host(tensors: Sequence[Any]) -> list[Any]:
    """Return CPU copies that later changes do not affect, with one transfer for all tensors of a device.

    The tensors are packed as raw bytes, so no value is converted, and widest type first, so that each is aligned. The
    result has None for a value that is not a tensor of plain numbers, or cannot be copied.
    """
    flat = [_as_dense_tensor(tensor) for tensor in tensors]
    copies: list[Any] = [None] * len(flat)
    for device in dict.fromkeys(tensor.device for tensor in flat if tensor is not None):
        indices = [index for index, tensor in enumerate(flat) if tensor is not None and tensor.device == device]
        indices.sort(key=lambda index: -flat[index].element_size())
        for index, copied in zip(indices, _copy_all([flat[index] for index in indices]), strict=True):
            copies[index] = copied
    return copies


def _as_dense_tensor(value: Any) -> Any:
    import torch

    try:
        tensor = torch.as_tensor(value).detach()
        return tensor.to_dense() if tensor.layout != torch.strided else tensor
    except (Exception, SystemExit):
        return None


def _copy_all(tensors: Sequence[Any]) -> list[Any]:
    """Copy all tensors in one transfer, or each on its own if one of them cannot be packed."""
    try:
        return _copy_packed(tensors)
    except Exception:
        return [_copy_single(tensor) for tensor in tensors]


def _copy_packed(tensors: Sequence[Any]) -> list[Any]:
    import torch

    packed = torch.cat([tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]).cpu()
    copies, start = [], 0
    for tensor in tensors:
        end = start + tensor.numel() * tensor.element_size()
        copies.append(packed[start:end].view(tensor.dtype).reshape(tensor.shape))
        start = end
    return copies


def _copy_single(tensor: Any) -> Any:
    import torch

    try:
        return tensor.to("cpu", memory_format=torch.contiguous_format, copy=True)
    except Exception:
        return None
