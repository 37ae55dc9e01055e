"""The features that both heads see of an episode, by name.

The fields of the tuples are the features in the order of their columns. An instance holds the
column number of each, which compiled code (features_kernels.py) uses as constants.

Source: DOPPLER (Yao et al., ICLR 2026): five of the device features; the others are ours.
"""

from typing import NamedTuple


class SelFeatures(NamedTuple):
    """Columns of what SEL sees of a candidate."""

    age: int
    consumer_of_last: int
    diffusion_to_last_device: int
    start_slack: int
    siblings_placed: int
    start: int
    progress: int
    candidates: int


class SelGroupFeatures(NamedTuple):
    """Further columns for merged views: the group that goes where the candidate goes."""

    group_rest: int
    group_placed: int


class DeviceFeatures(NamedTuple):
    """Columns of what PLC sees of a device for an op."""

    producers: int
    siblings: int
    diffusion_near: int  # here and below: a column for each of view.DIFFUSIONS, in their order
    diffusion_far: int
    diffusion_unweighted: int
    concurrent_work: int
    start_over_min: int
    available_over_min: int
    load_over_min: int
    to_move: int
    largest_producer: int
    empty: int
    last_device: int
    attains_min_start: int
    progress: int
    load: int
    producer_compute: int
    producers_start: int
    producers_end: int
    start: int
    slower_than_best: int
    finish_over_min: int
    diffusion_near_share: int
    diffusion_far_share: int
    diffusion_unweighted_share: int
    queued_start_over_min: int  # queued: where transfers of a link wait for each other, see links
    queued_finish_over_min: int
    attains_min_queued_finish: int
    queued_wait: int
    queued_available_over_min: int


class DeviceGroupFeatures(NamedTuple):
    """Further columns for merged views: the group that goes where the op goes."""

    group_rest: int
    group_producers: int
    group_diffusion_near: int
    group_diffusion_far: int
    group_diffusion_unweighted: int


SEL_FEATURES, SEL_GROUP_FEATURES = SelFeatures._fields, SelGroupFeatures._fields
DEVICE_FEATURES, DEVICE_GROUP_FEATURES = DeviceFeatures._fields, DeviceGroupFeatures._fields
NUM_SEL_FEATURES, NUM_SEL_GROUP_FEATURES = len(SEL_FEATURES), len(SEL_GROUP_FEATURES)
NUM_DEVICE_FEATURES, NUM_DEVICE_GROUP_FEATURES = len(DEVICE_FEATURES), len(DEVICE_GROUP_FEATURES)
# Features of groups come after the others.
SEL = SelFeatures(*range(NUM_SEL_FEATURES))
SEL_GROUP = SelGroupFeatures(*(NUM_SEL_FEATURES + i for i in range(NUM_SEL_GROUP_FEATURES)))
DEVICE = DeviceFeatures(*range(NUM_DEVICE_FEATURES))
DEVICE_GROUP = DeviceGroupFeatures(
    *(NUM_DEVICE_FEATURES + i for i in range(NUM_DEVICE_GROUP_FEATURES))
)
# The paper's device features are DEVICE.load and the four that come after it.
FIRST_PUBLISHED = DEVICE.load
