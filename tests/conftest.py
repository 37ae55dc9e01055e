"""Settings of all tests."""

import torch
from hypothesis import settings

# No test asserts an absolute time: compiling a function for the first time takes seconds.
settings.register_profile("doppler", deadline=None)
settings.load_profile("doppler")

# As in training: threads of torch that wait for each other are slow where anything else computes.
torch.set_num_threads(1)
