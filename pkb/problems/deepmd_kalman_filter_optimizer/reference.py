"""Layer-wise extended Kalman filter step with covariance blocks spread over ranks.

Each rank holds blocks i = 0, 1, ... of weights, of n_i elements each: lists `H` of [n_i, 1] (gradients of the error),
`weights` of [n_i, 1] and `P` of [n_i, n_i] (symmetric), and `error`, 0-dim; everything is float64. Numbers and sizes
of blocks differ by rank, the sum of n_i does not; `kalman_lambda` and `kalman_nue` are equal on all ranks, error may
differ. With lambda = kalman_lambda: denominator = sum over all blocks of all ranks of (lambda + H_i^T P_i H_i), so
lambda is added once for each block; A = 1 / denominator. For each own block: K = P_i H_i, w' = w + A error K, with
the rank's own error, P' = (P_i - A K K^T) / lambda. Every rank returns (weights_all, P_new, lambda_next): the list of
all ranks' w' [n, 1], by rank, then by block; the list of its own P'; and kalman_nue lambda + 1 - kalman_nue, a 0-dim
float64 tensor. Compute in float64 throughout. Results are new tensors. All tensors stay as they were; elements of the
lists `weights` and `P` may be replaced.
"""

import torch
import torch.distributed as dist


def solution(
    H: list[torch.Tensor],
    error: torch.Tensor,
    weights: list[torch.Tensor],
    P: list[torch.Tensor],
    kalman_lambda: float,
    kalman_nue: float = 0.9987,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor]:
    K = [p @ h for p, h in zip(P, H, strict=True)]
    gains = torch.cat(K)
    denominator = torch.addmm(gains.new_full((1, 1), kalman_lambda * len(H)), torch.cat(H).mT, gains)
    dist.all_reduce(denominator)
    A = denominator.reciprocal()
    updated = torch.addcmul(torch.cat(weights), A * error, gains)
    everything = updated.new_empty((dist.get_world_size() * updated.shape[0], 1))
    gather = dist.all_gather_into_tensor(everything, updated, async_op=True)
    # One pass over each block, while the weights travel: the outer product is never stored.
    P_new = [
        torch.addr(p, (A * k).flatten(), k.flatten(), beta=1 / kalman_lambda, alpha=-1 / kalman_lambda)
        for p, k in zip(P, K, strict=True)
    ]
    ends = _block_ends([h.shape[0] for h in H], everything.device)
    gather.wait()
    lambda_next = gains.new_full((), kalman_nue * kalman_lambda + 1 - kalman_nue)
    return list(everything.tensor_split(ends[:-1])), P_new, lambda_next


def _block_ends(sizes: list[int], device: torch.device) -> torch.Tensor:
    """Where the blocks of all ranks end in the joined weights, on the host; the own ones have these sizes."""
    # Sizes travel as marks on the last row of each block: together they are as long on every rank.
    marks = torch.zeros(sum(sizes), dtype=torch.uint8)
    marks[torch.tensor(sizes).cumsum(0) - 1] = 1
    marks = marks.to(device)
    all_marks = marks.new_empty(dist.get_world_size() * marks.shape[0])
    dist.all_gather_into_tensor(all_marks, marks)
    return all_marks.cpu().nonzero().flatten() + 1
