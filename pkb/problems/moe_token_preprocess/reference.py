"""Count tokens per expert and derive the split sizes of the expert-parallel dispatch.

On a group of W ranks, in group order, rank d hosts experts d nl to (d+1) nl - 1; E = `num_experts` is a multiple of W,
nl = E/W. Each rank holds `expert_mask` [E, K, M], a float or integer tensor, possibly a strided view: 1 where slot k of
token t chose expert e, else 0. E, K and the dtype are equal on all ranks, M may differ. c_s[e] is the sum of rank s's
expert_mask[e] over all slots and tokens; it is below 2^24. Slots count as they stand: a token that names an expert
twice counts twice, a slot of zeros for nobody. Rank r returns four tensors on the CPU (input_splits, output_splits,
per_local_expert, sum_per_local_expert):

input_splits [W] int64: at d, the sum of c_r over the experts of rank d. per_local_expert [W, nl]: at [s, j],
c_s[r nl + j]. output_splits [W] int64: at s, the sum over j of per_local_expert[s, j]. sum_per_local_expert [nl]: at
j, the sum over s of per_local_expert[s, j]. These last and per_local_expert have the dtype that summing the mask gives:
float32 for a float32 mask, int64 for an integer one. The values must be valid when the call returns or as soon as the
current stream is synchronized. `group` None is the default group. The input stays as it was.
"""

import torch
import torch.distributed as dist


def solution(
    expert_mask: torch.Tensor, num_experts: int, group: dist.ProcessGroup | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)
    counts = expert_mask.sum(dim=(1, 2))
    if world_size > 1:
        counts_of_all = counts.new_empty(world_size * num_experts)
        dist.all_gather_into_tensor(counts_of_all, counts, group=group)
        counts = counts_of_all
    # One copy to the host; what is derived from the small table is derived there.
    table = counts.cpu().view(world_size, world_size, num_experts // world_size)
    per_local_expert = table[:, rank].contiguous()
    input_splits = table[rank].sum(dim=1).to(torch.int64)
    output_splits = per_local_expert.sum(dim=1).to(torch.int64)
    return input_splits, output_splits, per_local_expert, per_local_expert.sum(dim=0)
