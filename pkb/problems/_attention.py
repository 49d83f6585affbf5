"""Attention in float64 and its usual inputs, for problem.py files. Layouts are [B, T, heads, D]."""

from __future__ import annotations

from collections.abc import Callable

import torch

MAX_SCORES = 2**27
"""Scores held at once; queries are taken in blocks of so many."""


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    query_positions: torch.Tensor | None = None,
    key_positions: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale q k^T) v over the keys, float64: (out [B, T, heads, D], log-sum-exp [B, heads, T]).

    Args:
        q: queries [B, T, heads, D].
        k: keys [B, L, heads, D].
        v: values [B, L, heads, D].
        scale: factor of the products.
        query_positions: [T]; a query sees the keys at its own position and before. None: it sees all keys.
        key_positions: [L].
    """
    queries, keys, values = (tensor.double().transpose(1, 2) for tensor in (q, k, v))
    num_rows = max(1, MAX_SCORES // (keys.shape[0] * keys.shape[1] * keys.shape[2]))
    outs, sums = [], []
    for first in range(0, queries.shape[2], num_rows):
        scores = scale * (queries[:, :, first : first + num_rows] @ keys.transpose(2, 3))
        if query_positions is not None and key_positions is not None:
            is_later = key_positions > query_positions[first : first + num_rows, None]
            scores = scores.masked_fill(is_later, -torch.inf)
        total = scores.logsumexp(dim=-1)
        outs.append((scores - total[..., None]).exp() @ values)
        sums.append(total)
    return torch.cat(outs, dim=2).transpose(1, 2), torch.cat(sums, dim=2)


def attend_in_order(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, first_query: int = 0
) -> torch.Tensor:
    """Output of `attend` where keys stand at 0, 1, .. and queries at `first_query` and after it."""
    if not causal:
        return attend(q, k, v, scale)[0]
    key_positions = torch.arange(k.shape[1], device=k.device)
    return attend(q, k, v, scale, first_query + torch.arange(q.shape[1], device=q.device), key_positions)[0]


def project_qkv(x: torch.Tensor, w_qkv: torch.Tensor, num_heads: int) -> tuple[torch.Tensor, ...]:
    """q, k, v [B, S, heads, d] of x [B, S, H], float64: the rows of w_qkv are all of q, all of k, all of v."""
    qkv = x.double() @ w_qkv.double().T
    return torch.unflatten(qkv, 2, (3, num_heads, -1)).unbind(2)


def draw_w_qkv(normal: Callable[..., torch.Tensor], *shape: int, sharpness: float) -> torch.Tensor:
    """Weights [..., 3 P, H] from N(0, 1/H), the rows of q and k times `sharpness`: scores of a few units."""
    weights = normal(*shape, scale=shape[-1] ** -0.5)
    weights[..., : shape[-2] // 3 * 2, :] *= sharpness
    return weights


def read_head_by_head(w_qkv: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows for `project_qkv` that give what code gives that expects q, k and v of head 0, then those of head 1."""
    return torch.unflatten(w_qkv, 0, (num_heads, 3, -1)).transpose(0, 1).flatten(0, 2)


def attention_flops(batch: int, num_queries: int, num_keys: int, width: int, causal: bool) -> float:
    """Both products of attention with heads of `width` columns in all; half where the mask hides half."""
    return 4.0 * batch * num_queries * num_keys * width / (2 if causal else 1)
