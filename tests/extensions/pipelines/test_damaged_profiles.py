"""Profiles of stages, damaged: each is refused in one line, or read as what it says."""

from pathlib import Path

from fuzz.mutations import damaged, finite
from fuzz.outcomes import FUZZ, check_given, read
from hypothesis import given

from doppler.cluster import preset
from doppler.extensions.pipelines import pipeline_parallel
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
