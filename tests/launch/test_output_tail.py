"""What ranks print never blocks them, and its end is kept."""

from __future__ import annotations

import os
import threading

from leftovers import nothing_left

from pkb.launch.output import OutputTail

KEPT_BYTES = 16 * 1024


def test_the_end_of_megabytes_is_kept_and_nobody_blocks() -> None:
    output = OutputTail()
    line = b"x" * 99 + b"\n"
    writers = []
    for name in ("rank 0", "rank 1"):

        def write(fd: int = output.open_pipe(name), name: str = name) -> None:
            with os.fdopen(fd, "wb") as out:
                for _ in range(100_000):
                    out.write(line)
                out.write(f"last words of {name}\n".encode())

        writers.append(threading.Thread(target=write))
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert not writer.is_alive()
    text = output.text()
    output.close()
    assert text.startswith("[rank 0]\n")
    assert "\n[rank 1]\n" in text
    assert "last words of rank 0\n" in text
    assert text.endswith("last words of rank 1")
    assert len(text) <= 2 * (KEPT_BYTES + 20)


def test_what_was_written_before_is_in_the_text_at_once() -> None:
    output = OutputTail()
    fd = output.open_pipe("rank 0")
    for i in range(200):
        os.write(fd, f"line {i}\n".encode())
        assert output.text().endswith(f"line {i}")
    os.write(fd, b"the end")
    os.close(fd)
    assert output.text().endswith("line 199\nthe end")
    assert output.text().endswith("line 199\nthe end")
    output.close()


def test_silence_is_empty_and_bytes_that_are_no_text_are_shown() -> None:
    output = OutputTail()
    silent, noisy = output.open_pipe("rank 0"), output.open_pipe("rank 1")
    assert output.text() == ""
    os.write(noisy, b"\xff\x00ok")
    assert output.text() == f"[rank 1]\n{chr(0xFFFD)}\x00ok"
    os.close(silent)
    os.close(noisy)
    output.close()


def test_closing_leaves_no_descriptor_and_no_thread() -> None:
    with nothing_left():
        for hold_open in (True, False):
            output = OutputTail()
            fds = [output.open_pipe(f"rank {i}") for i in range(8)]
            os.write(fds[0], b"x" * 10_000)
            if not hold_open:
                for fd in fds:
                    os.close(fd)
            output.close()
            if hold_open:
                for fd in fds:
                    os.close(fd)
