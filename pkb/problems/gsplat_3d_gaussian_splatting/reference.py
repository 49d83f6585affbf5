"""Project local gaussians into the cameras of all ranks and send the visible ones to the camera's rank.

Each of W ranks holds N gaussians, `means` [N, 3], `quats` [N, 4] as (w, x, y, z), `scales` [N, 3], `opacities` [N],
`colors` [N, D], and C cameras, `viewmats` [C, 4, 4] and `Ks` [C, 3, 3]. N may differ by rank; C, D, the dtype and all
other arguments are equal. `camera_model` is always "pinhole". With w = `image_width`, h = `image_height`, each gaussian
(mu, q, s) of a rank is projected into each camera (R, t: the first three rows of its view matrix; K) of all ranks:
  Sigma = R_q diag(s^2) R_q^T, with R_q the rotation of q / |q|; p = R mu + t = (x, y, z); depth = z;
  pixel = (K[0:2] p) / z; fx, fy, cx, cy = K[0, 0], K[1, 1], K[0, 2], K[1, 2];
  u = x / z clamped to [-(cx/fx + 0.15 w/fx), (w - cx)/fx + 0.15 w/fx], v = y / z likewise with h, fy, cy;
  J = [[fx/z, 0, -fx u/z], [0, fy/z, -fy v/z]] (u, v and J serve the next line alone);
  A = J R Sigma R^T J^T + `eps2d` I; conic = (A11, -(A01 + A10)/2, A00) / max(det A, 1e-10);
  radius = (ceil(3.33 sqrt(A00)), ceil(3.33 sqrt(A11))).
It is visible if `near_plane` < z < `far_plane`, pixel_x + radius_x > 0, pixel_x - radius_x < w, pixel_y + radius_y > 0,
pixel_y - radius_y < h, and both radii are > 0. Compute in float32 or better: radii and visibility must come out right.

Rank d returns new tensors with a row for each visible pair of a gaussian of any rank and a camera of its own, by rank
of the gaussian, then by camera, then by place of the gaussian on its rank: (camera_ids [n] int32, the place of the
camera on rank d; gaussian_ids [n] int32, the place of the gaussian plus the number of gaussians on the ranks before
its own (in place of that number, for all rows alike, the number on the ranks before d is accepted too); radii [n, 2]
int32; means2d [n, 2], the pixels; depths [n]; conics [n, 3]; opacities [n] and colors [n, D], exact copies). n may be
0, and a rank may have nothing for a camera. Floating results have the dtype of the inputs, which stay as they were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F


def solution(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor,
    colors: torch.Tensor,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    image_width: int,
    image_height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    camera_model: str = "pinhole",
) -> tuple[torch.Tensor, ...]:
    world_size, rank = dist.get_world_size(), dist.get_rank()
    num_own = viewmats.shape[0]
    own_cameras = torch.cat([viewmats.flatten(1), Ks.flatten(1)], dim=1)
    cameras = own_cameras.new_empty((world_size * num_own, own_cameras.shape[1]))
    dist.all_gather_into_tensor(cameras, own_cameras)
    V, K = cameras[:, :16].view(-1, 4, 4).float(), cameras[:, 16:].view(-1, 3, 3).float()

    points, pixels, A = _project(means.float(), _factors(quats, scales), V, K, (image_width, image_height))
    depth = points[..., 2]
    a, b, c = A[0] + eps2d, A[1], A[2] + eps2d
    radii = (3.33 * torch.stack([a, c], dim=-1).sqrt()).ceil()
    extent = pixels.new_tensor([image_width, image_height])
    visible = (near_plane < depth) & (depth < far_plane) & (radii > 0).all(dim=-1)
    visible &= ((pixels + radii > 0) & (pixels - radii < extent)).all(dim=-1)

    # Counts by owner of the camera, and how many gaussians there are: read on the host once.
    own_counts = torch.cat([visible.view(world_size, -1).sum(dim=1), torch.full((1,), len(means), device=means.device)])
    counts = own_counts.new_empty((world_size, world_size + 1))
    dist.all_gather_into_tensor(counts.view(-1), own_counts)
    by_rank = counts.tolist()
    sent, received = by_rank[rank][:-1], [one[rank] for one in by_rank]
    first = sum(one[-1] for one in by_rank[:rank])

    camera, gaussian = visible.nonzero(as_tuple=True)
    a, b, c = a[visible], b[visible], c[visible]
    conics = torch.stack([c, -b, a], dim=-1) / (a * c - b * b).clamp_min(1e-10)[:, None]
    integers = torch.stack([camera % num_own, gaussian + first, *radii[visible].long().unbind(dim=1)], dim=1).int()
    numbers = torch.cat([pixels[visible], depth[visible][:, None], conics], dim=1).to(means.dtype)
    numbers = torch.cat([numbers, opacities[gaussian][:, None], colors[gaussian]], dim=1)
    camera_ids, gaussian_ids, x, y = _exchange(integers, sent, received).unbind(dim=1)
    got = _exchange(numbers, sent, received)
    return (
        camera_ids.contiguous(),
        gaussian_ids.contiguous(),
        torch.stack([x, y], dim=1),
        *(part.contiguous() for part in (got[:, :2], got[:, 2], got[:, 3:6], got[:, 6], got[:, 7:])),
    )


def _factors(quats: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """M [N, 3, 3] with Sigma = M M^T."""
    w, x, y, z = F.normalize(quats.float(), dim=-1).unbind(dim=-1)
    rows = [
        torch.stack([1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)], dim=-1),
        torch.stack([2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)], dim=-1),
        torch.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)], dim=-1),
    ]
    return torch.stack(rows, dim=-2) * scales.float()[:, None, :]


def _project(
    means: torch.Tensor, factors: torch.Tensor, V: torch.Tensor, K: torch.Tensor, image: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Points [cameras, N, 3], pixels [cameras, N, 2], and A00, A01, A11 without eps2d, each [cameras, N]."""
    R = V[:, :3, :3]
    points = means @ R.mT + V[:, None, :3, 3]
    z = points[..., 2:]
    pixels = points @ K[:, :2].mT / z
    focal, center = torch.stack([K[:, 0, 0], K[:, 1, 1]], dim=1), K[:, :2, 2]
    extent = center.new_tensor(image)
    least, most = -(center + 0.15 * extent) / focal, (1.15 * extent - center) / focal
    slopes = (points[..., :2] / z).clamp(least[:, None], most[:, None])
    # Rows of J R M, of which A is made.
    rows = [(focal[:, None, i, None] / z) * (R[:, None, i] - slopes[..., i, None] * R[:, None, 2]) for i in range(2)]
    first, second = (torch.einsum("cni,nij->cnj", row, factors) for row in rows)
    return points, pixels, [(p * q).sum(dim=-1) for p, q in ((first, first), (first, second), (second, second))]


def _exchange(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
    got = rows.new_empty((sum(received), rows.shape[1]))
    dist.all_to_all_single(got, rows, received, sent)
    return got
