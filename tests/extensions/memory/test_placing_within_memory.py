"""doppler.place with a memory plan: the simulator that it chooses, and what is read back."""

import doppler
from doppler.graph import synthetic
from doppler.simulator import WorkConserving

GRAPH = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=3)


def test_cores_do_not_send_by_themselves_what_a_plan_offloads():
    placed = doppler.place(GRAPH, "host", evaluations=4, memory="offload")
    assert placed.system.contention == "fifo"


def test_what_was_placed_within_memory_is_read_back_as_such(tmp_path):
    system = WorkConserving(contention="engines")
    placed = doppler.place(GRAPH, "host", evaluations=20, system=system, memory="offload")
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert vars(loaded.system) == vars(placed.system)
    assert loaded.trace.makespan_s == placed.makespan_s
