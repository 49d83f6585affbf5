"""Memory of arguments, told without making them."""

from __future__ import annotations

from problem_cases import Case, Trial, inputs_of, judgeside

from pkb.problems._find import get_problem
from pkb.problems._footprint import footprint
from pkb.problems._tree import tensors


def test_exact_footprint_is_that_of_the_first_draw(input_case: Case) -> None:
    problem, code = input_case.problem, judgeside(input_case.problem_id)
    for name in problem.sizes_named("tiny"):
        found = footprint(problem, code, name, input_case.world_size, input_case.dtype)
        assert found.num_bytes > 0
        if found.is_exact and not problem.sizes[name].get("exact", False):
            drawn = inputs_of(Trial(input_case, name, 0))
            assert found.num_bytes == max(map(_storage_bytes, drawn)), name


def test_a_table_counts_in_full_although_few_rows_are_read() -> None:
    problem = get_problem("embedding_lookup")
    size = problem.sizes["base"]
    for dtype, element_bytes in (("bf16", 2), ("fp32", 4)):
        found = footprint(problem, problem.load(), "base", 2, dtype)
        assert found.is_exact
        assert found.num_bytes > size["rows"] * size["width"] * element_bytes


def test_shapes_that_depend_on_values_are_not_called_exact() -> None:
    problem = get_problem("moe_all2all_primitive")
    assert not footprint(problem, problem.load(), "tiny", 2, "bf16").is_exact


def _storage_bytes(arguments: tuple[object, ...]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(arguments)}
    return sum(storages.values())
