"""Plain PyTorch with one division a row in place of one an element."""

import torch
import torch.nn as nn


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (x.shape[1] / torch.linalg.vector_norm(x, ord=1, dim=1, keepdim=True))
