"""Where properties are tried, and on how many examples.

A test that takes `device` runs on the CPU and, if there is one, on a GPU. HYPOTHESIS_PROFILE chooses
how many examples each property gets:

ci        about a minute on two cores; the default
quick     for sanitizers, which make everything several times slower
thorough  for a night
"""

import os

import pytest
from hypothesis import HealthCheck, settings
from onepass_c import why_no_cuda

common = dict(
    deadline=None,  # a machine that is busy is not a failure
    print_blob=True,  # how to run a failing example again
    derandomize=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# What gates a change must not fail by chance; `thorough` draws new cases every time.
settings.register_profile("ci", max_examples=200, **dict(common, derandomize=True))
settings.register_profile("quick", max_examples=40, **dict(common, derandomize=True))
settings.register_profile("thorough", max_examples=5000, **common)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


no_cuda = why_no_cuda()


@pytest.fixture(scope="session", params=[
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.skip(reason=no_cuda)] if no_cuda else []),
])
def device(request: pytest.FixtureRequest) -> str:
    return request.param
