"""Compile CUDA device code and launch it on torch's current stream; the headers beside this file go with it.

Usable by every solution. Knows nothing of problems, judging or launching ranks.
"""

from pkb.cuda.arguments import peers
from pkb.cuda.compiler import Build, KernelUse, builds, compile
from pkb.cuda.copies import copy_2d
from pkb.cuda.errors import CompileError, LaunchError
from pkb.cuda.module import Kernel, Module

__all__ = [
    "Build",
    "CompileError",
    "Kernel",
    "KernelUse",
    "LaunchError",
    "Module",
    "builds",
    "compile",
    "copy_2d",
    "peers",
]
