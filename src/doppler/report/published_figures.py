"""The paper's figures, to compare with ours as ratios.

The paper's milliseconds are those of real machines, so only ratios can be compared with ours.
Source: DOPPLER (Yao et al., ICLR 2026, arXiv 2505.23131). Times per episode are those of the
authors' notebook of costs (github.com/xinyuyao/Doppler).
"""

REFERENCE = "doppler"  # the denominator of ratios: the paper's DOPPLER-SIM, stages I and II
_PAPER_METHODS = (
    *("critical_path", "placeto", "gdp", "enumerative", "doppler"),
    "doppler_real",  # DOPPLER-SYS: all three stages
)
# The main table, on 4 NVIDIA P100.
PAPER_MS = {
    "chainmm": (230.4, 137.1, 198.0, 139.0, 122.5, 123.4),
    "ffnn": (217.8, 126.3, 100.3, 50.2, 49.9, 47.4),
    "llama_block": (230.9, 411.5, 336.5, 172.7, 191.5, 160.3),
    "llama_layer": (292.6, 295.1, 231.5, 174.8, 167.0, 150.6),
}
# Bulk-synchronous and work-conserving execution, each of EnumOpt's placement.
PAPER_SYNCHRONOUS_MS = {"chainmm": (185.3, 139.0), "ffnn": (76.9, 50.2)}
# All three stages: both policies, only SEL learned, only PLC learned.
PAPER_POLICIES_MS = {
    "chainmm": (123.4, 127.0, 121.6),
    "ffnn": (47.4, 59.1, 63.2),
    "llama_block": (160.3, 175.6, 172.9),
    "llama_layer": (150.6, 161.7, 159.5),
}
# Seconds of training per episode: DOPPLER and Placeto.
PAPER_EPISODE_S = {
    "chainmm": (1.842, 3.716),
    "ffnn": (4.252, 9.237),
    "llama_block": (3.651, 9.395),
    "llama_layer": (4.952, 11.891),
}


def paper_ms(workload: str) -> dict[str, float]:
    """Return the milliseconds of the paper's main table by method; empty for other workloads.

    Args:
        workload: its name.
    """
    if workload not in PAPER_MS:
        return {}
    return dict(zip(_PAPER_METHODS, PAPER_MS[workload], strict=True))


def paper_ratio(row) -> str:
    """Write the paper's milliseconds of a row's method over those of DOPPLER; empty if unknown.

    Args:
        row: of a summary.
    """
    told, method = paper_ms(row.workload), papers_method(row.method)
    if not is_papers_machine(row) or method not in told:
        return ""
    return f"{told[method] / told[REFERENCE]:.2f}"


def papers_method(method: str) -> str:
    """Return a method's name in the paper, whose methods learn without a search.

    Args:
        method: with or without the search of ours, such as ``gdp`` or ``gdp_unaided``.
    """
    return method.removesuffix("_unaided")


def is_papers_machine(row) -> bool:
    """Whether a row is of the machine that the paper used.

    Args:
        row: of a summary.
    """
    return (row.cluster, row.num_devices) == ("p100x4", 4)
