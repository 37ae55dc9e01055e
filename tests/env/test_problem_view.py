"""What making a view takes of the machine."""

from problems import random_problem
from scipy.linalg import get_lapack_funcs
from threadpoolctl import ThreadpoolController

from doppler.env import make_view
from doppler.env import problem_view as views


def test_affinities_take_one_thread(monkeypatch):
    """Several wait for each other wherever another process is busy: for seconds, it was."""
    told: list[int] = []

    def watched(names, dtype):
        def threads(function):
            def called(*args, **kwargs):
                found = ThreadpoolController().select(user_api="blas").info()
                told.extend(library["num_threads"] for library in found)
                return function(*args, **kwargs)

            return called

        return [threads(one) for one in get_lapack_funcs(names, dtype=dtype)]

    monkeypatch.setattr(views, "get_lapack_funcs", watched)
    with ThreadpoolController().limit(limits=2, user_api="blas"):
        make_view(random_problem(0, num_ops=30, num_devices=2))
        after = ThreadpoolController().select(user_api="blas").info()
    assert told and set(told) == {1}
    assert {library["num_threads"] for library in after} == {2}
