"""Identity of a solution is the hash of its contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from pkb.records.errors import UsageError
from pkb.records.solution import Solution


def test_hash_follows_contents_not_place(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("def solution(x): return x")
    first, second = (Solution.read(tmp_path / name / "mine.py") for name in ("a", "b"))
    assert first.sha256 == second.sha256
    (tmp_path / "b" / "mine.py").write_text("def solution(x): return -x")
    assert Solution.read(tmp_path / "b" / "mine.py").sha256 != first.sha256


def test_folder_includes_its_sources_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "allreduce" / "fast"
    folder.mkdir(parents=True)
    (folder / "solution.py").write_text("x = 1")
    (folder / "kernel.cu").write_text("// one")
    (folder / "notes.txt").write_text("not part of it")
    before = Solution.read(folder)
    assert before.name == "allreduce/fast"
    assert before.files == ("kernel.cu", "solution.py")
    assert Solution.read(folder / "solution.py") == before
    (folder / "notes.txt").write_text("changed")
    assert Solution.read(folder).sha256 == before.sha256
    (folder / "kernel.cu").write_text("// two")
    assert Solution.read(folder).sha256 != before.sha256


def test_too_large_a_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "big.py").write_bytes(b"#" * (5 * 1024 * 1024))
    with pytest.raises(UsageError, match="bytes of source"):
        Solution.read(tmp_path / "big.py")
