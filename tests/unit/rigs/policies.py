"""The policy of most tests: a pool `default` with exclusive first, so that a request without a mode moves."""

from nri_rdma.decide.policy import policy_of
from nri_rdma.model.pool import DEFAULT_POOL, Pool
from nri_rdma.model.request import Mode

EXCLUSIVE_FIRST = policy_of(
    (Pool(name=DEFAULT_POOL, modes=(Mode.EXCLUSIVE, Mode.SHARED)),), (), allow_default_pool=False
)
