"""Newton-Schulz orthogonalization of a tensor-parallel momentum matrix.

Each rank of the group (W ranks, in group order) holds `x`, its part of a matrix [m, n] cut into W equal parts along
`partition_dim`: [m, n/W] for 1, [m/W, n] for 0. X = all parts joined, in float32, divided by max(||X||_F, 1e-7). For
t = 0 to `steps` - 1, with (a, b, c) = entry t mod L of the L coefficients of `coefficient_type`, and A = X X^T:
X <- a X + (b A + c A A) X, that is s <- a s + b s^3 + c s^5 for the singular values, so X^T X may take the place of
X X^T. Coefficients are those of the table below, names its keys ("simple", "quintic", "polar_express", "aol"). Each
rank returns its own part of X in a new tensor of the shape and dtype of x, which need not be contiguous. Shapes,
dtypes (bf16 or fp32) and options are equal on all ranks. An AssertionError is raised for a name that is not in the
table, a partition_dim other than 0 and 1, an x that is no matrix, and steps that are no multiple of L. `group` None is
the default group. The input stays as it was.
"""

import torch
import torch.distributed as dist

_COEFFICIENTS = {
    "simple": ((3.4445, -4.7750, 2.0315),),
    "quintic": (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    "polar_express": (
        (8.2051, -22.9019, 16.4607),
        (4.0664, -2.8612, 0.5184),
        (3.9096, -2.8234, 0.5250),
        (3.2856, -2.4647, 0.5074),
        (2.2779, -1.6447, 0.4162),
        (1.8726, -1.2307, 0.3585),
        (1.8564, -1.2132, 0.3568),
        (1.8750, -1.2500, 0.3750),
    ),
    "aol": (
        (4.0098, -7.0585, 2.4635),
        (3.4585, -5.5479, 2.5959),
        (2.7573, -3.2939, 1.4254),
        (2.7215, -3.0494, 1.3169),
    ),
}


def solution(
    x: torch.Tensor,
    steps: int = 5,
    coefficient_type: str = "quintic",
    partition_dim: int = 1,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    assert x.ndim == 2, "x has to be a matrix"
    assert partition_dim in (0, 1), "partition_dim has to be 0 or 1"
    assert coefficient_type in _COEFFICIENTS, f"coefficient_type has to be one of {sorted(_COEFFICIENTS)}"
    coefficients = _COEFFICIENTS[coefficient_type]
    assert steps % len(coefficients) == 0, "steps have to be a multiple of the number of coefficients"
    # Each rank has all rows of some columns of X: the Gram matrix is a sum over ranks.
    X = (x if partition_dim == 1 else x.mT).float()
    square = torch.linalg.vector_norm(X).square()
    dist.all_reduce(square, op=dist.ReduceOp.SUM, group=group)
    X = X / square.sqrt().clamp_min(1e-7)
    for step in range(steps):
        a, b, c = coefficients[step % len(coefficients)]
        A = X @ X.mT
        dist.all_reduce(A, op=dist.ReduceOp.SUM, group=group)
        X = torch.addmm(X, torch.addmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X if partition_dim == 1 else X.mT).to(x.dtype)
