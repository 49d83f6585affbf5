"""The gated delta rule in float64, one token after the other, for problem.py files. Layouts are [B, L, heads, .]."""

from __future__ import annotations

import torch


def recurrence(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor,
    is_decayed_late: bool = False,
) -> torch.Tensor:
    """Outputs o_t = S_t^T q_t, [B, L, heads, V], of S_t = D S_{t-1} + k_t (beta_t (v_t - (D S_{t-1})^T k_t))^T.

    The first state is 0.

    Args:
        q: queries [B, L, heads, K], normalized and scaled.
        k: keys [B, L, heads, K], normalized.
        v: values [B, L, heads, V].
        decay: the diagonal of D, [B, L, heads, K], or [B, L, heads, 1] for one number a head.
        beta: step sizes [B, L, heads].
        is_decayed_late: a wrong order: the state is compared with v before it decays.
    """
    q, k, v, decay, beta = (tensor.double() for tensor in (q, k, v, decay, beta))
    state = k.new_zeros(k.shape[0], k.shape[2], k.shape[3], v.shape[3])
    outs = []
    for t in range(k.shape[1]):
        decayed = decay[:, t].unsqueeze(-1) * state
        known = torch.einsum("bhkv,bhk->bhv", state if is_decayed_late else decayed, k[:, t])
        update = beta[:, t].unsqueeze(-1) * (v[:, t] - known)
        state = decayed + k[:, t].unsqueeze(-1) * update.unsqueeze(-2)
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outs, dim=1)


def unit(x: torch.Tensor, eps: float) -> torch.Tensor:
    """x / max(|x|, eps) along the last dimension, float64."""
    wide = x.double()
    return wide.div(wide.norm(dim=-1, keepdim=True).clamp_min(eps))


def with_short_rows(x: torch.Tensor, choice: torch.Tensor, factor: float) -> torch.Tensor:
    """Rows times a factor where `choice` (uniform in [0, 1)) is below 0.1, and zeros where it is from 0.95 on."""
    return x * torch.where(choice < 0.1, factor, torch.where(choice < 0.95, 1.0, 0.0)).unsqueeze(-1).to(x.dtype)
