"""Cheats by values (V1 to V23 of docs/threat-model.md)."""

from __future__ import annotations

from typing import Any

from cheat_case import Case

from pkb.records.verdict import Cause, Status

_WRONG = frozenset({Status.WRONG})
_CHANGED = frozenset({Status.MUTATED_INPUT, Status.WRONG})


def _case(
    entry: str,
    cheat: str,
    twin: str,
    *causes: Cause,
    problem: str = "allreduce",
    status: frozenset[Status] = _WRONG,
    **how: Any,
) -> Case:
    return Case(
        entry=entry,
        file=f"values/{cheat}.py",
        twin=f"values/{twin}_honest.py",
        problem=problem,
        status=status,
        causes=frozenset(causes),
        **how,
    )


CASES: list[Case] = [
    _case("V1", "zeros", "sum", Cause.ZEROS),
    _case("V1", "local_statistic", "rms_norm", problem="tp_rms_norm"),
    _case("V2", "constant_statistic", "load_balance", problem="load_balancing_loss_fn", dtype="fp32"),
    _case("V2", "frozen_statistic", "rms_norm", problem="tp_rms_norm"),
    _case("V3", "no_update", "adam", problem="fused_adam_grad_unshard_allgather"),
    _case("V4", "first_answer", "sum_cached_buffer", Cause.STALE),
    _case("V7", "zeroes_input", "sum", status=_CHANGED),
    _case("V7", "returns_input", "sum", status=_CHANGED),
    _case("V8", "pointer_cache", "sum_cached_buffer", Cause.STALE),
    _case("V9", "file_replay", "sum", Cause.STALE),
    _case("V12", "fp8_sum", "sum", Cause.PRECISION),
    _case("V12", "bf16_sum", "sum", Cause.PRECISION, dtype="fp32"),
    _case("V12", "fp16_sum", "sum", Cause.PRECISION, dtype="fp32"),
    _case("V13", "wider_dtype", "sum", Cause.DTYPE),
    _case("V13", "strided_view", "sum", Cause.SHAPE),
    _case("V13", "dict_result", "acc_loss", Cause.CONTAINER, problem="grad_acc_loss"),
    _case("V16", "one_element_skipped", "sum"),
    _case("V17", "tail_skipped", "sum"),
    _case("V17", "smallest_split_skipped", "exchange", problem="moe_all2all_primitive"),
    _case("V18", "all_nan", "sum", Cause.NONFINITE, Cause.UNWRITTEN),
    _case("V18", "all_inf", "sum", Cause.NONFINITE),
    _case("V18", "nan_swallowed", "acc_loss", problem="grad_acc_loss"),
    _case("V20", "unwritten", "sum", Cause.UNWRITTEN, Cause.RACE, Cause.NONFINITE),
]
