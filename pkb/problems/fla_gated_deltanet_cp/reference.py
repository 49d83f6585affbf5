"""Gated DeltaNet forward with sequence-to-head all-to-all.

Each rank of the group (W ranks, in group order) holds l of the L = W l tokens of a sequence, cut in rank order: `q` and
`k` [B, l, Hq, K], `v` [B, l, Hv, V], `gate` and `beta` [B, l, Hv]; and `a_log` and `dt_bias` [Hv / W], those of value
heads r Hv / W to (r + 1) Hv / W - 1, which apply to the tokens of all ranks. Shapes and dtypes are equal on all ranks;
W divides Hq, Hq divides Hv, and value head j uses query and key head j // (Hv / Hq). In float32, for every value head

    q' = K^-1/2 q / max(|q|, 1e-6),  k' = k / max(|k|, 1e-6)
    d_t = exp(-exp(a_log) softplus(gate_t + dt_bias)), one number

and over all L tokens, from S = 0, a [K, V] matrix, with beta as given:

    S <- d_t S,  u = beta_t (v_t - S^T k'_t),  S <- S + k'_t u^T,  o_t = S^T q'_t

Each rank returns o, rounded to the dtype of q, for its own l tokens and all value heads: a new tensor [B, l, Hv, V].
softplus must not overflow. Accumulate in float32; TF32 products are fine. `group` None is the default group. All inputs
stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

_CHUNK = 64


def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    gate: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    queries, keys = _to_heads(torch.stack((q, k), dim=-1), group).float().unbind(-1)
    values = _to_heads(v, group)
    gates, steps = _to_heads(torch.stack((gate, beta), dim=-1), group).float().unbind(-1)
    shared = values.shape[2] // queries.shape[2]
    queries = (F.normalize(queries, dim=-1, eps=1e-6) * q.shape[-1] ** -0.5).repeat_interleave(shared, dim=2)
    keys = F.normalize(keys, dim=-1, eps=1e-6).repeat_interleave(shared, dim=2)
    log_decay = -a_log.float().exp() * F.softplus(gates + dt_bias.float())
    o = _scan(queries, keys, values.float(), log_decay, steps)[:, : values.shape[1]]
    return _to_tokens(o.to(q.dtype), group)


def _scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor
) -> torch.Tensor:
    """Outputs [B, tokens, H, V], padded to whole chunks, from inputs [B, L, H, .] and [B, L, H]."""
    q, k, v, log_decay, beta = (_in_chunks(x) for x in (q, k, v, log_decay.unsqueeze(-1), beta.unsqueeze(-1)))
    total = log_decay.cumsum(dim=-2)
    is_later = torch.ones(_CHUNK, _CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (total - total.mT).masked_fill(is_later, -torch.inf).exp()
    overlap = (beta * (k @ k.mT) * between).tril(-1)
    scores = (q @ k.mT) * between
    grown = total.exp()
    right = torch.cat((beta * v, beta * grown * k), dim=-1)
    solved = torch.linalg.solve_triangular(overlap, right, upper=False, unitriangular=True)
    fresh, read = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    end = total[..., -1:, :]
    written, kept, queries = (k * (end - total).exp()).mT, end.exp(), q * grown
    state = k.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1])
    outs = []
    for n in range(q.shape[2]):
        update = fresh[:, :, n] - read[:, :, n] @ state
        outs.append(queries[:, :, n] @ state + scores[:, :, n] @ update)
        state = kept[:, :, n] * state + written[:, :, n] @ update
    return torch.cat(outs, dim=-2).transpose(1, 2)


def _in_chunks(x: torch.Tensor) -> torch.Tensor:
    """[B, L, H, D] as [B, H, chunks, tokens, D]; tokens of zeros at the end change no state."""
    padded = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % _CHUNK))
    return padded.view(x.shape[0], -1, _CHUNK, x.shape[2], x.shape[3]).permute(0, 3, 1, 2, 4)


def _to_heads(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """[B, l, H, ...], all heads of my tokens, to [B, L, H / W, ...], my heads of all tokens."""
    world_size = dist.get_world_size(group)
    received = _exchange(x.view(*x.shape[:2], world_size, -1, *x.shape[3:]).movedim(2, 0), group)
    return received.movedim(0, 1).reshape(x.shape[0], -1, *received.shape[3:])


def _to_tokens(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """[B, L, H / W, V] to [B, l, H, V]."""
    world_size = dist.get_world_size(group)
    received = _exchange(x.reshape(x.shape[0], world_size, -1, *x.shape[2:]).movedim(1, 0), group)
    return received.movedim(0, 2).flatten(2, 3).contiguous()


def _exchange(parts: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Part s of the result is what rank s of the group had as the part for this rank."""
    sent = parts.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received
