"""Backward of context-parallel attention, gradients averaged over DP replicas.

The W ranks form a grid of dp by cp: rank p cp + c is in the CP group of the cp ranks of its replica p, at place c, and
in the DP group of the dp ranks with its c, at place p. `cp_group` and `dp_group` are these groups; cp_group None is the
default group, dp_group None says that there is a single replica. Each rank holds its block of its replica's sequence,
positions c S to (c+1) S - 1 of cp S, contiguous [B, S, h, D] each: `q`, `k`, `v`, the attention output `out` and its
gradient `dout`, and `softmax_lse` [B, h, S] float32, the natural log of the sum of exp(scale q_i k_j) over the keys j
that query i attends to, in the whole sequence. scale is `softmax_scale`, or D^-1/2 if that is None. If `causal`, query
i attends only to the positions j <= i of the whole sequence. With these out and lse, not others,
P_ij = exp(scale q_i k_j - lse_i) where i attends to j, else 0; dS_ij = P_ij (dout_i v_j - dout_i out_i);
dq_i = scale sum_j dS_ij k_j; dk_j = scale sum_i dS_ij q_i; dv_j = sum_i P_ij dout_i,
sums over the keys or queries of the whole sequence. Every rank returns (dq, dk, dv), each [B, S, h, D]: those of its
block, averaged over the DP group (the mean over replicas at the same place, whose data differ). Products and sums are
in float32; the gradients of a pair of blocks, those of a replica, their sum over replicas and its quotient may be
rounded to the input dtype. The results are new tensors. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    softmax_lse: torch.Tensor,
    softmax_scale: float | None = None,
    causal: bool = False,
    cp_group: dist.ProcessGroup | None = None,
    dp_group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    own = (dout, q, out, softmax_lse)
    gradients = q.new_empty((3, *q.shape))
    for gradient, summed in zip(gradients, _ring_backward(own, k, v, scale, causal, cp_group), strict=True):
        gradient.copy_(summed)
    if dp_group is not None and dist.get_world_size(dp_group) > 1:
        dist.all_reduce(gradients, group=dp_group)
        gradients.div_(dist.get_world_size(dp_group))
    dq, dk, dv = gradients.unbind()
    return dq, dk, dv


def _ring_backward(
    own: tuple[torch.Tensor, ...],
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    causal: bool,
    group: dist.ProcessGroup | None,
) -> tuple[torch.Tensor, ...]:
    """Float32 dq, dk, dv; the sums of dk and dv follow their block one step behind and come home at the end."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    kv: tuple[torch.Tensor, ...] = (k, v)
    dq, sums = k, kv
    works: list[dist.Work] = []
    for step in range(world_size):
        next_kv = kv
        kv_works: list[dist.Work] = []
        if step + 1 < world_size:
            next_kv, kv_works = _pass_on(kv, group)
        # Blocks of later ranks are masked, but their gradients have to pass.
        block = _attend_backward(own, kv, scale, causal and step == 0) if step <= rank or not causal else ()
        for work in works:
            work.wait()
        if step == 0:
            dq, *rest = (gradient.float() for gradient in block)
            sums = tuple(gradient.contiguous() for gradient in rest)
        elif block:
            for summed, gradient in zip((dq, *sums), block, strict=True):
                summed.add_(gradient)
        if world_size > 1:
            sums, works = _pass_on(sums, group)
        for work in kv_works:
            work.wait()
        kv = next_kv
    for work in works:
        work.wait()
    return dq, *sums


def _pass_on(
    held: tuple[torch.Tensor, ...], group: dist.ProcessGroup | None
) -> tuple[tuple[torch.Tensor, ...], list[dist.Work]]:
    """Start sending to the next rank and receiving from the previous one: what will arrive, and what to wait for."""
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    arriving = tuple(torch.empty_like(tensor) for tensor in held)
    sends = [dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % world_size) for tensor in held]
    receives = [dist.P2POp(dist.irecv, tensor, group=group, group_peer=(rank - 1) % world_size) for tensor in arriving]
    return arriving, dist.batch_isend_irecv(sends + receives)


def _attend_backward(
    own: tuple[torch.Tensor, ...], kv: tuple[torch.Tensor, ...], scale: float, causal: bool
) -> tuple[torch.Tensor, ...]:
    """Gradients of q, k and v [B, S, h, D] from the own queries and one block of keys."""
    lse = own[3]
    dout, q, out, k, v = (tensor.transpose(1, 2) for tensor in (*own[:3], *kv))
    if q.is_cuda and q.dtype != torch.float32:
        # No dropout, so no random state; one length, so none in a table.
        unused, length = torch.empty(2, dtype=torch.uint64, device=q.device), q.shape[2]
        gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            dout, q, k, v, out, lse, None, None, length, length, 0.0, causal, unused, unused[0], scale=scale
        )
        return tuple(gradient.transpose(1, 2) for gradient in gradients)
    dout, q, k, v = dout.float(), q.float() * scale, k.float(), v.float()
    p = (q @ k.transpose(2, 3)).sub_(lse[..., None]).exp_()
    if causal:
        p.masked_fill_(torch.ones(p.shape[2:], dtype=torch.bool, device=p.device).triu_(1), 0.0)
    dv = p.transpose(2, 3) @ dout
    delta = (dout * out).sum(dim=-1, keepdim=True)
    ds = (dout @ v.transpose(2, 3)).sub_(delta).mul_(p)
    return tuple(gradient.transpose(1, 2) for gradient in ((ds @ k).mul_(scale), ds.transpose(2, 3) @ q, dv))
