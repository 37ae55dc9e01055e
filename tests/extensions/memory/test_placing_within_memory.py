"""doppler.place with a memory plan: the simulator that it chooses, and what is read back."""

import doppler
from doppler.extensions.memory import Offload
from doppler.graph import synthetic
from doppler.simulator import WorkConserving

GRAPH = synthetic(family="layered", num_ops=40, transfer_ratio=1.0, seed=3)


def test_cores_do_not_send_by_themselves_what_a_plan_offloads():
    placed = doppler.place(GRAPH, cluster="host", evaluations=4, memory="offload")
    assert placed.system.contention == "fifo"


def test_what_was_placed_within_memory_is_read_back_as_such(tmp_path):
    system = WorkConserving(contention="engines")
    placed = doppler.place(GRAPH, cluster="host", evaluations=20, system=system, memory="offload")
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert vars(loaded.system) == vars(placed.system)
    assert loaded.trace.makespan_s == placed.makespan_s


def test_how_placements_were_planned_is_read_back(tmp_path):
    graph = synthetic(family="layered", num_ops=60, transfer_ratio=1.0, seed=0)
    mode = Offload(victim="cheapest", ahead=1, tries=2)
    placed = doppler.place(graph, cluster="p100x4", memory=mode, memory_bytes=1.6e8, evaluations=5)
    loaded = doppler.Placed.load(placed.save(tmp_path))
    assert loaded.system.memory_mode == mode
    assert loaded.trace.makespan_s == placed.makespan_s
    assert loaded.offloaded_bytes == placed.offloaded_bytes > 0
