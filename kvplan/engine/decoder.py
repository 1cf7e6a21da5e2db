"""The forward pass: embedding, layers, head. It knows attention only as a function of a layer's Q, K and V."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.nn import functional as F

from kvplan.engine.architecture import Architecture
from kvplan.engine.rotary import cosines_and_sines, inverse_frequencies, rotate
from kvplan.engine.weights import LayerWeights, Weights


class Attention(Protocol):
    """Attention of one planned step."""

    def __call__(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Puts the step's K and V into the cache, then attends.

        Args:
            query: [tokens, query heads, head_dim]; key, value: [tokens, KV heads, head_dim]; positions applied.

        Returns:
            [tokens, query heads, head_dim]
        """
        ...


class Decoder:
    """A decoder with its weights, on one device.

    Args:
        shape: what to compute.
        weights: on the device it will run on.
    """

    def __init__(self, shape: Architecture, weights: Weights) -> None:
        self.shape = shape
        self.weights = weights
        self.device = weights.norm.device
        self.dtype = weights.norm.dtype
        self._frequencies = inverse_frequencies(shape.rope, shape.head_dim).to(self.device)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, a tied head counted once."""
        tensors = {
            tensor.data_ptr(): tensor.nbytes
            for part in (self.weights, *self.weights.layers)
            for tensor in vars(part).values()
            if isinstance(tensor, torch.Tensor)
        }
        return sum(tensors.values())

    @torch.inference_mode()
    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, sampled: torch.Tensor, attention: Attention
    ) -> torch.Tensor:
        """Logits of the tokens ``sampled``.

        Args:
            token_ids, positions: int64 [tokens].
            sampled: int64 [samples], places in ``token_ids``.

        Returns:
            [samples, vocab] in the model's dtype.
        """
        hidden = F.embedding(token_ids, self.weights.embedding)
        turn = cosines_and_sines(self._frequencies, positions, self.dtype)
        for index, layer in enumerate(self.weights.layers):
            hidden = hidden + self._attend(index, layer, self._norm(hidden, layer.input_norm), turn, attention)
            hidden = hidden + self._feed_forward(layer, self._norm(hidden, layer.post_norm))
        return F.linear(self._norm(hidden[sampled], self.weights.norm), self.weights.head)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: torch.Tensor,
        turn: tuple[torch.Tensor, torch.Tensor],
        attention: Attention,
    ) -> torch.Tensor:
        shape, tokens = self.shape, len(hidden)
        heads, kv_heads = shape.num_attention_heads, shape.num_key_value_heads
        mixed = F.linear(hidden, layer.qkv, layer.qkv_bias).view(tokens, heads + 2 * kv_heads, shape.head_dim)
        query, key, value = mixed.split((heads, kv_heads, kv_heads), dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            query, key = self._norm(query, layer.q_norm), self._norm(key, layer.k_norm)
        out = attention(index, rotate(query, *turn), rotate(key, *turn), value)
        return F.linear(out.reshape(tokens, -1), layer.output, layer.output_bias)

    def _feed_forward(self, layer: LayerWeights, hidden: torch.Tensor) -> torch.Tensor:
        gate, up = F.linear(hidden, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down, layer.down_bias)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """RMSNorm, in fp32, scaled in the model's dtype as Llama does."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.rms_norm_eps)
        return weight * wide.to(x.dtype)
