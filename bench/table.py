#!/usr/bin/env python3
"""Turn the JSON lines of `onepass bench --json` into a Markdown table: bench/table.py FILE..."""

import json
import sys
from typing import Dict, List


def rows_of(path: str) -> List[Dict]:
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def describe(row: Dict) -> str:
    shape = "×".join(str(size) for size in row["shape"])
    if row["op"] == "avg_pool1d":
        return "%s, k%d s%d p%d" % (shape, row["kernel_size"], row["stride"], row["padding"])
    return shape if row["axis"] == -1 else "%s, last %d axes" % (shape, -row["axis"])


def main() -> None:
    print("| operator | direction | type | shape | threads | ms | GB/s | of copy |")
    print("|---|---|---|---|---|---|---|---|")
    for path in sys.argv[1:]:
        for row in rows_of(path):
            print(
                "| %s | %s | %s | %s | %d | %.2f | %.1f | %.2f |"
                % (
                    row["op"],
                    row["dir"],
                    row["dtype"],
                    describe(row),
                    row["threads"],
                    row["ms"],
                    row["gbps"],
                    row["of_copy"],
                )
            )


if __name__ == "__main__":
    main()
