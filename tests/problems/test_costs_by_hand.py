"""Costs of three problems of each group (all of them in smaller groups) against figures worked out by hand.

A figure is the least that any solution must do: bytes over the link of the busiest rank, bytes of device memory with
each operand passing once, operations. W is the number of ranks and e the bytes of an element. An all-reduce of n
elements by slices moves 2 (W - 1) / W n e, one added by a switch (1 + 1 / W) n e: at W = 2 slices are less, at W = 4
the switch is. None stands for a figure with more than one reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log2
from typing import Any

import pytest
from problem_cases import judgeside, problem_of

from pkb.problems._spec import Dtype


@dataclass(frozen=True)
class About:
    """A figure that is known to 10 % only: an estimate of operations, or an expectation over draws."""

    figure: float


Figure = float | About | None


@dataclass(frozen=True)
class At:
    """A problem at a size (a name, or dimensions of its own), a number of ranks and a dtype."""

    problem_id: str
    size: str | Mapping[str, Any]
    world_size: int
    dtype: Dtype


@dataclass(frozen=True)
class Row:
    """What one rank's call must cost there."""

    at: At
    link: Figure
    hbm: Figure
    flops: Figure

    def __str__(self) -> str:
        return f"{self.at.problem_id}-w{self.at.world_size}-{self.at.dtype}"


