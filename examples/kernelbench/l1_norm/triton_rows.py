"""A textbook kernel in Triton: a program a row, which it reads twice."""

import torch
import torch.nn as nn
import triton
import triton.language as tl

REQUIRES = ["cuda", "triton"]


@triton.jit
def l1_norm_rows(x_ptr, y_ptr, columns, BLOCK: tl.constexpr):
    start_of_row = tl.program_id(0).to(tl.int64) * columns
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += tl.abs(tl.load(x_ptr + start_of_row + offsets, mask=offsets < columns, other=0.0))
    scale = columns / tl.sum(total)
    for start in range(0, columns, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + start_of_row + offsets, mask=offsets < columns)
        tl.store(y_ptr + start_of_row + offsets, x * scale, mask=offsets < columns)


class ModelNew(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        l1_norm_rows[(x.shape[0],)](x, y, x.shape[1], BLOCK=4096, num_warps=8)
        return y
