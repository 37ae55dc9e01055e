"""Profiles of stages, damaged: each is refused in one line, or read as what it says."""

from pathlib import Path

from fuzz.mutations import bytes_of, damaged, finite
from fuzz.outcomes import FUZZ, check_given, outcome, read
from hypothesis import given

from doppler.cluster import preset
from doppler.extensions.pipelines import check_orders, load_orders, pipeline_parallel
from doppler.problem import build

STAGE = {
    **{"forward_s": 1.0, "input_grad_s": 1.0, "weight_grad_s": 0.5},
    **{"activation_bytes": 2.0, "weight_grad_bytes": 1.0},
}
STAGES = {
    **{"format": "doppler-stages", "version": 1, "notes": ["a model"]},
    **{"stages": [STAGE, {**STAGE, "forward_s": 2.0}], "transfer_s": [0.5]},
}
STAGES_VALUES = {
    **{f"stages.*.{column}": finite for column in STAGE},
    **{"format": "doppler-stages".__eq__, "version": (1).__eq__, "transfer_s.*": finite},
}


@FUZZ
@given(damaged([STAGES], STAGES_VALUES))
def test_stages_of_pipelines(tmp_path, case):
    path = tmp_path / "stages.json"

    def build_pipeline(path: Path):
        pair = preset(name="identical", num_devices=2, memory_bytes=100.0)
        made = pipeline_parallel(cluster=pair, microbatches=2, profile=str(path))
        build(made, pair)
        return made

    check_given(read("stages of a pipeline", build_pipeline, path, case))


SCHEDULE = b"""0UNSHARD,0F0,0SEND_F0,0RECV_B0,0I0,0W0,0REDUCE_GRAD
1UNSHARD,1RECV_F0,1F0,,1B0,1SEND_B0,1RESHARD
"""


@FUZZ
@given(bytes_of(SCHEDULE))
def test_schedules_of_torch(tmp_path, case):
    orders = read("schedule of torch", load_orders, tmp_path / "schedule.csv", case)
    if orders:
        outcome("schedule of torch", lambda: check_orders(orders))
