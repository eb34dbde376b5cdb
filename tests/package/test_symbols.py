"""Exactly the functions of the header are exported, and the SONAME is right.

test_symbols.py HEADER SHARED_LIBRARY STATIC_LIBRARY SONAME
Exits 77, with the reason, where there is no nm or readelf.
"""

import re
import shutil
import subprocess
import sys
from typing import List, Set

SKIPPED = 77


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def declared(header: str) -> Set[str]:
    with open(header, encoding="utf-8") as file:
        text = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.DOTALL)
    return set(re.findall(r"^ONEPASS_API\b[^(;]*?\b(onepass_\w+)\s*\(", text, flags=re.MULTILINE))


def defined(listing: str) -> Set[str]:
    """The names in what nm prints: address, type, name (and perhaps a version)."""
    names = (line.split() for line in listing.splitlines())
    return {fields[2].split("@")[0] for fields in names if len(fields) >= 3}


def is_ours(name: str) -> bool:
    return name.startswith("onepass_")


def is_of_a_sanitizer(name: str) -> bool:
    return bool(re.match(r"_*(asan|ubsan|tsan|sancov|odr_asan|lsan)", name))


def main(header: str, shared: str, static: str, soname: str) -> int:
    for tool in ("nm", "readelf"):
        if not shutil.which(tool):
            print(f"skip: the exported symbols: there is no {tool}")
            return SKIPPED
    faults: List[str] = []
    wanted = declared(header)
    if len(wanted) < 10:
        faults.append(f"only {len(wanted)} functions found in {header}; the test misreads it")
    exported = {n for n in defined(output_of("nm", "-D", "--defined-only", shared))
                if not is_of_a_sanitizer(n)}
    faults += [f"{n} is in the header and not exported" for n in sorted(wanted - exported)]
    faults += [f"{n} is exported and not in the header" for n in sorted(exported - wanted)]

    everywhere = defined(output_of("nm", "-g", "--defined-only", static))
    strangers = {n for n in everywhere if not is_ours(n) and not is_of_a_sanitizer(n)}
    faults += [f"{n} is global in the static library and does not start with onepass_"
               for n in sorted(strangers)]
    faults += [f"{n} is not in the static library" for n in sorted(wanted - everywhere)]

    if f"[{soname}]" not in "".join(
            line for line in output_of("readelf", "-d", shared).splitlines() if "SONAME" in line):
        faults.append(f"the SONAME of {shared} is not {soname}")
    for fault in faults:
        print(fault)
    print(f"{len(wanted)} functions declared, {len(exported)} exported, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
