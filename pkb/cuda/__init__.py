"""Compile CUDA device code and launch it on torch's current stream; the headers beside this file go with it.

Usable by every solution. Knows nothing of problems, judging or launching ranks.
"""

from pkb.cuda.arguments import C_TYPES, MAX_RANKS, peers
from pkb.cuda.blocks import BlockMover, Side
from pkb.cuda.compiler import Build, KernelUse, builds, compile
from pkb.cuda.copies import copy_2d
from pkb.cuda.errors import CompileError, LaunchError
from pkb.cuda.fp8_exchange import Fp8Exchange
from pkb.cuda.module import Kernel, Module
from pkb.cuda.workspace import (
    EXCHANGE_THREADS,
    MAX_BLOCKS,
    PACK_BYTES,
    UNIT_TYPES,
    Workspace,
    Workspaces,
    aligned,
    grid_blocks,
    rows_per_tile,
    unit_of,
)

__all__ = [
    "C_TYPES",
    "EXCHANGE_THREADS",
    "MAX_BLOCKS",
    "MAX_RANKS",
    "PACK_BYTES",
    "UNIT_TYPES",
    "BlockMover",
    "Build",
    "CompileError",
    "Fp8Exchange",
    "Kernel",
    "KernelUse",
    "LaunchError",
    "Module",
    "Side",
    "Workspace",
    "Workspaces",
    "aligned",
    "builds",
    "compile",
    "copy_2d",
    "grid_blocks",
    "peers",
    "rows_per_tile",
    "unit_of",
]
