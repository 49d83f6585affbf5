"""Permute tokens by expert, dispatch them, and regroup by local expert.

Each rank of the group (W ranks, in group order) holds `hidden_states` [M, H] (or [..., H], flattened to M rows) and
`expert_mask` [E, K, M], a float or integer tensor, possibly a strided view: 1 where slot k of token t chose expert e,
else 0. E = `num_experts` is a multiple of W, nl = E/W, and rank d hosts experts d nl to (d+1) nl - 1. E, K, H and the
dtypes are equal on all ranks, M may differ. Each rank returns (permuted, routing_map, mapping, shape):

routing_map [E, M] = sum over k of expert_mask, in the dtype that summing the mask gives. The routed pairs of a rank
are the (e, t) with routing_map[e, t] != 0, ordered by e, then by t; there are R. mapping [R] int64 holds their t.
Rank s sends the rows hidden_states_s[mapping_s], its first `input_splits`[0] to rank 0, the next input_splits[1] to
rank 1, and so on: a token goes once for each expert that it is routed to. permuted [sum(`output_splits`), H] on rank r
holds what arrives, output_splits[s] rows from rank s, in this order: by expert of r, then by source rank, then by
token. `num_global_tokens_per_local_expert` [W, nl] int64, on the CPU or on the device of hidden_states, says how many
rows rank s sends to each expert of r. shape is torch.Size([M, H]).

`input_splits` and `output_splits` are lists of W ints; splits and table agree between ranks, and zeros occur
anywhere. If sum(input_splits) is not R, a rank raises RuntimeError before it communicates. All values are moved
bit by bit. `group` None is the default group. The results are new tensors; all inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    hidden_states: torch.Tensor,
    expert_mask: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Size]:
    world_size = dist.get_world_size(group)
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    routing_map = expert_mask.sum(dim=1)
    mapping = routing_map.nonzero(as_tuple=True)[1]
    if sum(input_splits) != len(mapping):
        raise RuntimeError(f"input_splits add up to {sum(input_splits)}, but {len(mapping)} pairs are routed")
    sent = hidden[mapping]
    if world_size == 1:
        # One source: rows are in order of experts already.
        return sent, routing_map, mapping, hidden.shape
    received = sent.new_empty((sum(output_splits), hidden.shape[1]))
    dist.all_to_all_single(received, sent, output_splits, input_splits, group=group)
    if num_experts > world_size:
        counts = num_global_tokens_per_local_expert.flatten().tolist()
        chunks = torch.split(received, counts)
        num_local = num_experts // world_size
        received = torch.cat([chunk for j in range(num_local) for chunk in chunks[j::num_local]])
    return received, routing_map, mapping, hidden.shape
