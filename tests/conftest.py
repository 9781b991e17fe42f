"""Settings shared by all tests: property tests draw the same examples on every machine."""

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("fixed")
