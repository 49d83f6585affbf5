"""The portable solutions under delays, and the proof that those delays find a missing barrier."""

import inspect
from pathlib import Path

import pytest
from symm_ranks import run_ranks
from symm_solutions import NAMES, path_of, run_back_to_back, without_barrier

from pkb import symm

DOCUMENT = Path(__file__).parents[2] / "docs" / "symmetric-memory.md"
DELAY_S = 0.02


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_portable_solutions_are_right_back_to_back_under_delays(world_size: int) -> None:
    sources = {name: (name, path_of(name).read_text(encoding="utf-8")) for name in NAMES}
    of_ranks = run_ranks(run_back_to_back, world_size, sources, 56, DELAY_S / 4)
    assert [{name: wrong for name, (wrong, _) in verdicts.items()} for verdicts in of_ranks] == [
        dict.fromkeys(NAMES, 0)
    ] * world_size
    for name in ("allgather", "allreduce"):
        assert len({verdicts[name][1] for verdicts in of_ranks}) == 1, f"{name}: ranks differ in some bit"


def test_delays_catch_a_missing_barrier() -> None:
    sources = {
        f"{name} without its {place} barrier": (name, without_barrier(name, which))
        for name in NAMES
        for which, place in enumerate(("enter", "leave"))
    }
    of_ranks = run_ranks(run_back_to_back, 2, sources, 40, DELAY_S)
    num_wrong = {label: sum(verdicts[label][0] for verdicts in of_ranks) for label in sources}
    assert all(num_wrong.values()), num_wrong


def test_the_documented_example_works_and_every_public_name_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (example,) = [b for b in text.split("```python\n")[1:] if "def solution" in b]
    of_ranks = run_ranks(run_back_to_back, 2, {"example": ("allreduce", example.partition("```")[0])}, 20, DELAY_S / 4)
    assert [verdicts["example"][0] for verdicts in of_ranks] == [0, 0]
    of_handle = {name for name, _ in inspect.getmembers(symm.Handle) if not name.startswith("_")}
    for name in of_handle | set(symm.__all__):
        assert name in text or name == "Handle", f"{name} is not in {DOCUMENT.name}"
