"""Judge's side of gsplat_3d_gaussian_splatting.

The contract asks for float32 arithmetic in either dtype, so bf16 has the margins that float32 has (in the catalogue
they are wider), and a tolerance of 1e-2, which float8 does not pass. K has a skew in all draws. A gaussian is drawn
again unless each camera clearly sees it with clear radii, or clearly does not see it; 15 % are seen by no camera. In
every third draw the last of several cameras sees nothing. The far plane, where there is one, is at 2.5: hardly any
gaussian lies behind the catalogue's 3.5. The baseline sends integers and numbers in two exchanges.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import pi
from typing import Any

import torch

from pkb.problems._check import Expected, accepts, exact, relative
from pkb.problems._draw import Draw, keep_first
from pkb.problems._spec import Cost, Dtype, Problem, Size, dtype_bytes

# Rank r has `gaussians` + r * `more`. `channels` and `cameras` of a rank take turns. Scales are `scale` plus `spread`
# times U, or U^2 where `is_skewed`.
PROBLEM = Problem(
    number=61,
    group="rendering",
    parallelism="gaussians over ranks, cameras over ranks",
    origin="gsplat's distributed rasterization (Grendel-style), everything before tile sorting",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"gaussians": 40, "more": 7, "channels": (3, 4, 5), "cameras": (1, 2, 2), "image": (96, 64)}
        | {"scale": 0.02, "spread": 0.1, "is_skewed": True},
        "base": {"gaussians": 1024, "more": 0, "channels": (3,), "cameras": (1,), "image": (512, 512)}
        | {"scale": 0.005, "spread": 0.02, "is_skewed": False},
        "large": {"gaussians": 2**21, "more": 0, "channels": (3,), "cameras": (1,), "image": (1920, 1080)}
        | {"scale": 0.005, "spread": 0.02, "is_skewed": False},
    },
    check=relative(bf16=1e-2, fp32=1e-4),
)

Gaussians = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
NEAR = 0.2
UNSEEN_SHARE = 0.15
SEEN_SHARE = 0.15
"""Of gaussians as drawn, those that one camera sees."""
MARGIN = 1e-3
PIXEL_MARGIN = 0.02


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    index, world_size = draw.index, draw.world_size
    num_own = size["cameras"][index % len(size["cameras"])]
    V, K = _cameras(draw, num_own * world_size, size["image"])
    far = 2.5 if index % 2 == 1 else 1e10
    width, height = size["image"]
    lens = _Lens(width, height, far=far)
    gaussians = _gaussians(size, draw, lambda one: _visibility(_project(one, V, K, lens), lens))
    own = slice(draw.rank * num_own, (draw.rank + 1) * num_own)
    arguments = (*gaussians, V[own].clone(), K[own].clone(), width, height, lens.eps, lens.near)
    return (*arguments, far, "pinhole") if index % 2 == 1 else arguments


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[tuple[Any, ...]]:
    return [_answer(inputs_of_all_ranks, rank) for rank in range(world_size)]


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Mean numbers of visible pairs: all but the share of unseen gaussians are such that some camera sees them. A record
    # has two ids, two radii and 7 + D numbers. Gaussians are read once, records written where they arrive; a projection
    # takes about 200 operations.
    num_bytes, channels = dtype_bytes(dtype), size["channels"][0]
    num_cameras = world_size * size["cameras"][0]
    count = size["gaussians"] + size["more"] * (world_size - 1) / 2
    some = 1 - (1 - SEEN_SHARE) ** num_cameras
    pairs = count * (1 - UNSEEN_SHARE) * num_cameras * SEEN_SHARE / some
    record_bytes = 16 + (7 + channels) * num_bytes
    return Cost(
        link_bytes=(world_size - 1) / world_size * pairs * record_bytes,
        hbm_bytes=count * (11 + channels) * num_bytes + pairs * record_bytes,
        flops=200.0 * count * num_cameras,
    )


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    world_size = len(expected)
    ranks = range(world_size)
    plain = [_plain(one) for one in expected]

    def answers(**changes: Any) -> list[Any]:
        return [_plain(_answer(inputs_of_all_ranks, rank, **changes)) for rank in ranks]

    def set_part(i: int, make: Callable[[int, tuple[torch.Tensor, ...]], torch.Tensor]) -> list[Any]:
        """The answers with another part i."""
        return [(*one[:i], make(rank, one), *one[i + 1 :]) for rank, one in enumerate(plain)]

    yield "clamped pixel", answers(clamps_pixel=True)
    yield "slopes not clamped", answers(clamps_slopes=False)
    yield "skew left out", answers(has_skew=False)
    yield "quaternions as (x, y, z, w)", answers(scalar_last=True)
    yield "scales not squared", answers(power=1)
    yield "eps2d left out", answers(eps=0.0)
    yield "far plane left out", answers(far=float("inf"))
    yield "culled by centers", answers(culls_centers=True)
    yield "one radius for both axes", set_part(2, lambda _, p: p[2].amax(1, keepdim=True).expand(-1, 2).contiguous())
    yield "radii rounded down", set_part(2, lambda _, p: p[2] - 1)
    yield "radii exchanged", set_part(2, lambda _, p: p[2].flip(1))
    yield "distance for depth", answers(has_distance=True)
    yield "conic not inverted", answers(inverts=False)
    yield "conic with the other sign", set_part(5, lambda _, p: p[5] * p[5].new_tensor([1.0, -1.0, 1.0]))
    yield "opacity of the packed index", set_part(6, lambda r, p: _packed(inputs_of_all_ranks[r][3], len(p[6])))
    yield "color of the packed index", set_part(7, lambda r, p: _packed(inputs_of_all_ranks[r][4], len(p[7])))
    yield "order within a camera reversed", [_reordered(one, -one[1]) for one in plain]
    num_own = inputs_of_all_ranks[0][5].shape[0]
    if num_own > 1:
        yield "by gaussian, then by camera", [_reordered(one, one[1]) for one in plain]
        if world_size > 1:
            yield "by camera, then by rank", [_reordered(one, one[0]) for one in plain]
    if world_size == 1:
        return
    yield "global camera ids", set_part(0, lambda r, p: p[0] + r * num_own)
    yield "own gaussians alone", [_plain(_answer(inputs_of_all_ranks, r, sources=[r])) for r in ranks]
    yield (
        "peers' gaussians alone",
        [_plain(_answer(inputs_of_all_ranks, r, sources=[s for s in ranks if s != r])) for r in ranks],
    )
    turned = [[(r + j) % world_size for j in ranks] for r in ranks]
    yield "ranks in order of arrival", [_plain(_answer(inputs_of_all_ranks, r, sources=turned[r])) for r in ranks]
    starts = _starts(inputs_of_all_ranks)
    yield "local gaussian ids", set_part(1, lambda _, p: p[1] - starts[torch.bucketize(p[1], starts, right=True) - 1])
    if world_size > 2:
        count = inputs_of_all_ranks[0][0].shape[0]
        even = torch.arange(world_size, device=starts.device, dtype=starts.dtype) * count - starts
        yield (
            "as many gaussians on all ranks",
            set_part(1, lambda _, p: p[1] + even[torch.bucketize(p[1], starts, right=True) - 1]),
        )


@dataclass(frozen=True)
class _Lens:
    """What all cameras share. The last fields are what near misses do in another way."""

    width: int
    height: int
    eps: float = 0.3
    near: float = NEAR
    far: float = 1e10
    clamps_pixel: bool = False
    clamps_slopes: bool = True
    has_skew: bool = True
    scalar_last: bool = False
    power: int = 2
    culls_centers: bool = False
    has_distance: bool = False
    inverts: bool = True


@dataclass(frozen=True)
class _Projection:
    """Of each gaussian into each camera, [cameras, N, ...], float64."""

    depth: torch.Tensor
    pixel: torch.Tensor
    extent: torch.Tensor
    """3.33 standard deviations along both axes."""
    conic: torch.Tensor
    shown_depth: torch.Tensor


def _project(gaussians: Gaussians, V: torch.Tensor, K: torch.Tensor, lens: _Lens) -> _Projection:
    means, quats, scales = (part.double() for part in gaussians[:3])
    R, t, intrinsics = V[:, :3, :3].double(), V[:, :3, 3].double(), K.double()
    if lens.scalar_last:
        quats = quats.roll(1, 1)
    rotation = _rotations(quats)
    sigma = (rotation * scales.pow(lens.power)[:, None, :]) @ rotation.mT
    points = torch.einsum("cij,nj->cni", R, means) + t[:, None]
    z = points[..., 2]
    slope = points[..., :2] / z[..., None]
    focal = intrinsics.diagonal(dim1=1, dim2=2)[:, None, :2]
    center = intrinsics[:, None, :2, 2]
    image = torch.tensor([lens.width, lens.height], dtype=torch.float64, device=means.device)
    limit = 0.15 * image / focal
    clamped = slope.minimum((image - center) / focal + limit).maximum(-(center / focal + limit))
    shown = clamped if lens.clamps_pixel else slope
    pixel = shown * focal + center
    if lens.has_skew:
        pixel = pixel + torch.stack([shown[..., 1] * intrinsics[:, None, 0, 1], torch.zeros_like(z)], dim=-1)
    met = clamped if lens.clamps_slopes else slope
    J = torch.zeros((*z.shape, 2, 3), dtype=torch.float64, device=means.device)
    J[..., :2] = torch.diag_embed(focal / z[..., None])
    J[..., 2] = -focal * met / z[..., None]
    JR = J @ R[:, None]
    A = JR @ sigma @ JR.mT + lens.eps * torch.eye(2, dtype=torch.float64, device=means.device)
    upper = torch.stack([A[..., 1, 1], -A[..., 0, 1], A[..., 0, 0]], dim=-1)
    determinant = (A[..., 0, 0] * A[..., 1, 1] - A[..., 0, 1] * A[..., 1, 0]).clamp_min(1e-10)
    return _Projection(
        depth=z,
        pixel=pixel,
        extent=3.33 * A.diagonal(dim1=-2, dim2=-1).sqrt(),
        conic=upper / determinant[..., None] if lens.inverts else upper,
        shown_depth=points.norm(dim=-1) if lens.has_distance else z,
    )


def _rotations(quats: torch.Tensor) -> torch.Tensor:
    """q v q* as a matrix: what multiplying by q from the left and by its conjugate from the right does to v."""
    w, x, y, z = (quats / quats.norm(dim=-1, keepdim=True)).unbind(dim=-1)
    zero = torch.zeros_like(w)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).view(-1, 3, 3)
    vector = torch.stack([x, y, z], dim=-1)
    turned = w[:, None, None] * torch.eye(3, dtype=w.dtype, device=w.device) + cross
    rotation: torch.Tensor = vector[:, :, None] * vector[:, None, :] + turned @ turned
    return rotation


def _visibility(projection: _Projection, lens: _Lens) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether each camera sees each gaussian, and whether that and the radii are clear."""
    z, extent = projection.depth, projection.extent
    in_range = (z > lens.near) & (z < lens.far)
    slack = _slack(projection, lens)
    margin = PIXEL_MARGIN + MARGIN * extent.amax(dim=-1)
    is_ceiling_clear = ((extent * (1 - MARGIN)).ceil() == (extent * (1 + MARGIN)).ceil()).all(dim=-1)
    # Farther out than a pixel, a radius that is one too large does no harm.
    clear = ((slack > margin) & is_ceiling_clear) | (slack < -1 - margin)
    is_depth_clear = ((z - lens.near).abs() > 0.01) & ((z - lens.far).abs() > 0.01 * lens.far)
    return in_range & (slack > 0), is_depth_clear & (~in_range | clear)


