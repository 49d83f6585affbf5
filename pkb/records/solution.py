"""A solution as files with a content hash; the hash is its identity."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pkb.records.base import Record
from pkb.records.errors import UsageError

_SUFFIXES = {".py", ".cu", ".cuh", ".h", ".hpp", ".cpp", ".cc"}
_MAX_BYTES = 4 * 1024 * 1024


class Solution(Record):
    """A file `solution.py`, or a folder that holds one with its sources beside it."""

    name: str
    """Label for people: the file's stem, or `problem/name` for a folder under solutions/."""
    path: str
    """The Python file that defines `solution(...)`."""
    files: tuple[str, ...]
    """All files that belong to it, relative to the Python file's folder, sorted."""
    sha256: str
    """Hash over names and contents of all files."""

    @classmethod
    def read(cls, path: str | Path) -> Solution:
        """Read a solution from a Python file or a folder with `solution.py`.

        Raises:
            UsageError: the path does not exist, is no Python file, or the folder has no `solution.py`.
        """
        given = Path(path)
        if not given.exists():
            raise UsageError(f"{given}: no such file. Give a Python file that defines solution(...).")
        if given.is_dir():
            main = given / "solution.py"
            if not main.is_file():
                raise UsageError(
                    f"{given}: is a directory without solution.py. Give the Python file, or a folder that holds"
                    " solution.py."
                )
        else:
            main = given
            if main.suffix != ".py":
                raise UsageError(f"{given}: expected a Python file (.py), got {main.suffix or 'no suffix'!r}.")
        main = main.resolve()
        belongs = _files_of(main)
        digest = hashlib.sha256()
        for file in belongs:
            content = file.read_bytes()
            digest.update(f"{file.relative_to(main.parent).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
        is_folder = main.name == "solution.py"
        return cls(
            name="/".join(main.parent.parts[-2:]) if is_folder else main.stem,
            path=str(main),
            files=tuple(file.relative_to(main.parent).as_posix() for file in belongs),
            sha256=digest.hexdigest(),
        )

    def source(self) -> str:
        """Text of the Python file; bytes that are no UTF-8 become U+FFFD and fail later as a syntax error."""
        return Path(self.path).read_text(encoding="utf-8", errors="replace")


def _files_of(main: Path) -> list[Path]:
    """The Python file alone, or, for a folder solution, every source file below its folder."""
    if main.name != "solution.py":
        files = [main]
    else:
        files = sorted(f for f in main.parent.rglob("*") if f.suffix in _SUFFIXES and "__pycache__" not in f.parts)
    total = sum(f.stat().st_size for f in files)
    if total > _MAX_BYTES:
        raise UsageError(f"{main}: {total} bytes of source, at most {_MAX_BYTES} are judged.")
    return files
