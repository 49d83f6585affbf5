"""Gather object masks of all ranks and suppress overlapping ones.

Each rank r of the group (W ranks, in group order) holds `low_res_masks_local` [n_r, H, Wd] and `obj_scores_local`
[n_r] of its own objects; n_r = `num_obj_per_gpu`[r] (a list of W counts, equal on all ranks; otherwise ValueError) and
may be 0; H, Wd and the dtype are equal on all ranks. `last_occluded` [n] int64, equal on all ranks, has an entry for
each of the n objects of all ranks, in rank order. A pixel is inside a mask if its value is > 0. The IoU of two objects
is the number of pixels inside both, divided in float32 by the number inside at least one of them, or by 1 if that is 0.

For each pair i < j whose IoU is at least `iou_threshold` (rounded to float32): i is suppressed if
last_occluded[i] > last_occluded[j] and last_occluded[j] > -1; j is suppressed if last_occluded[j] > last_occluded[i]
and last_occluded[i] > -1. With `reverse` the comparison of the two with one another is < in both cases; that with -1
stays. So equal ones suppress neither. What is suppressed still suppresses others.

Every rank returns three new tensors for all objects in rank order: masks [n, H, Wd] float32, the values as they are,
but -10 for every pixel of a suppressed object; scores [n] float32, as they are; suppressed [n] bool. `group` None is
the default group. All inputs stay as they were.
"""

import torch
import torch.distributed as dist


def solution(
    low_res_masks_local: torch.Tensor,
    obj_scores_local: torch.Tensor,
    num_obj_per_gpu: list[int],
    last_occluded: torch.Tensor,
    iou_threshold: float = 0.7,
    reverse: bool = False,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    num_own = num_obj_per_gpu[dist.get_rank(group)]
    if len(low_res_masks_local) != num_own:
        raise ValueError(f"expected {num_own} masks, got {len(low_res_masks_local)}")
    masks = _gather(low_res_masks_local, num_obj_per_gpu, group).float()
    scores = _gather(obj_scores_local, num_obj_per_gpu, group).float()

    inside = (masks > 0).flatten(1).float()
    both = inside @ inside.t()
    area = both.diagonal()
    iou = both / (area[:, None] + area - both).clamp_min(1)
    last, other = last_occluded[:, None], last_occluded
    loses = (last < other) if reverse else (last > other)
    suppressed = ((iou >= iou_threshold) & loses & (other > -1)).any(dim=1)
    masks.masked_fill_(suppressed[:, None, None], -10.0)
    return masks, scores, suppressed


def _gather(local: torch.Tensor, counts: list[int], group: dist.ProcessGroup | None) -> torch.Tensor:
    """Rows of all ranks, in the dtype in which they are."""
    most = max(counts)
    padded = local
    if len(local) < most:
        padded = local.new_empty((most, *local.shape[1:]))
        padded[: len(local)] = local
    gathered = local.new_empty((len(counts) * most, *local.shape[1:]))
    dist.all_gather_into_tensor(gathered, padded.contiguous(), group=group)
    if min(counts) == most:
        return gathered
    return torch.cat([gathered[rank * most : rank * most + n] for rank, n in enumerate(counts)])
