"""Which devices compute in bfloat16: with 8 bits of precision, and several times as fast as in single precision."""

from __future__ import annotations

from typing import Any

import torch


def has_bfloat16(device: torch.device) -> bool:
    """Whether the device computes in bfloat16 itself; others emulate it and are slower."""
    if device.type == "cpu":
        found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older versions of torch cannot tell
        return bool(found.get("avx512_bf16") or found.get("amx_bf16"))
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
