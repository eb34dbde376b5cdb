"""The operators as functions, with the signatures of torch.nn.functional."""

from ._avg_pool1d import avg_pool1d
from ._l1_norm import l1_norm
from ._layer_norm import layer_norm

__all__ = ["avg_pool1d", "l1_norm", "layer_norm"]
