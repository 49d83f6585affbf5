"""Never ends importing."""

import time

print("waiting for a license server", flush=True)
time.sleep(1000)


def solution(tensor):
    return tensor
