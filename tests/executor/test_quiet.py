"""The work by which devices are found to share a core can really be done side by side."""

import numpy as np
import pytest

from doppler.cluster import host
from doppler.executor.quiet import independent_work, speed_up
from doppler.simulator import WorkConserving


@pytest.mark.parametrize("num_devices", [2, 3, 8])
def test_devices_that_are_free_finish_the_work_as_many_times_faster(num_devices):
    problem, spread_V = independent_work(
        host(name="host", device_type="cpu", num_devices=num_devices)
    )
    with WorkConserving().open(problem) as session:
        one_s, all_s = session.measure(np.stack([np.zeros_like(spread_V), spread_V])).seconds[:, 0]
    assert one_s / all_s == pytest.approx(num_devices)


@pytest.mark.parametrize("num_devices", [2, 4])
def test_speed_up_is_what_the_system_does(num_devices):
    cluster = host(name="host", device_type="cpu", num_devices=num_devices)
    found = speed_up(WorkConserving(), cluster, np.random.default_rng(0))
    assert found == pytest.approx(num_devices)
