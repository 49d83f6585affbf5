"""Judge's side of vocab_parallel_log_prob_topk_chunked.

The contract filters and adds in float32 whatever the dtype of the logits, so rows need a margin of 1e-4 alone and the
tolerance is the same in both dtypes; the published baseline adds in the logits' dtype. Which rank works on which token
of a chunk does not show in the result. `tiny` has fewer tokens than the others, so that it costs less than `base`
with 8 ranks too. Memory beyond the result is not limited here: a judge that wants chunks has to measure it.
"""

from collections.abc import Iterator
from typing import Any

import torch

from pkb.problems._check import Bound, Expected, within
from pkb.problems._draw import Draw
from pkb.problems._spec import Cost, Dtype, Problem, Size
from pkb.problems._vocab_filter import chunk_size, logits_and_target, options
from pkb.problems._vocab_log_prob import exchange_cost, log_probs, wrong_log_probs

# `vocab` and `seq` count those of all ranks, `..._per_rank` a rank's part; `chunk` is given where it is no multiple
# of the number of ranks.
PROBLEM = Problem(
    number=83,
    group="loss",
    parallelism="tp (vocab)",
    origin="NeMo-RL chunked distributed log-probabilities with sampling filters",
    world_sizes=(1, 2, 4, 8),
    sizes={
        "tiny": {"batch": 2, "seq_per_rank": 1, "vocab_per_rank": 9, "top_k": 10, "top_p": 0.9},
        "tiny_both": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 10, "top_p": 0.9},
        "tiny_top_p": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": None, "top_p": 0.8},
        "tiny_top_k": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 5, "top_p": 1.0},
        "tiny_all": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": None, "top_p": 1.0},
        "tiny_many": {"batch": 2, "seq_per_rank": 3, "vocab_per_rank": 9, "top_k": 400, "top_p": 0.7},
        "base": {"batch": 2, "seq": 8, "vocab": 256, "top_k": 10, "top_p": 0.9},
        "large": {"batch": 1, "seq": 4096, "vocab": 131072, "top_k": 50, "top_p": 0.95, "chunk": 512},
    },
    check=within(Bound(rel=5e-5, floor=5e-5)),
)


def inputs(size: Size, draw: Draw) -> tuple[Any, ...]:
    arguments = *logits_and_target(size, draw), *options(size, draw)
    if "seq" not in size and draw.world_size <= 2 and draw.index % 3 == 0:
        # The default chunk has as many tokens as the batch.
        return arguments
    return *arguments, chunk_size(size, draw)


def oracle(inputs_of_all_ranks: list[tuple[Any, ...]], world_size: int) -> list[Any]:
    return log_probs(inputs_of_all_ranks)


def cost(size: Size, world_size: int, dtype: Dtype) -> Cost:
    # Chunks change nothing in the least work.
    return exchange_cost(size, world_size, dtype)


def near_misses(expected: list[Any], inputs_of_all_ranks: list[tuple[Any, ...]]) -> Iterator[tuple[str, list[Any]]]:
    yield from wrong_log_probs(inputs_of_all_ranks)
    right = expected[0].value.flatten()
    batch = inputs_of_all_ranks[0][0].shape[0]
    per_chunk = batch * (inputs_of_all_ranks[0][5] if len(inputs_of_all_ranks[0]) > 5 else 1)
    tail = len(right) % per_chunk
    if tail and per_chunk < len(right):
        without = torch.cat((right[:-tail], torch.zeros_like(right[-tail:])))
        yield "short last chunk left out", _answer(without, expected)
    if len(right) // per_chunk > 1:
        first = right[:per_chunk].repeat(len(right) // per_chunk + 1)[: len(right)]
        yield "first chunk for all", _answer(first, expected)


def _answer(values: torch.Tensor, expected: list[Any]) -> list[Any]:
    return [Expected(values.view(one.value.shape), torch.float32) for one in expected]