ROWS = [
    # collective
    Row(
        At("allreduce", {"shape": (1024, 1024)}, 4, "bf16"),
        link=(1 + 1 / 4) * 1024 * 1024 * 2,  # a switch adds; by slices it were 2 * 3 / 4
        hbm=2 * 1024 * 1024 * 2,  # read, written
        flops=3 / 4 * 1024 * 1024,  # W - 1 additions for each element of the own slice
    ),
    Row(
        At("allreduce", {"shape": (1024, 1024)}, 2, "fp32"),
        link=2 * 1 / 2 * 1024 * 1024 * 4,  # by slices, 2 (W - 1) / W; a switch would take 1 + 1 / 2
        hbm=2 * 1024 * 1024 * 4,
        flops=1 / 2 * 1024 * 1024,
    ),
    Row(
        At("allgather", {"shape": (1000,)}, 2, "fp32"),
        link=1 * 1000 * 4,  # one peer's tensor arrives
        hbm=(1 + 2) * 1000 * 4,  # own tensor read, both written
        flops=0,
    ),
    Row(
        At("reducescatter", {"rows_per_rank": 8, "shape": (100,)}, 4, "fp32"),
        link=3 / 4 * (4 * 8 * 100) * 4,  # all but the own block leaves
        hbm=(4 * 8 * 100 + 8 * 100) * 4,  # the whole input read, one block written
        flops=3 * 8 * 100,  # W - 1 additions an element of the own block
    ),
    # norm
    Row(
        At("layernorm_backward", {"rows": 100, "hidden": 64}, 2, "fp32"),
        link=2 * (2 * 1 / 2) * 64 * 4,  # two all-reduced vectors, by slices
        hbm=2 * 100 * 64 * 4 + 2 * 64 * 4,  # X_hat and dY read, two vectors written
        flops=3 * 100 * 64,  # a product and two additions
    ),
    Row(
        At("tp_rms_norm", {"rows": (100,), "hidden_per_rank": 64}, 2, "bf16"),
        link=8 * 100 * 1 / 2,  # one float32 a row all-reduced: 2 (W - 1) / W times 4 bytes
        hbm=2 * 100 * 64 * 2 + 64 * 2,  # x read, y written, the weight read
        flops=4 * 100 * 64,  # square, addition, two products
    ),
    Row(
        At("reducescatter_fused_rmsnorm", "large", 4, "bf16"),
        link=3 / 4 * 2**27 * 2,  # 16384 rows of 8192 in all; three of four chunks leave
        hbm=2**27 * 2 + 2**27 / 4 * 2 + 8192 * 2,  # everything read, own chunk written, gamma read
        flops=About((3 + 1 + 2 + 2) * 2**27 / 4),  # sum, mean, square and its sum, two products: per own element
    ),
    # recommendation
    Row(
        At("embedding_lookup", "base", 4, "bf16"),
        # 614 of 1024 indices are uniform over 4096 rows, the others name five rows of the hot owner, and a row need
        # come once: the owner serves a quarter of the different rows, and five, to each of three peers.
        link=About(3 * (4096 * (1 - exp(-0.6 * 1024 / 4096)) / 4 + 5) * 1024 * 2),
        # It reads what anybody asks of it once, and writes 1024 rows; an index is 8 bytes.
        hbm=About((4096 * (1 - exp(-0.6 * 4096 / 4096)) / 4 + 5 + 1024) * 1024 * 2 + 1024 * 8),
        flops=0,
    ),
    Row(
        At("torchrec_kjt_all2all", "base", 2, "fp32"),
        # One key on rank 0, two on rank 1; 512 bags a key and rank, each 8 bytes of length and 12.5 int64 values.
        link=2 * 512 * (8 + 12.5 * 8),  # rank 1 gets two keys from rank 0
        hbm=(3 + 4) * 512 * (8 + 12.5 * 8),  # rank 1 reads its three keys, writes two keys of both ranks
        flops=0,
    ),
    # gemm
    Row(
        At("allgather_gemm", {"m": 100, "k": 64, "n": 48}, 4, "bf16"),
        link=3 / 4 * 100 * 64 * 2,  # the other ranks' columns of A
        hbm=(100 * 64 + 64 * 48 + 100 * 48) * 2,  # A, B, C
        flops=2 * 100 * 48 * 64,
    ),
    Row(
        At("gemm_allreduce", {"m": 128, "k": 32, "n": 64}, 2, "fp32"),
        link=2 * 1 / 2 * 128 * 64 * 4,  # all-reduce of C by slices
        hbm=(128 * 32 + 32 * 64 + 128 * 64) * 4,  # A, B, C
        flops=2 * 128 * 64 * 32 + 128 * 64 / 2,  # product, and the sum over ranks of the own half
    ),
    Row(
        At("gemv_decode", {"tokens": 2, "hidden": 512, "words_per_rank": 300}, 4, "bf16"),
        link=3 * 2 * 300 * 2,  # logits of three peers
        hbm=(300 * 512 + 300 + 2 * 512 + 2 * 4 * 300) * 2,  # weight, bias, hidden states, all logits
        flops=2 * 2 * 512 * 300,
    ),
    # sequence-parallel
    Row(
        At("rope_allgather", {"batch": 2, "length_per_rank": 8, "heads": 4, "head_dim": 16}, 4, "bf16"),
        link=3 * 2 * (2 * 8 * 4 * 16) * 2,  # q and k of three peers
        # q and k read; cos and sin read; q and k of all written
        hbm=2 * (2 * 8 * 4 * 16) * 2 + 2 * (2 * 8 * 16) * 2 + 4 * 2 * (2 * 8 * 4 * 16) * 2,
        flops=2 * 3 * (2 * 8 * 4 * 16),  # two products and a sum for each element of q and k
    ),
    Row(
        At("ulysses_all_to_all_tensor_primitive", {"layouts": (((64, 48), 0, 1),)}, 4, "bf16"),
        link=3 / 4 * 64 * 48 * 2,  # one quarter stays
        hbm=2 * 64 * 48 * 2,
        flops=0,
    ),
    Row(
        At("ulysses_gather_heads_scatter_seq", {"layouts": (((2, None, 3, 5), 1, 2),), "lengths": (9,)}, 4, "bf16"),
        link=3 / 4 * (2 * 12 * 3 * 5) * 2,  # the sequence of 9 is padded to 12
        hbm=2 * (2 * 12 * 3 * 5) * 2,
        flops=0,
    ),
    # quantization
    Row(
        At("blocked_fp8_quantize", {"shape": (16, 256), "block_size": 128}, 4, "bf16"),
        link=3 * (16 * 256 + 4 * 16 * 2),  # codes of a byte and two float32 scales a row, from three peers
        hbm=16 * 256 * 2 + 4 * (16 * 256 + 4 * 16 * 2),  # input read, everybody's codes and scales written
        flops=About(3 * 16 * 256),
    ),
    Row(
        At("quantized_grad_allreduce", {"shapes": ((4096,),), "blocks": (128,)}, 4, "bf16"),
        link=3 * 1024 * (1 + 4 / 128 + 2),  # codes and scales of three slices out, three times the bf16 mean of the own
        hbm=None,  # gradient read and written, and passes over a quantized copy
        flops=None,
    ),
    Row(
        At("quantized_grad_allreduce", {"shapes": ((4096,),), "blocks": (128,)}, 2, "bf16"),
        link=4096 * (1 + 4 / 128),  # everything quantized to the only peer is less than two passes
        hbm=None,
        flops=None,
    ),
    Row(
        At("fp8_allgather_params", {"shard": 4096}, 4, "bf16"),
        link=3 * (4096 + 4),  # a byte an element, and a float32 scale, from three peers
        hbm=2 * 4096 * 2 + 4 * 4096 * 2,  # the shard read for the maximum and to quantize, all four written
        flops=About(4 * 4 * 4096),
    ),
    Row(
        At("fp8_reduce_scatter_grads", {"shard": 4096}, 4, "fp32"),
        link=3 * (4096 + 4),  # codes of three slices, and a scale each
        # read twice, own shard written, staged as bytes (about: the own slice need not be staged)
        hbm=About(2 * 16384 * 4 + 4096 * 4 + 16384),
        flops=About(4 * 16384),
    ),
    # optimizer
    Row(
        At("clip_grad_norm_no_ep", {"shapes": ((100, 50), (30,)), "p": 2.0}, 4, "bf16"),
        link=3 * 4,  # one float32 to three peers
        hbm=3 * (100 * 50 + 30) * 2 + 4,  # read for the norm, read and written to clip; the norm written
        flops=3 * (100 * 50 + 30),  # square, addition, product
    ),
    Row(
        At("fused_adam_grad_unshard_allgather", {"length": 4096, "more": 0}, 4, "bf16"),
        link=3 * 4096 * 2,  # new shards of three peers
        hbm=4 * 4096 * 2 + 4 * 4096 * 2,  # gradient, master and two moments read; four shards written
        flops=About(15 * 4096),
    ),
    Row(
        At("tp_muon_orthogonalization", "base", 4, "bf16"),
        # Five steps all-reduce a 512 x 512 Gram matrix, half of it by symmetry (about: but for the diagonal), in bf16
        link=About(5 * (1 + 1 / 4) * 512 * 512 / 2 * 2),
        hbm=2 * 512 * 128 * 2,  # own columns read and written
        flops=None,  # depends on what is shared out over ranks
    ),
    # loss
    Row(
        At("vocab_parallel_cross_entropy_loss", {"tokens": (2, 32), "vocab_per_rank": 64}, 2, "fp32"),
        link=3 * 4 * 64,  # maximum, sum and target logit of each of 64 tokens
        hbm=64 * 64 * 4 + 64 * 8 + 64 * 4,  # logits, targets, losses
        flops=About(4 * 64 * 64),
    ),
    Row(
        At("openclip_contrastive_loss", {"pairs": 32, "width": 64}, 4, "bf16"),
        link=3 * 32 * 64 * 2,  # texts of three peers
        hbm=(4 + 1) * 32 * 64 * 2,  # all texts and the own images
        flops=2 * 32 * (4 * 32) * 64,
    ),
    Row(
        At("dinov2_distributed_sinkhorn_knopp", {"samples": 64, "prototypes": 256, "iterations": (3,)}, 4, "fp32"),
        # A sum a prototype and iteration, added by a switch (about: mass and count of all samples besides)
        link=About(3 * (1 + 1 / 4) * 256 * 4),
        hbm=(3 + 1 + 1) * 64 * 256 * 4,  # a pass an iteration, one more for the result, which is written
        flops=About(4 * 4 * 64 * 256),
    ),
    # moe
    Row(
        At(
            "load_balancing_loss_fn",
            {"experts": 16, "top_k": 2, "layers": 2, "batch": 1, "seq": 512, "more": 0},
            4,
            "bf16",
        ),
        link=3 * 4,  # one float32 from three peers
        hbm=2 * 512 * 16 * 2 + 4,  # logits read, the loss written
        flops=About(10 * 2 * 512 * 16),
    ),
    Row(
        At("moe_token_preprocess", {"rows": 1024, "num_experts": 8, "top_k": (2, 2, 2)}, 4, "bf16"),
        link=3 * 2 * 4,  # counts of the two own experts from three peers
        hbm=8 * 2 * 1024 * 4,  # the fp32 mask
        flops=About(8 * 2 * 1024),  # an addition an element
    ),
    Row(
        At("moe_pre_all2all", "base", 4, "bf16"),
        # Two of eight experts, two a rank: a rank hosts none of them with probability (6 * 5) / (8 * 7). A token goes
        # once to each of three peers that does.
        link=About(3 * (1 - 30 / 56) * 1024 * 1024 * 2),
        # states read, two rows a token written; fp32 mask of two slots and map; int64 mapping
        hbm=(1 + 2) * 1024 * 1024 * 2 + (2 + 1) * 8 * 1024 * 4 + 2 * 1024 * 8,
        flops=0,
    ),
    # attention
    Row(
        At(
            "ulysses_attention_e2e",
            {"batch": 2, "tokens": 8, "heads": 8, "d": 16, "hidden": 64, "out": 32, "causal": False, "own": True},
            4,
            "bf16",
        ),
        link=4 * 3 / 4 * (2 * 8 * 128) * 2,  # q, k, v there and the result back
        hbm=(3 * 128 * 64 + 32 * 128 + 2 * 8 * 64 + 2 * 8 * 32) * 2,  # both weights, input, output
        # projection of 16 tokens, scores and values of two of eight heads over 32 positions, output projection
        flops=2 * 16 * 64 * (3 * 128) + 2 * (2 * 2 * 32 * 32 * 2 * 16) + 2 * 16 * 128 * 32,
    ),
    Row(
        At("ring_attention", {"batch": 2, "block": 16, "heads": 4, "d": 8, "causal": False}, 4, "fp32"),
        link=3 * 2 * (2 * 16 * 4 * 8) * 4,  # keys and values of three peers
        hbm=None,
        flops=2 * (2 * 2 * 4) * 16 * 64 * 8,  # q K^T and P V: 2 batches of 4 heads, 16 queries, 64 keys
    ),
    Row(
        At(
            "fla_gated_deltanet_cp",
            {"batch": 1, "length": 16, "heads": 4, "share": 2, "keys": 32, "values": 16},
            4,
            "bf16",
        ),
        # q and k of 4 heads, v of 8, gate and beta go, o comes back; so short a sequence is less than its states
        link=3 / 4 * 16 * (2 * 4 * 32 + 8 * 16 + 2 * 8 + 8 * 16) * 2,
        hbm=16 * (2 * 4 * 32 + 8 * 16 + 2 * 8 + 8 * 16) * 2,  # the same tensors once
        flops=7 * 32 * 16 * (16 * 8),
    ),
    # spectral: n points of the field a rank; memory depends on how far real input is used
    Row(
        At("physicsnemo_distributed_rfft", "base", 2, "fp32"),
        link=1 / 2 * 8 * (16 * 1024 * 1024 / 2),  # complex64 after the first transform, half stays
        hbm=None,
        flops=2.5 * (16 * 1024 * 1024 / 2) * 20,  # log2 of 2^20 points
    ),
    Row(
        At("physicsnemo_distributed_irfft", "base", 2, "fp32"),
        link=1 / 2 * 8 * (2 * 10 * 720 * 1440 / 2),
        hbm=None,
        flops=2.5 * (2 * 10 * 720 * 1440 / 2) * log2(720 * 1440),
    ),
    # rendering
    Row(
        At("gsplat_3d_gaussian_splatting", "large", 4, "fp32"),
        # A camera sees 15 % of gaussians; 85 % are such that one of four cameras sees them, others none. A record has
        # two ids, two radii, 7 numbers and 3 colors.
        link=About(3 / 4 * 2**21 * 0.85 * 4 * 0.15 / (1 - 0.85**4) * (16 + 10 * 4)),
        hbm=About(2**21 * (11 + 3) * 4 + 2**21 * 0.85 * 4 * 0.15 / (1 - 0.85**4) * (16 + 10 * 4)),
        flops=About(200 * 2**21 * 4),
    ),
    Row(
        At("magi1_tile_parallel_vae_decode", "base", 4, "bf16"),
        # Three channels of latents, three quarters of the tiles: two tiles of 3 frames; steps of 24, tiles of 32, 32,
        # 32 and 18 along each side of 90.
        link=3 / 4 * 3 * (2 * 3) * (32 + 32 + 32 + 18) ** 2 * 2,
        hbm=About(3 * 24 * 720 * 720 * 2),  # the result (about: the latents, a thousandth, besides)
        flops=About(7 * 3 * 3 * 24 * 720 * 720),  # seven linear interpolations an element
    ),
    # convolution
    Row(
        At("hyena_conv1d_boundary_exchange", {"batch": 2, "hidden": 16, "chunk": 32, "taps": 5}, 4, "bf16"),
        link=2 * 2 * 16 * (5 - 1) * 2,  # the tails of two chunks
        hbm=2 * (2 * 16 * 64) * 2 + 16 * 5 * 2,  # x, y, and the weight
        flops=2 * 5 * (2 * 16 * 64),
    ),
    Row(
        At(
            "opensora_conv3d_allreduce",
            {"batch": 1, "channels": 32, "out": 8, "shape": (6, 10, 10), "kernel": (3, 3, 3)}
            | {"stride": 1, "paddings": (0,), "dilation": 1, "groups": 1},
            4,
            "bf16",
        ),
        link=(1 + 1 / 4) * (8 * 4 * 8 * 8) * 2,  # all-reduce of 8 channels of 4 x 8 x 8 by a switch
        hbm=(8 * 6 * 10 * 10 + 8 * 8 * 27 + 2 * (8 * 4 * 8 * 8)) * 2,  # input, weight, partial sums, result
        flops=2 * 27 * 8 * (8 * 4 * 8 * 8),  # 27 taps of 8 input channels
    ),
    Row(
        At(
            "conv2d_boundary_exchange",
            {"channels": 16, "out": 8, "height": 32, "width": 64, "options": ((3, 1, 1),)},
            4,
            "bf16",
        ),
        link=2 * 16 * 64 * 2,  # one row to each neighbor
        hbm=(16 * 32 * 64 + 8 * 32 * 64 + 8 * 16 * 9) * 2,  # x, result, weight
        flops=2 * 9 * 16 * (8 * 32 * 64),
    ),
    # graph
    Row(
        At("gnn_feature_exchange_all2all", "base", 4, "bf16"),
        link=3 / 4 * 1024 * 128 * 2,  # 256 rows a pair
        hbm=2 * 1024 * 128 * 2 + 1024 * 8,  # rows read and written, int64 ids read
        flops=0,
    ),
    Row(
        At("gnn_sparse_embedding_all2all", "base", 4, "bf16"),
        # 30 to 60 % of the rows go to one owner, who also gets a quarter of the others; an id and 128 values each
        link=About(3 * (0.45 + 0.55 / 4) * 1024 * (8 + 128 * 2)),
        hbm=About((1 + 4 * (0.45 + 0.55 / 4)) * 1024 * (8 + 128 * 2)),  # own rows read, that owner's written
        flops=0,
    ),
    Row(
        At("gnn_negative_scoring", {"rows": 1024, "more": 0, "negatives": 1000}, 4, "bf16"),
        link=3 * 1024 * 4,  # rankings of three peers' rows: 4 bytes are enough
        hbm=1024 * 1001 * 2 + 4 * 1024 * 8,  # scores read, all rankings written as int64
        flops=1024 * 1000,  # a comparison a score
    ),
    # retrieval
    Row(
        At("dinov2_distributed_knn", {"dim": 64, "k": 8, "columns": 1024, "queries": 16}, 4, "bf16"),
        link=3 * 16 * 64 * 2 + 3 * 16 * 8 * (2 + 8),  # queries in; similarity and label of three peers' candidates
        hbm=1024 * 64 * 2 + 4 * 16 * 64 * 2 + 16 * 8 * (2 + 8),  # columns, all queries, result
        flops=2 * 64 * 1024 * (4 * 16),
    ),
    # vision: three objects on each of four ranks
    Row(
        At("sam3_allgather_iou_suppression", {"height": 16, "width": 32, "counts": (3,)}, 4, "bf16"),
        link=9 * (16 * 32 + 1) * 2,  # masks and scores of nine objects
        hbm=3 * (16 * 32 + 1) * 2 + 12 * (16 * 32 + 1) * 4,  # own ones read, all written in float32
        flops=None,
    ),
    # sort
    Row(
        At("distributed_sample_sort", {"values": 10000, "more": 0, "modes": ("normal",)}, 4, "fp32"),
        link=3 / 4 * 10000 * 4,  # each value moves once
        hbm=4 * 2 * 10000 * 4,  # four radix passes of a byte each, read and written
        flops=0,
    ),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_cost_is_what_a_hand_finds(row: Row) -> None:
    at = row.at
    size = problem_of(at.problem_id).sizes[at.size] if isinstance(at.size, str) else at.size
    cost = judgeside(at.problem_id).cost(size, at.world_size, at.dtype)
    for name, got, want in (
        ("link bytes", cost.link_bytes, row.link),
        ("memory bytes", cost.hbm_bytes, row.hbm),
        ("operations", cost.flops, row.flops),
    ):
        if want is not None:
            assert got == _approx(want), name


def test_every_group_has_rows() -> None:
    groups = {problem_of(row.at.problem_id).group for row in ROWS}
    assert len(groups) == 17


def _approx(want: float | About) -> Any:
    return pytest.approx(want.figure, rel=0.1) if isinstance(want, About) else pytest.approx(want, rel=1e-6)
