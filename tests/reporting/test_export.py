"""`pkb export`: one row a reply, the same in both forms, and loadable by what trainers use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from pkb.cli.main import cli
from pkb.records.attempt import Attempt, Turn
from pkb.records.errors import UsageError
from pkb.records.run import Run
from pkb.records.verdict import Verdict
from pkb.reporting import export
from pkb.reporting.export import Row, reward_of

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"
MakeTurn = Callable[..., Turn]


@pytest.fixture
def run(make_run: Callable[..., Run], make_attempt: Callable[..., Attempt], make_turn: MakeTurn, write_run) -> Path:
    """Two attempts at allreduce, the first in three turns; one at allgather that never reached the model."""
    turns = [
        make_turn("wrong", cause="race"),
        make_turn(speedup=2.0, index=1, mechanisms=("kernels", "copy engine"), library=False),
        make_turn("invalid", index=2),
    ]
    attempts = [
        make_attempt(turns=turns),
        make_attempt("no_code", number=1),
        make_attempt(turns=[], problem="allgather"),
    ]
    return write_run(make_run(mode="feedback", turns=3), attempts)


def exported(run: Path, form: str, target: Path) -> Path:
    arguments = ["export", str(run), "--format", form, "-o", str(target)]
    done = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert done.exit_code == 0
    assert done.stderr == f"wrote 4 rows to {target}\n"
    assert [file.name for file in target.parent.iterdir()] == [target.name]
    return target


def test_one_row_for_each_reply(run: Path, tmp_path: Path) -> None:
    lines = exported(run, "jsonl", tmp_path / "out" / "turns.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [list(row) for row in rows] == [list(Row.model_fields)] * 4
    assert [(row["attempt"], row["turn"], row["kind"], row["reward"], row["counts"]) for row in rows] == [
        (0, 0, "race", 0.0, False),
        (0, 1, "faster than the baseline", 2.0, True),
        (0, 2, "not scored", None, False),
        (1, 0, "no code", 0.0, True),
    ]
    fast = rows[1]
    assert (fast["speedup"], fast["time_us"], fast["sol_percent"], fast["size"]) == (2.0, 50.0, 40.0, "base")
    assert fast["mechanisms"] == ["kernels", "copy engine"]
    assert [message["role"] for message in fast["messages"]] == ["user", "assistant"] * 2
    assert (fast["group"], fast["number"], fast["mode"]) == ("group1", 1, "feedback")
    assert Verdict.model_validate_json(fast["verdict"]).status == "correct"
    assert rows[3]["verdict"] is None and rows[3]["status"] is None and rows[3]["code"] == ""


def test_both_forms_hold_the_same(run: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    lines = exported(run, "jsonl", tmp_path / "a" / "turns.jsonl").read_text().splitlines()
    table = parquet.read_table(exported(run, "parquet", tmp_path / "b" / "turns.parquet"))
    assert [Row.model_validate(row) for row in table.to_pylist()] == [Row.model_validate_json(line) for line in lines]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.filterwarnings("ignore")
def test_datasets_loads_it(run: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    datasets = pytest.importorskip("datasets", reason="the datasets library is not installed")
    target = exported(run, form, tmp_path / "out" / f"turns.{form}")
    builder = "json" if form == "jsonl" else form
    loaded = datasets.load_dataset(builder, data_files=str(target), cache_dir=str(tmp_path / "cache"), split="train")
    assert loaded.column_names == list(Row.model_fields)
    assert loaded["reward"][:] == [0.0, 2.0, None, 0.0]
    assert loaded[1]["messages"][0] == {"role": "user", "content": "write it"}


@pytest.mark.parametrize(
    ("words", "fields", "reward"),
    [
        (("correct",), {"speedup": 1.0}, 1.0),
        (("correct",), {"speedup": 4.0}, 3.0),
        (("correct",), {"speedup": 100.0}, 4.0),
        (("correct",), {"speedup": 0.01}, 0.1),
        (("correct",), {}, 1.0),
        (("correct",), {"speedup": 4.0, "library": True}, 0.0),
        (("correct",), {"build_only": True}, None),
        (("refused",), {"cause": "too_fast"}, 0.0),
        (("truncated",), {}, 0.0),
        (("invalid",), {}, None),
    ],
)
def test_reward(make_turn: MakeTurn, words: tuple[str], fields: dict[str, object], reward: float | None) -> None:
    assert reward_of(make_turn(*words, **fields)) == reward


def test_without_pyarrow_the_message_says_what_to_do(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(export, "import_module", absent)
    target = tmp_path / "out" / "turns.parquet"
    done = CliRunner().invoke(cli, ["export", str(run), "--format", "parquet", "-o", str(target)])
    assert isinstance(done.exception, UsageError)
    assert "parallelkernelbench[export]" in str(done.exception) and "--format jsonl" in str(done.exception)
    assert list(target.parent.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = CliRunner().invoke(cli, ["export", str(run), "-o", str(tmp_path / "file" / "turns.jsonl")])
    assert isinstance(done.exception, UsageError)
    assert "turns.jsonl: cannot be written" in str(done.exception)


def test_the_page_describes_every_column() -> None:
    described = [line.split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert [(cells[0].strip("| `"), cells[2].removesuffix(" |")) for cells in described] == [
        (name, field.description) for name, field in Row.model_fields.items()
    ]
