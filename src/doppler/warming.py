"""tmp"""


def warm_up(system, baselines, policy=None):
    return None
