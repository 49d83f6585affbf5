"""Return expert outputs to the tokens' ranks and sum them with the routing weights.

On a group of W ranks, in group order, rank d hosts experts d nl to (d+1) nl - 1; E = `num_experts` is a multiple of W,
nl = E/W. Rank r has M tokens, M may differ by rank. Its routed pairs are the (e, t) with `routing_map`[e, t] != 0
(routing_map [E, M], bool or float), ordered by e, then by t; there are R, and `local_input_permutation_mapping` [R]
int64 holds their t. Row i of rank r's `expert_outputs` [sum(output_splits), H] belongs to a pair of some rank whose
expert r hosts: rows are ordered by expert, then by the rank of the token, then by token. Of each rank s,
`num_global_tokens_per_local_expert` [W, nl] int64, on the CPU or on the device of the rows, says how many rows belong
to each expert of r; `output_splits`[s] is their sum, and `input_splits`[d] how many pairs of r belong to rank d's
experts. Both are lists of W ints; zeros occur anywhere.

`routing_weights` [M, K] weigh the experts `selected_experts` [M, K] int64, in any order of slots. w[t, e] is the sum of
routing_weights[t, k] over k with selected_experts[t, k] = e. Each rank returns out [M, H], a new tensor in the dtype of
expert_outputs: out[t] = the sum over its pairs (e, t) of w[t, e] times the pair's row, 0 for a token without pairs;
selected experts that are not routed count for nothing. Accumulate in float32; weights, products and partial sums may
be rounded to that dtype, and the order of sums is free. `org_hidden_states_shape` is torch.Size([M, H]). `group` None
is the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    expert_outputs: torch.Tensor,
    routing_weights: torch.Tensor,
    selected_experts: torch.Tensor,
    num_experts: int,
    input_splits: list[int],
    output_splits: list[int],
    num_global_tokens_per_local_expert: torch.Tensor,
    routing_map: torch.Tensor,
    local_input_permutation_mapping: torch.Tensor,
    org_hidden_states_shape: torch.Size,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    world_size = dist.get_world_size(group)
    mapping = local_input_permutation_mapping
    rows = expert_outputs
    if world_size > 1:
        if num_experts > world_size:
            chunks = torch.split(rows, num_global_tokens_per_local_expert.t().flatten().tolist())
            rows = torch.cat([chunk for s in range(world_size) for chunk in chunks[s::world_size]])
        received = rows.new_empty((sum(input_splits), rows.shape[1]))
        dist.all_to_all_single(received, rows, input_splits, output_splits, group=group)
        rows = received
    weights = routing_weights.new_zeros((org_hidden_states_shape[0], num_experts))
    weights.scatter_add_(1, selected_experts, routing_weights)
    experts = torch.arange(num_experts, device=mapping.device)
    # With output_size the lengths are not read on the host.
    expert = experts.repeat_interleave((routing_map != 0).sum(dim=1), output_size=len(mapping))
    weighted = rows * weights[mapping, expert].unsqueeze(-1)
    return rows.new_zeros(org_hidden_states_shape).index_add_(0, mapping, weighted)
