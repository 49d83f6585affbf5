"""What is done for CUDA tensors on gloo, done to CPU tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import sys

import torch
import torch.distributed as dist

from pkb.launch.staging import stage_point_to_point

rank = int(sys.argv[1])
peer = 1 - rank
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[2], 2), rank=rank, world_size=2)
"""
# What is sent and received is not contiguous.
EXCHANGE = """
staged = []
stage_point_to_point(lambda tensor: staged.append(tensor) is None)
mine = torch.stack([torch.arange(5.0) + rank, torch.zeros(5)], dim=-1)
theirs = torch.zeros_like(mine)
{exchange}
assert theirs[..., 0].tolist() == [peer + i for i in range(5)], theirs
assert not theirs[..., 1].any()
assert len(staged) >= 2
"""
BATCH = """
pair = [dist.P2POp(dist.isend, mine[..., 0], peer), dist.P2POp(dist.irecv, theirs[..., 0], peer)]
for work in dist.batch_isend_irecv(pair):
    work.wait()
    assert work.is_completed()
"""
BLOCKING = """
if peer:
    dist.send(mine[..., 0], peer)
    assert dist.recv(theirs[..., 0], src=peer) == peer
else:
    dist.recv(theirs[..., 0], src=peer)
    dist.send(mine[..., 0], peer)
"""


@pytest.mark.parametrize("exchange", [BATCH, BLOCKING], ids=["batch", "blocking"])
def test_staged_tensors_arrive(tmp_path: Path, exchange: str) -> None:
    run_on_two_ranks(tmp_path, RANK + EXCHANGE.replace("{exchange}", exchange))


def run_on_two_ranks(folder: Path, source: str) -> None:
    path = folder / "rank.py"
    path.write_text(source)
    command = [sys.executable, str(path)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(folder / "store")], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=120)
        assert rank.returncode == 0, errors
