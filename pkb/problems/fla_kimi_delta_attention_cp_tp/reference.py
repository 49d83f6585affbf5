"""Kimi delta attention forward, sequence over CP ranks, outputs summed over TP ranks.

A sequence of tokens is cut over the ranks of `cp_group` in group order (None: all ranks), l tokens each; the ranks of
`tp_group` (None: no tensor parallelism) have the same tokens' place, each with H heads and inputs of its own. Each rank
holds `q`, `k`, `g` [B, l, H, K], `v` [B, l, H, V], `beta` [B, l, H], `a_log` [H] and `dt_bias` [H K], viewed as [H, K];
the last two are equal within a CP group. Shapes and dtypes are equal on all ranks. In float32, for every head

    q' = K^-1/2 q / max(|q|, 1e-12),  k' = k / max(|k|, 1e-12),  b = sigmoid(beta)
    d_t = exp(-5 sigmoid(exp(a_log) (g_t + dt_bias))), a number for each of the K channels

and over the tokens of the whole CP group, from S = 0, a [K, V] matrix:

    S <- diag(d_t) S,  u = b_t (v_t - S^T k'_t),  S <- S + k'_t u^T,  o_t = S^T q'_t

o, rounded to the dtype of q, is summed elementwise over the TP group. Each rank returns the sum for its own l tokens:
a new tensor [B, l, H, V] in the dtype of q. Accumulate in float32; TF32 products are fine. Inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F

_CHUNK = 16


def solution(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    a_log: torch.Tensor,
    dt_bias: torch.Tensor,
    cp_group: dist.ProcessGroup | None = None,
    tp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    batch, length, heads, width = k.shape
    queries = F.normalize(q.float(), dim=-1, eps=1e-12) * width**-0.5
    keys = F.normalize(k.float(), dim=-1, eps=1e-12)
    rate = a_log.float().exp().unsqueeze(-1) * (g.float() + dt_bias.float().view(heads, width))
    # Behind the values stand K columns that start from the identity: they become what the tokens do to any state.
    values = F.pad(v.float(), (0, width))
    state = F.pad(torch.eye(width, device=k.device), (v.shape[-1], 0)).expand(batch, heads, -1, -1)
    outs, state = _scan(queries, keys, values, -5 * rate.sigmoid(), beta.float().sigmoid(), state)
    before = _state_before(state, v.shape[-1], cp_group)
    o = outs[..., : v.shape[-1]] + outs[..., v.shape[-1] :] @ before
    o = o[:, :, :length].transpose(1, 2).to(q.dtype).contiguous()
    if tp_group is not None:
        dist.all_reduce(o, group=tp_group)
    return o


def _scan(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [B, H, tokens, V], padded to whole chunks, and last state, from inputs [B, l, H, .]."""
    q, k, v, log_decay, beta = (_in_chunks(x) for x in (q, k, v, log_decay, beta.unsqueeze(-1)))
    total = log_decay.cumsum(dim=-2)
    # Decays between two tokens of a chunk as a quotient of decays from its middle: at most exp(5 * 8) each.
    middle = total[..., _CHUNK // 2 - 1, None, :]
    later, earlier = (total - middle).exp(), k * (middle - total).exp()
    overlap = (beta * ((k * later) @ earlier.mT)).tril(-1)
    scores = ((q * later) @ earlier.mT).tril()
    grown = total.exp()
    right = torch.cat((beta * v, beta * k * grown), dim=-1)
    solved = torch.linalg.solve_triangular(overlap, right, upper=False, unitriangular=True)
    fresh, read = solved.split((v.shape[-1], k.shape[-1]), dim=-1)
    end = total[..., -1:, :]
    written, kept = (k * (end - total).exp()).mT, end.exp().mT
    queries = q * grown
    outs = []
    for n in range(q.shape[2]):
        update = fresh[:, :, n] - read[:, :, n] @ state
        outs.append(queries[:, :, n] @ state + scores[:, :, n] @ update)
        state = kept[:, :, n] * state + written[:, :, n] @ update
    return torch.cat(outs, dim=-2), state


def _in_chunks(x: torch.Tensor) -> torch.Tensor:
    """[B, l, H, D] as [B, H, chunks, tokens, D]; tokens of zeros at the end change no state."""
    padded = F.pad(x, (0, 0, 0, 0, 0, -x.shape[1] % _CHUNK))
    return padded.view(x.shape[0], -1, _CHUNK, x.shape[2], x.shape[3]).permute(0, 3, 1, 2, 4)


def _state_before(own: torch.Tensor, num_values: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """The state that the ranks before this one leave behind."""
    world_size = dist.get_world_size(group)
    states = own.new_empty(world_size, *own.shape)
    dist.all_gather_into_tensor(states.view(-1, *own.shape[1:]), own.contiguous(), group=group)
    before = torch.zeros_like(own[..., :num_values])
    for state in states[: dist.get_rank(group)]:
        before = state[..., :num_values] + state[..., num_values:] @ before
    return before
