"""Sequence-parallel self-attention: projection, Ulysses exchange, attention, exchange back, output projection.

The sequence of T = W S tokens is cut over the W ranks of the group, in group order. Each rank holds `hidden_states`
[B, S, H], its tokens, `w_qkv` [3 nh d, H] and `w_o` [H_o, nh d], with nh = `num_heads`, a multiple of W; H and H_o
need not be nh d. Shapes and dtype are equal on all ranks, the weights need not be. Each rank projects its own tokens
with its own w_qkv: the first nh d rows make q, the next k, the last v, each of them head after head. For every batch
element and head, a query attends to all T positions of the sequence (rank 0's tokens, rank 1's, and so on), with
`causal` only to its own position and those before it: out = softmax(q k^T / sqrt(d)) v. The heads of a token side by
side, times w_o^T of the rank that holds the token, are what that rank returns: [B, S, H_o]. Softmax and sums are in
float32; q, k, v and the attention output may be rounded to the input dtype. `group` None is the default group. The
result is a new tensor. All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    hidden_states: torch.Tensor,
    w_qkv: torch.Tensor,
    w_o: torch.Tensor,
    group: dist.ProcessGroup | None = None,
    num_heads: int = 8,
    causal: bool = False,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    # [B, S, 3, W, heads, d] to one block a rank, sequence first, so that received blocks join without a copy.
    qkv = torch.unflatten(F.linear(hidden_states, w_qkv), 2, (3, world_size, num_heads // world_size, -1))
    joined = _exchange(qkv.permute(3, 1, 0, 2, 4, 5), group).flatten(0, 1)
    q, k, v = joined.permute(2, 1, 3, 0, 4).unbind()
    out = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    # [B, heads, T, d] to one block of tokens a rank.
    own = _exchange(torch.unflatten(out.permute(2, 0, 1, 3), 0, (world_size, -1)), group)
    return F.linear(own.permute(2, 1, 0, 3, 4).flatten(2), w_o)


def _exchange(blocks: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Block d goes to rank d; block s of the result came from rank s."""
    if blocks.shape[0] == 1:
        return blocks
    sent = blocks.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group)
    return received
