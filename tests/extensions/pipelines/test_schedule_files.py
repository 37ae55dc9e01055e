"""Files of torch's own schedules: loaded, simulated, kept as they are, and refused if they hang."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from extensions.pipelines.pipelines import pipeline_of, plain_account
from torch.distributed.pipelining.schedules import (
    PipelineScheduleSingle,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from doppler.extensions.pipelines import (
    check_orders,
    find,
    judge,
    load_orders,
    save_orders,
)
from doppler.extensions.pipelines.processes import Processes, run_empty
from doppler.support.errors import InputError

NAMES = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble")
NAMES += ("ZBVZeroBubble", "DualPipeV")
DEVICES, MICROBATCHES = 2, 4


def num_stages(name: str) -> int:
    return DEVICES * (1 if issubclass(get_schedule_class(name), PipelineScheduleSingle) else 2)


def dump(name: str, path, *, lowered: bool) -> None:
    """What torch writes of one of its schedules, as its ``_dump_csv`` does."""
    num, kind = num_stages(name), get_schedule_class(name)
    stages = [
        SimpleNamespace(
            **{"num_stages": num, "group_size": DEVICES, "group_rank": 0, "submod": None},
            **{"stage_index": i, "has_backward": True, "is_first": False, "is_last": False},
        )
        for i in range(num // DEVICES)
    ]
    is_single = issubclass(kind, PipelineScheduleSingle)
    made = kind(stages[0] if is_single else stages, MICROBATCHES)
    order = made.pipeline_order
    if not lowered:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(order[rank] for rank in order)
        return
    runtime = _PipelineScheduleRuntime(stages, MICROBATCHES)
    runtime.stage_index_to_group_rank = {
        action.stage_index: rank
        for rank, row in order.items()
        for one in row
        if one is not None
        for action in (one.sub_actions or (one,))
    }
    runtime.pipeline_order = {r: [a for a in row if a is not None] for r, row in order.items()}
    runtime._prepare_schedule_with_comms(runtime.pipeline_order)
    runtime._dump_csv(path)


# Torch's own lowering refuses the orders of those of one stage a rank.
DUMPS = [(name, lowered) for name in NAMES for lowered in (False, True)]
DUMPS = [(name, lowered) for name, lowered in DUMPS if not lowered or name not in NAMES[:2]]


def pipeline_for(name: str):
    arrangement = "v" if name in ("ZBVZeroBubble", "DualPipeV") else "loop"
    seconds = np.arange(1, num_stages(name) + 1) / 2
    return pipeline_of(seconds, MICROBATCHES, devices=DEVICES, arrangement=arrangement)


@pytest.mark.parametrize(("name", "lowered"), DUMPS)
def test_a_schedule_of_torch_is_simulated_and_kept(name, lowered, tmp_path):
    path = tmp_path / "torch.csv"
    dump(name, path, lowered=lowered)
    orders = load_orders(path)
    check_orders(orders, MICROBATCHES)
    assert orders.has_messages == lowered
    pipeline = pipeline_for(name)
    found = judge(pipeline, path)
    seconds, peaks = plain_account(pipeline, orders)
    assert found.seconds == pytest.approx(seconds)
    np.testing.assert_allclose(found.peak_bytes, peaks)
    save_orders(orders, tmp_path / "again.csv")
    kept = load_orders(tmp_path / "again.csv")
    assert kept == orders and kept.rows == orders.rows
    if name != "1F1B":  # whose forwards of the last rank torch numbers from 1 on
        cells = [[c for c in row if c] for row in csv.reader(path.read_text().splitlines())]
        assert kept.rows == cells, "nothing of the file is lost"


def test_what_is_found_can_be_compared_with_a_file(tmp_path):
    path = tmp_path / "torch.csv"
    dump("Interleaved1F1B", path, lowered=True)
    pipeline = pipeline_for("Interleaved1F1B")
    assert find(pipeline, evaluations=60).seconds <= judge(pipeline, path).seconds
    with pytest.raises(InputError, match="is not an action of the pipeline"):
        judge(pipeline_of([1, 1], MICROBATCHES), path)


def test_torch_runs_what_was_loaded(tmp_path):
    with Processes(DEVICES) as processes:
        for name, lowered in (("Interleaved1F1B", True), ("DualPipeV", True), ("1F1B", False)):
            dump(name, tmp_path / "torch.csv", lowered=lowered)
            orders = load_orders(tmp_path / "torch.csv")
            ended = processes.call(run_empty, orders, num_stages(name), MICROBATCHES)
            assert ended == [True, True]


ROWS = ["0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD", "1RECV_F0,1F0,1B0,1SEND_B0,1UNSHARD"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("0SEND_F0,0RECV_B0", "0RECV_B0,0SEND_F0", "sends and receives wait for each other"),
        ("0F0,0SEND_F0", "0SEND_F0,0F0", "waits for itself: rank 0 stops before 0SEND_F0"),
        ("0SEND_F0,", "", "wait for each other: rank 0 at 0RECV_B0, rank 1 at 1RECV_F0"),
        ("1RECV_F0,1F0", "1F0,1RECV_F0", "stops before 0RECV_B0, rank 1 stops before 1F0"),
        ("1RECV_F0,", "", "wait for each other"),
        ("0RECV_B0,0B0", "0B0,0RECV_B0", "waits for itself: rank 0 stops before 0B0"),
        ("0F0", "(0F0;0X1)OVERLAP_F_B", "row 0: '0X1' is not an action"),
        ("0F0", "0f0", "row 0: '0f0' is not an action"),
        ("0F0", "0SEND_X0", "row 0: '0SEND_X0' is not an action"),
        ("0F0", "0F9999999", "row 0: '0F9999999' is not an action"),
        ("0F0", "(0F0;(0F1;0F2)OVERLAP_F_B)OVERLAP_F_B", "is not an action"),
    ],
)
def test_a_file_that_hangs_or_says_something_else_is_refused(old, new, said, tmp_path):
    path, text = tmp_path / "torch.csv", "\n".join(ROWS)
    path.write_text(text)
    check_orders(load_orders(path))
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(InputError, match=r"torch\.csv: ") as error:
        load_orders(path)
    assert said in str(error.value)
