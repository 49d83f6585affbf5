"""Language-model head for decoding: vocabulary-parallel logits, gathered on every rank.

With W ranks and V words, each rank holds `hidden_states` [T, H], equal on all ranks, its rows of the weight
`weight_shard` [V/W, H] and its part of the bias `bias_shard` [V/W]; shapes and dtypes are equal on all ranks, T is 1 to
8. With logits_s = hidden_states @ weight_shard_s^T + bias_shard_s of each rank s, every rank returns the same bits in a
new tensor [T, V] of the input dtype: the concatenation of logits_0 to logits_{W-1} along dim 1, each row contiguous.
Accumulate in float32; the product and the sum with the bias may each be rounded to the input dtype. V/W and H may be
any numbers. All inputs stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(hidden_states: torch.Tensor, weight_shard: torch.Tensor, bias_shard: torch.Tensor) -> torch.Tensor:
    logits = F.linear(hidden_states, weight_shard, bias_shard)
    num_tokens, width = logits.shape
    world_size = dist.get_world_size()
    gathered = logits.new_empty((world_size, num_tokens, width))
    dist.all_gather_into_tensor(gathered.view(-1, width), logits)
    return gathered.transpose(0, 1).reshape(num_tokens, world_size * width)
