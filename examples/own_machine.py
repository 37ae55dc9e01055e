"""Your own machine: two fast devices, two slow ones, a slow link between the pairs.

    python examples/own_machine.py [seconds]

What does a faster link bring? Place the same model on both machines, and compare.
"""

import sys

import torch
from torch import nn

import doppler
from doppler.cluster import Cluster, custom

SPEEDS = {"fast": 2e13, "slow": 1e13}  # f32 floating-point operations per second


def machine(across_bytes_per_s: float) -> Cluster:
    """Pairs of devices on links of 50 GB/s, with another link between the pairs."""
    devices = [
        {
            "name": f"{kind}:{number}",
            "flop_per_s": {"f32": speed},
            "memory_bytes_per_s": 9e11,
            "launch_overhead_s": 5e-6,
            "memory_bytes": 16e9,
        }
        for kind, speed in SPEEDS.items()
        for number in range(2)
    ]
    bytes_per_s = [
        [50e9 if sender // 2 == receiver // 2 else across_bytes_per_s for receiver in range(4)]
        for sender in range(4)
    ]
    return custom(
        name=f"pairs over {across_bytes_per_s / 1e9:g} GB/s",
        devices=devices,
        bytes_per_s=bytes_per_s,
        latency_s=1e-5,
        num_devices=4,
    )


def main(seconds: float) -> None:
    """Place a wide net on the machine with a slow, then with a fast link between the pairs."""
    with torch.device("meta"):  # shapes are enough: nothing is run
        model = nn.Sequential(nn.Linear(2048, 8192), nn.ReLU(), nn.Linear(8192, 2048))
        x = torch.empty(4096, 2048)
    for across_bytes_per_s in (2e9, 50e9):
        placed = doppler.place(model, x, cluster=machine(across_bytes_per_s), seconds=seconds)
        print(placed)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 1.0)
