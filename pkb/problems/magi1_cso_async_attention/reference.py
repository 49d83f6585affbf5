"""Context-shuffled attention: per range all-to-all of queries, attention on a key window, outputs back.

A sequence is cut into R = `cp_shuffle_num` ranges, and every range over the W ranks of the group, in group order. Each
rank holds `query` [T, Hq, D] and `key_value` [T, Hkv, 2 D] (of each head the key, then the value), T = R m: token
i m + j of rank s is position s m + j of range i. Shapes and dtype are equal on all ranks. Of the keys and values the
first clip positions of every range are kept, clip = `clip_token_nums` or, if that is None, all W m; laid end to end,
range 0 first, they form one key sequence of R clip positions. `k_ranges` [R, 2] int64, equal on all ranks, holds a
window of it for each range: every query of range i, also those at positions from clip on, attends without a mask to the
keys k_ranges[i, 0] to k_ranges[i, 1] - 1, of which there is at least one. Query head h uses KV head h // (Hq / Hkv):
out = softmax(D^-1/2 q K^T) V. Each rank returns the output of its own queries, [T, Hq, D] in the order of `query` and
in its dtype. Softmax and sums are in float32, with one rounding. ValueError is raised where R does not divide T, W does
not divide Hq, or neither W divides Hkv nor Hkv W. `group` None is the default group. The result is a new tensor. All
inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    query: torch.Tensor,
    key_value: torch.Tensor,
    k_ranges: torch.Tensor,
    cp_shuffle_num: int,
    clip_token_nums: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    num_tokens, num_heads, _ = query.shape
    num_kv_heads = key_value.shape[1]
    if num_tokens % cp_shuffle_num != 0:
        raise ValueError(f"{num_tokens} tokens cannot be cut into {cp_shuffle_num} ranges")
    if num_heads % world_size or (num_kv_heads % world_size and world_size % num_kv_heads):
        raise ValueError(f"{num_heads} heads and {num_kv_heads} KV heads cannot be dealt to {world_size} ranks")
    if num_kv_heads < world_size:
        key_value = key_value.repeat_interleave(world_size // num_kv_heads, dim=1)
    received_kv, kv_work = _to_heads(key_value, world_size, group)
    arriving = [_to_heads(part, world_size, group) for part in query.chunk(cp_shuffle_num)]
    windows = k_ranges.tolist()
    kv_work.wait()
    # [W, R m, heads, 2 D] to the ranges one after the other, each cut to its first positions.
    of_ranges = torch.unflatten(received_kv, 1, (cp_shuffle_num, -1)).transpose(0, 1).flatten(1, 2)
    keys, values = of_ranges[:, :clip_token_nums].flatten(0, 1).chunk(2, dim=-1)
    leaving = []
    for (q, work), (first, end) in zip(arriving, windows, strict=True):
        work.wait()
        out = _attend(q.flatten(0, 1), keys[first:end], values[first:end])
        home = torch.empty_like(q)
        leaving.append((home, out, dist.all_to_all_single(home, out, group=group, async_op=True)))
    result = torch.empty_like(query)
    for part, (home, _, work) in zip(result.chunk(cp_shuffle_num), leaving, strict=True):
        work.wait()
        torch.unflatten(part, 1, (world_size, -1)).copy_(home.transpose(0, 1))
    return result


def _to_heads(tokens: torch.Tensor, world_size: int, group: dist.ProcessGroup | None) -> tuple[torch.Tensor, dist.Work]:
    """Start to exchange own tokens [m, heads, ..] of all heads for all ranks' tokens [W, m, heads / W, ..] of some."""
    sent = torch.unflatten(tokens, 1, (world_size, -1)).transpose(0, 1).contiguous()
    received = torch.empty_like(sent)
    return received, dist.all_to_all_single(received, sent, group=group, async_op=True)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of q [n, heads, D] to k, v [L, KV heads, D]: [n, heads, D]."""
    # KV heads as the batch, the queries of each as its heads: no copies of keys, in any dtype.
    queries = torch.unflatten(q, 1, (k.shape[1], -1)).permute(1, 2, 0, 3)
    keys, values = (t.transpose(0, 1).unsqueeze(1).expand(-1, queries.shape[1], -1, -1) for t in (k, v))
    out = F.scaled_dot_product_attention(queries, keys, values)
    return out.permute(2, 0, 1, 3).reshape(q.shape)
