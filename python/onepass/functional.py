"""The operators as functions, with the signatures of torch.nn.functional where it has them."""

from . import _pools
from ._avg_pool1d import avg_pool1d
from ._l1_norm import l1_norm
from ._layer_norm import add_layer_norm, layer_norm
from ._norms import (
    add_rms_norm,
    batch_norm,
    frobenius_norm,
    group_norm,
    instance_norm,
    l2_norm,
    normalize,
    rms_norm,
)
from ._pools import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_avg_pool3d,
    adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices,
    adaptive_max_pool2d,
    adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d,
    adaptive_max_pool3d_with_indices,
    avg_pool2d,
    avg_pool3d,
    lp_pool1d,
    lp_pool2d,
    max_pool1d,
    max_pool1d_with_indices,
    max_pool2d,
    max_pool2d_with_indices,
    max_pool3d,
    max_pool3d_with_indices,
)

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d", "adaptive_max_pool2d_with_indices",
    "adaptive_max_pool3d", "adaptive_max_pool3d_with_indices", "add_layer_norm", "add_rms_norm",
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "batch_norm", "frobenius_norm", "group_norm",
    "instance_norm", "l1_norm", "l2_norm", "layer_norm", "lp_pool1d", "lp_pool2d", "max_pool1d",
    "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d",
    "max_pool3d_with_indices", "normalize", "rms_norm",
]

if hasattr(_pools, "lp_pool3d"):
    lp_pool3d = _pools.lp_pool3d
    __all__ += ["lp_pool3d"]
