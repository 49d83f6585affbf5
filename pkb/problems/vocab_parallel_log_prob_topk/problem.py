"""Judge's side of vocab_parallel_log_prob_topk.

The contract filters and adds in float32 whatever the dtype of the logits, so rows need a margin of 1e-4 alone and the
tolerance is the same in both dtypes; the published baseline adds in the logits' dtype. The baseline sorts values
alone: since any of equal logits may be cut off, a target stays if it is no smaller than the smallest that is kept.
`tiny` has fewer tokens than the others, so that it costs less than `base` with 8 ranks too.
"""

from collections.abc import Iterator
from typing import Any

from pkb.problems._check import Bound, within
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size
from pkb.problems._vocab_filter import logits_and_target, options
from pkb.problems._vocab_log_prob import exchange_cost, log_probs, wrong_log_probs

# `vocab` and `seq` count those of all ranks, `..._per_rank` a rank's part.
PROBLEM = Problem(
    number=82,
    group="loss",
    parallelism="tp (vocab)",
    origin="NeMo-RL distributed log-probabilities with sampling filters",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "seq_per_rank": 1, "vocab_per_rank": 9, "top_k": 10, "top_p": 0.9},
        "tiny_both": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 10, "top_p": 0.9},
        "tiny_top_p": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": None, "top_p": 0.8},
        "tiny_top_k": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 5, "top_p": 1.0},
        "tiny_all": {"batch": 2, "seq_per_rank": 2, "vocab_per_rank": 9, "top_k": None, "top_p": 1.0},
        "tiny_many": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 400, "top_p": 0.7},
        "base": {"batch": 2, "seq": 8, "vocab": 256, "top_k": 10, "top_p": 0.9},
        "large": {"batch": 1, "seq": 4096, "vocab": 131072, "top_k": 50, "top_p": 0.95},
    },
    check=within(Bound(rel=5e-5, floor=5e-5)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    arguments = logits_and_target(size, draw)
    if size["top_k"] is None and size["top_p"] == 1.0 and draw.index % 4 == 0:
        return arguments
    return *arguments, *options(size, draw)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    return log_probs(inputs_of_all_ranks)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    return exchange_cost(size, world_size, dtype)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    yield from wrong_log_probs(inputs_of_all_ranks)
