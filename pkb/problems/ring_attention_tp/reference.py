"""Attention layer with heads over TP and the sequence over CP.

The W ranks form a grid of cp by tp: rank c tp + t is in the TP group of the tp ranks with its c, at place t, and in the
CP group of the cp ranks with its t, at place c; `tp_group` and `cp_group` are these groups, where None is the default
group. Each rank holds `hidden_states` x [B, S, Hd], positions c S to (c+1) S - 1 of cp S and equal within a TP group,
and of hl = `num_heads` / tp heads of width d the weights `w_qkv` [3 hl d, Hd] and `w_o` [Hd, hl d], equal within a CP
group; Hd need not be num_heads d. x w_qkv^T holds q of its heads, then all of k, then all of v, each head after head.
For every batch element and head, context = softmax(scale q K^T) V, where K and V hold the positions of the whole CP
group. scale is `softmax_scale`, or d^-1/2 if that is None. If `causal`, a query attends only to its own position and
those before it in the whole sequence. Every rank returns y [B, S, Hd], the sum of context w_o^T, the heads side by
side, over its TP group. Softmax and sums are in float32; q, k, v, partial results of the attention, context, each
rank's part of y and sums over ranks may be rounded to the input dtype. The result is a new tensor. All inputs stay as
they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    num_heads: int,
    softmax_scale: float | None = None,
    causal: bool = False,
    tp_group: dist.ProcessGroup | None = None,
    cp_group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    heads = num_heads // dist.get_world_size(tp_group)
    q, k, v = torch.unflatten(F.linear(hidden_states, w_qkv), 2, (3, heads, -1)).unbind(2)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    context = _ring_attention(q, k, v, scale, causal, cp_group)
    y = F.linear(context.flatten(2), w_o)
    dist.all_reduce(y, group=tp_group)
    return y


def _ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Attention of the own queries [B, S, heads, d] to the blocks of all ranks of the group."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    if world_size > 1:
        k, v = k.contiguous(), v.contiguous()
    # Under the mask blocks of later ranks are not needed, so none travels from the last rank to the first.
    num_blocks = rank + 1 if causal else world_size
    out, total = q, q
    for step in range(num_blocks):
        receives = step + 1 < num_blocks
        sends = rank + 1 < world_size if causal else receives
        (next_k, next_v), works = _pass_on((k, v), sends, receives, group)
        block, block_total = _attend(q, k, v, scale, causal and step == 0)
        if step == 0:
            out, total = block, block_total
        else:
            out = torch.lerp(out.float(), block.float(), torch.sigmoid(block_total - total)[..., None])
            total = torch.logaddexp(total, block_total)
        for work in works:
            work.wait()
        k, v = next_k, next_v
    return out.to(q.dtype).transpose(1, 2).contiguous()


def _pass_on(
    held: tuple[torch.Tensor, ...], sends: bool, receives: bool, group: dist.ProcessGroup | None
) -> tuple[tuple[torch.Tensor, ...], list[dist.Work]]:
    """Start sending to the next rank and receiving from the previous one: what will arrive, and what to wait for."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    arriving = tuple(torch.empty_like(tensor) for tensor in held) if receives else held
    operations = []
    if sends:
        peer = (rank + 1) % world_size
        operations += [dist.P2POp(dist.isend, tensor, group=group, group_peer=peer) for tensor in held]
    if receives:
        peer = (rank - 1) % world_size
        operations += [dist.P2POp(dist.irecv, tensor, group=group, group_peer=peer) for tensor in arriving]
    return arriving, dist.batch_isend_irecv(operations) if operations else []


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to one block: output [B, h, S, D] and log-sum-exp of the scores [B, h, S]."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    # The fused kernels by name: scaled_dot_product_attention does not return the log-sum-exp.
    if q.is_cuda and q.dtype == torch.float32:
        fused = torch.ops.aten._scaled_dot_product_efficient_attention
        out, total = fused(q, k, v, None, True, 0.0, causal, scale=scale)[:2]
        return out, total[..., : q.shape[2]]
    if q.is_cuda:
        out, total = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=scale)[:2]
        return out, total
    scores = (q.float() * scale) @ k.float().transpose(2, 3)
    if causal:
        scores.masked_fill_(torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu_(1), -torch.inf)
    total = scores.logsumexp(dim=-1)
    return scores.sub_(total[..., None]).exp_() @ v.float(), total
