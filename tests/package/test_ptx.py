"""No loop of the CUDA kernels is of the kind that nvcc 13.0 makes wrong.

test_ptx.py PTX...
A loop that is not unrolled and looks for place j of an array in registers may count from below 0, to save
a comparison, and compare that number with its end as if it had no sign: it then ends after one turn. On a
GPU the kernels' tests find it, but not in what is compiled for GPUs that nobody has at hand.
"""

import re
import sys
from typing import Iterator, Set, Tuple

ENTRY = re.compile(r"\.(?:entry|func)\b.*?(\w+)\(")
STARTS_BELOW_0 = re.compile(r"\s*mov\.[bsu]32\s+(%r\d+), -\d+;")
COMPARES_UNSIGNED = re.compile(r"\s*(?:@!?%p\d+ )?setp\.(?:lt|le|gt|ge|lo|ls|hi|hs)\.u32\s+"
                               r"%p\d+, (%r\d+), \d+;")


def wrong_loops(lines: Iterator[str]) -> Iterator[Tuple[str, str]]:
    """Kernels and the comparisons in them."""
    kernel = ""
    below_0: Set[str] = set()
    for line in lines:
        entry = ENTRY.search(line)
        if entry:
            kernel, below_0 = entry.group(1), set()
        start = STARTS_BELOW_0.match(line)
        if start:
            below_0.add(start.group(1))
        compared = COMPARES_UNSIGNED.match(line)
        if compared and compared.group(1) in below_0:
            yield kernel, line.strip()


def main(*paths: str) -> int:
    found = 0
    for path in paths:
        with open(path, encoding="ascii") as file:
            for kernel, comparison in wrong_loops(file):
                print(f"{path}: {kernel}: {comparison}: of a number that starts below 0")
                found += 1
    print(f"{len(paths)} files, {found} loops that end too soon")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
