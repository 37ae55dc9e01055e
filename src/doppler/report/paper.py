"""The paper's figures, to hold ours against as ratios.

Its milliseconds are of real machines, so they are never put beside ours: what is compared is one
method over another within a table, and one system over another for the same method.

Source: DOPPLER (Yao et al., ICLR 2026, arXiv 2505.23131), milliseconds on 4 NVIDIA P100, lower is
better; its table of methods, and its comparison of synchronous and work-conserving execution.
"""

REFERENCE = "doppler"  # the method that ratios are over

# Workload, then method by our name. doppler: after stages I and II, the paper's DOPPLER-SIM.
MAIN_MS: dict[str, dict[str, float]] = {
    "chainmm": {
        "critical_path": 230.4,
        "placeto": 137.1,
        "gdp": 198.0,
        "enumerative": 139.0,
        "doppler": 122.5,
    },
    "ffnn": {
        "critical_path": 217.8,
        "placeto": 126.3,
        "gdp": 100.3,
        "enumerative": 50.2,
        "doppler": 49.9,
    },
    "llama_block": {
        "critical_path": 230.9,
        "placeto": 411.5,
        "gdp": 336.5,
        "enumerative": 172.7,
        "doppler": 191.5,
    },
    "llama_layer": {
        "critical_path": 292.6,
        "placeto": 295.1,
        "gdp": 231.5,
        "enumerative": 174.8,
        "doppler": 167.0,
    },
}
# Workload -> (bulk-synchronous, work-conserving), of the enumerative placement.
SYNCHRONOUS_MS: dict[str, tuple[float, float]] = {
    "chainmm": (185.3, 139.0),
    "ffnn": (76.9, 50.2),
}


def ratio_to_reference(workload: str, cluster: str, num_devices: int, method: str) -> float | None:
    """The paper's milliseconds of a method over those of DOPPLER; None where it tells none."""
    if (cluster, num_devices) != ("p100x4", 4):
        return None
    table = MAIN_MS.get(workload, {})
    return table[method] / table[REFERENCE] if method in table else None


def synchronous_ratio(workload: str, cluster: str, num_devices: int, method: str) -> float | None:
    """The paper's synchronous milliseconds over its work-conserving ones; None where unknown."""
    if (cluster, num_devices, method) != ("p100x4", 4, "enumerative"):
        return None
    if workload not in SYNCHRONOUS_MS:
        return None
    synchronous, conserving = SYNCHRONOUS_MS[workload]
    return synchronous / conserving
