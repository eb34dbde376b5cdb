"""Normalization and pooling at the speed of memory, for PyTorch.

Take `onepass.nn` or `onepass.functional` in place of torch.nn, or call `onepass.patch(model)`.
"""

from . import functional, nn
from ._native import version as __version__
from ._patch import Summary, patch, unpatch

__all__ = ["Summary", "__version__", "functional", "nn", "patch", "unpatch"]
