"""Settings of all tests."""

from hypothesis import settings

# No test asserts an absolute time: compiling a function for the first time takes seconds.
settings.register_profile("doppler", deadline=None)
settings.load_profile("doppler")
