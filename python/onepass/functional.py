"""The operators as functions, with the signatures of torch.nn.functional where it has them."""

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

__all__ = [
    "add_layer_norm", "add_rms_norm", "avg_pool1d", "batch_norm", "frobenius_norm", "group_norm",
    "instance_norm", "l1_norm", "l2_norm", "layer_norm", "normalize", "rms_norm",
]
