"""A textbook kernel in Triton: a program a row, which it reads three times. There are only sixteen rows.

It makes a classic mistake, which the judge finds: the mean is a plain sum in float32, 512 numbers one after
the other in each lane. If they are all the same, as in a constant input, their roundings all go one way.
The mean is off by 2e-6, and where the variance is zero 1 / sqrt(eps) makes 316 times as much of that.
Random inputs do not show it.
"""

import torch
import torch.nn as nn
import triton
import triton.language as tl

REQUIRES = ["cuda", "triton"]


@triton.jit
def layer_norm_rows(x_ptr, weight_ptr, bias_ptr, y_ptr, columns, eps, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * columns
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + start_of_row + offsets, mask=offsets < columns, other=0.0)
    mean = tl.sum(total) / columns
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start_of_row + offsets, mask=offsets < columns, other=0.0)
        centered = tl.where(offsets < columns, x - mean, 0.0)
        total += centered * centered
    rstd = 1.0 / tl.sqrt(tl.sum(total) / columns + eps)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        inside = offsets < columns
        x = tl.load(x_ptr + start_of_row + offsets, mask=inside)
        weight = tl.load(weight_ptr + offsets, mask=inside)
        bias = tl.load(bias_ptr + offsets, mask=inside)
        tl.store(y_ptr + start_of_row + offsets, (x - mean) * rstd * weight + bias, mask=inside)


class ModelNew(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.ln = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        columns = self.ln.weight.numel()
        layer_norm_rows[(x.numel() // columns,)](x, self.ln.weight, self.ln.bias, y, columns, self.ln.eps,
                                                 BLOCK=8192, num_warps=16)
        return y
