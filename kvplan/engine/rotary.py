"""Rotary position embedding (Su et al., 2021), in the half-split form of Llama's checkpoints."""

from __future__ import annotations

import math

import torch

from kvplan.engine.architecture import Rope


def inverse_frequencies(rope: Rope, head_dim: int) -> torch.Tensor:
    """fp32 [head_dim / 2]: radians a position, fastest first. Source of llama3: Meta's reference code, as in vLLM."""
    plain = 1.0 / (rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim))
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind != "llama3":
        return plain
    original = rope.original_max_position_embeddings
    wavelength = 2 * math.pi / plain
    blend = (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * plain / rope.factor + blend * plain
    stretched = torch.where(wavelength > original / rope.low_freq_factor, plain / rope.factor, blended)
    return torch.where(wavelength < original / rope.high_freq_factor, plain, stretched)


def cosines_and_sines(
    frequencies: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """For positions [tokens]: two [tokens, 1, head_dim], computed in fp32 whatever ``dtype``."""
    angles = positions.float()[:, None] * frequencies[None, :]
    both = torch.cat((angles, angles), dim=-1)[:, None, :]
    return both.cos().to(dtype), both.sin().to(dtype)


def rotate(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """x [tokens, heads, head_dim] turned by its position's angles."""
    first, second = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-second, first), dim=-1) * sines
