"""The paper's figures, beside which ours stand as ratios."""

REFERENCE = "doppler"  # the method that ratios are over: the paper's DOPPLER-SIM, stages I and II
# The paper's figures, to hold ours against as ratios: its milliseconds are of real machines, so
# they are never put beside ours. Source: DOPPLER (Yao et al., ICLR 2026, arXiv 2505.23131),
# milliseconds on 4 NVIDIA P100; its table of methods, and its comparison of bulk-synchronous with
# work-conserving execution (of the enumerative placement).
_PAPER_METHODS = ("critical_path", "placeto", "gdp", "enumerative", "doppler")
PAPER_MS = {
    "chainmm": (230.4, 137.1, 198.0, 139.0, 122.5),
    "ffnn": (217.8, 126.3, 100.3, 50.2, 49.9),
    "llama_block": (230.9, 411.5, 336.5, 172.7, 191.5),
    "llama_layer": (292.6, 295.1, 231.5, 174.8, 167.0),
}
PAPER_SYNCHRONOUS_MS = {"chainmm": (185.3, 139.0), "ffnn": (76.9, 50.2)}


def paper_ratio(row) -> str:
    """The paper's milliseconds of a row's method over those of DOPPLER; empty where unknown."""
    told = dict(zip(_PAPER_METHODS, PAPER_MS.get(row.workload, ()), strict=False))
    if not is_papers_machine(row) or row.method not in told:
        return ""
    return f"{told[row.method] / told[REFERENCE]:.2f}"


def is_papers_machine(row) -> bool:
    """Whether a row is of the machine that the paper's figures are of."""
    return (row.cluster, row.num_devices) == ("p100x4", 4)