def _slack(projection: _Projection, lens: _Lens) -> torch.Tensor:
    """Pixels by which a gaussian reaches into the image, negative outside."""
    image = torch.tensor([lens.width, lens.height], dtype=torch.float64, device=projection.depth.device)
    radius = 0.0 if lens.culls_centers else projection.extent.ceil()
    return torch.minimum(projection.pixel + radius, image - projection.pixel + radius).amin(dim=-1)


def _answer(
    inputs_of_all_ranks: list[tuple[Any, ...]], rank: int, sources: list[int] | None = None, **changes: Any
) -> tuple[Any, ...]:
    V, K, width, height, eps, near, *rest = inputs_of_all_ranks[rank][5:]
    lens = _Lens(width, height, **({"eps": eps, "near": near, "far": rest[0] if rest else 1e10} | changes))
    starts = _starts(inputs_of_all_ranks).tolist()
    parts = []
    for source in range(len(inputs_of_all_ranks)) if sources is None else sources:
        gaussians: Gaussians = inputs_of_all_ranks[source][:5]
        found = _project(gaussians, V, K, lens)
        visible = (found.depth > lens.near) & (found.depth < lens.far) & (_slack(found, lens) > 0)
        camera, place = visible.nonzero(as_tuple=True)
        radii = found.extent[visible].ceil().int()
        numbers = found.pixel[visible], found.shown_depth[visible], found.conic[visible]
        copies = gaussians[3][place], gaussians[4][place]
        parts.append((camera.int(), (place + starts[source]).int(), radii, *numbers, *copies, place + starts[rank]))
    camera, ids, radii, pixel, depth, conic, opacity, color, other_ids = (
        torch.cat(part) for part in zip(*parts, strict=True)
    )

    def is_wrong(got: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(got, dtype=torch.bool) if torch.equal(got.long(), other_ids) else got != ids

    copied = (Expected(part, check=exact()) for part in (opacity, color))
    return camera, Expected(ids, check=accepts(is_wrong)), radii, pixel, depth, conic, *copied


def _plain(answer: tuple[Any, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(part.value if isinstance(part, Expected) else part for part in answer)


def _reordered(answer: tuple[torch.Tensor, ...], key: torch.Tensor) -> tuple[torch.Tensor, ...]:
    order = key.argsort(stable=True)
    return tuple(part[order] for part in answer)


def _packed(values: torch.Tensor, count: int) -> torch.Tensor:
    """The first values, from the beginning again after the end."""
    return values[torch.arange(count, device=values.device) % len(values)]


def _starts(inputs_of_all_ranks: list[tuple[Any, ...]]) -> torch.Tensor:
    """Gaussians on the ranks before each one."""
    counts = torch.tensor([0, *(len(one[0]) for one in inputs_of_all_ranks[:-1])], dtype=torch.int32)
    return counts.cumsum(0, dtype=torch.int32).to(inputs_of_all_ranks[0][0].device)


def _cameras(draw: Draw, count: int, image: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """View matrices and Ks of all ranks, in the working dtype: inside the cloud, turned about y and tilted."""
    device = draw.device
    number = torch.arange(count, device=device)
    turn = 2 * pi * number / count + draw.shared_uniform(-0.2, 0.2, count)
    tilt = draw.shared_uniform(-0.3, 0.3, count)
    zero, one = torch.zeros_like(turn), torch.ones_like(turn)
    about_y = torch.stack([turn.cos(), zero, turn.sin(), zero, one, zero, -turn.sin(), zero, turn.cos()], dim=-1)
    about_x = torch.stack([one, zero, zero, zero, tilt.cos(), -tilt.sin(), zero, tilt.sin(), tilt.cos()], dim=-1)
    V = torch.zeros((count, 4, 4), device=device)
    V[:, :3, :3] = about_x.view(-1, 3, 3) @ about_y.view(-1, 3, 3)
    V[:, :3, 3] = draw.shared_normal(count, 3, scale=0.2).float() + torch.tensor([0.3, -0.2, 0.8], device=device)
    V[:, 2, 3] += 0.6 * (number % 3)
    V[:, 3, 3] = 1.0
    if draw.index % 3 == 2 and count > 1:
        V[-1, 2, 3] = -100.0
    width, height = image
    K = torch.zeros((count, 3, 3), device=device)
    K[:, 0, 0] = min(width, height) * draw.shared_uniform(0.7, 1.2, count)
    K[:, 1, 1] = 1.1 * K[:, 0, 0]
    K[:, 0, 1] = K[:, 0, 0] * draw.shared_uniform(0.05, 0.1, count)
    K[:, 0, 2], K[:, 1, 2], K[:, 2, 2] = 0.47 * width, 0.53 * height, 1.0
    return V.to(draw.dtype), K.to(draw.dtype)


def _gaussians(size: Size, draw: Draw, see: Callable[[Gaussians], tuple[torch.Tensor, torch.Tensor]]) -> Gaussians:
    """This rank's gaussians: drawn in blocks until enough of them are clearly seen by some camera, or by none."""
    count = size["gaussians"] + draw.rank * size["more"]
    num_unseen = round(UNSEEN_SHARE * count)
    channels = size["channels"][draw.index % len(size["channels"])]
    block = min(2**19, 16 * count)
    drawn: list[Gaussians] = []
    seen_blocks: list[torch.Tensor] = []
    kept_blocks: list[torch.Tensor] = []
    num_found = [0, 0]
    while num_found[0] < count - num_unseen or num_found[1] < num_unseen:
        spread = draw.uniform(0.0, 1.0, block, 3)
        one = (
            draw.uniform(-2.0, 2.0, block, 3).to(draw.dtype),
            draw.normal(block, 4),
            (size["scale"] + size["spread"] * (spread.square() if size["is_skewed"] else spread)).to(draw.dtype),
            draw.uniform(0.1, 0.9, block).to(draw.dtype),
            draw.uniform(0.0, 1.0, block, channels).to(draw.dtype),
        )
        visible, clear = see(one)
        seen, kept = visible.any(dim=0), clear.all(dim=0)
        num_found[0] += int((seen & kept).sum())
        num_found[1] += int((~seen & kept).sum())
        drawn.append(one)
        seen_blocks.append(seen)
        kept_blocks.append(kept)
    seen, kept = torch.cat(seen_blocks), torch.cat(kept_blocks)
    place = torch.arange(len(seen), device=draw.device)
    (is_seen,) = keep_first(count - num_unseen, seen & kept, place)
    (is_unseen,) = keep_first(num_unseen, ~seen & kept, place)
    chosen = torch.cat([is_seen, is_unseen]).sort().values
    means, quats, scales, opacities, colors = (torch.cat(part)[chosen] for part in zip(*drawn, strict=True))
    return means, quats, scales, opacities, colors
