"""Where headers are found, and which files a source includes: the part of a build's identity outside its text."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

OWN_HEADERS = Path(__file__).parent
SHIM_HEADERS = OWN_HEADERS / "shim"

_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*(?:([\"<])([^\">]+)[\">]|(\S+))", re.MULTILINE)
_PROOF_OF_TOOLKIT = "cuda_bf16.h"


@cache
def toolkit_includes() -> tuple[Path, ...]:
    """Folders with the CUDA headers: the NVIDIA wheels first, since they match the wheel's NVRTC, then a toolkit."""
    found = [folder for root in _toolkit_roots() for folder in (root / "include", root / "include" / "cccl")]
    return tuple(dict.fromkeys(folder.resolve() for folder in found if folder.is_dir()))


def has_toolkit_headers() -> bool:
    """Whether the headers of CUDA's own types were found."""
    return any((folder / _PROOF_OF_TOOLKIT).is_file() for folder in toolkit_includes())


def _toolkit_roots() -> list[Path]:
    roots = [Path(location) for location in _wheel_locations("nvidia.cu13")]
    # Wheels of CUDA 12 style keep one folder a component.
    roots += [Path(location) for location in _wheel_locations("nvidia.cuda_runtime")]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            roots.append(Path(os.environ[variable]))
    roots.append(Path("/usr/local/cuda"))
    roots += sorted(Path("/usr/local").glob("cuda-13*"), reverse=True)
    return [root for root in roots if root.is_dir()]


def _wheel_locations(package: str) -> list[str]:
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:  # no package `nvidia` at all
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


def digest_of_includes(source: str, folders: Sequence[Path]) -> str:
    """Hash of every file that `source` includes, directly or not, from `folders`; the toolkit's are left out.

    A computed include (`#include NAME`) cannot be followed without a preprocessor: the digest is then a new one
    each time, so that such a source is compiled again rather than taken stale from the cache.
    """
    digest = hashlib.sha256()
    waiting: list[tuple[str, Path | None]] = [(source, None)]
    seen: set[Path] = set()
    while waiting:
        text, folder = waiting.pop()
        for quote, name, computed in _INCLUDE.findall(text):
            if computed:
                digest.update(os.urandom(16))
                continue
            beside = [folder] if folder is not None and quote == '"' else []
            file = _resolve(name, [*beside, *folders])
            if file is not None and file not in seen:
                seen.add(file)
                waiting.append((file.read_text(encoding="utf-8", errors="replace"), file.parent))
    for file in sorted(seen):
        digest.update(f"{file}\0".encode())
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _resolve(name: str, folders: Iterable[Path]) -> Path | None:
    for folder in folders:
        file = folder / name
        if file.is_file():
            return file.resolve()
    return None
