#!/usr/bin/env python3
"""Compiles every header of src/ and kernels/ alone, so that each can be included first and without others.

  scripts/check_headers.py BUILD_DIR     reads compiler, flags and include paths from compile_commands.json

A header that its own source includes first is compiled alone already by the build (check_includes.py sees to
the order); this does the others. Only the syntax is checked, as many at a time as there are cores, with the flags
of a source in the header's folder, so it sees the libraries that its target links. Files named *-inl.h are parts
of Highway sources and are left out.
"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent


def flags_by_folder(build_dir):
    """folder of the tree -> a compile command without its input and outputs."""
    flags = {}
    for entry in json.loads((build_dir / "compile_commands.json").read_text()):
        folder = pathlib.Path(entry["file"]).parent
        command = shlex.split(entry["command"])
        if "ccache" in command[0]:
            command = command[1:]
        kept, skip = [], False
        for word in command:
            if skip:
                skip = False
            elif word in ("-o", "-MF", "-MT"):
                skip = True
            elif word not in ("-c", "-MD", "-MMD", entry["file"]) and not word.startswith(("-g", "-O")):
                kept.append(word)
        flags[folder] = kept
    return flags


def command_for(header, flags):
    # kernels/ops is compiled by the target of kernels/; header-only folders take their parent's or base's.
    for folder in (header.parent, header.parent.parent, ROOT / "src" / "base"):
        if folder in flags:
            return flags[folder] + ["-fsyntax-only", "-x", "c++", "-"]
    raise SystemExit("check_headers: no compile command of src/base; configure first")


def proved_by_build(header):
    """Whether the header's own source includes it before anything else."""
    source = header.with_suffix(".cpp")
    if not source.is_file():
        return False
    first = next((line for line in source.read_text().splitlines() if line.lstrip().startswith("#")), "")
    return header.relative_to(ROOT).as_posix().removeprefix("src/") in first


def compile_alone(header, command):
    # Included twice: a missing #pragma once would define things again.
    name = header.relative_to(ROOT).as_posix()
    text = f'#include "{name}"\n#include "{name}"\n'
    done = subprocess.run(command, input=text, text=True, capture_output=True, cwd=ROOT, check=False)
    return name, done.returncode, done.stderr


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    flags = flags_by_folder(pathlib.Path(sys.argv[1]))
    headers = [h for top in ("src", "kernels") for h in sorted((ROOT / top).rglob("*.h"))
               if not h.name.endswith("-inl.h") and "cuda" not in h.parts]
    alone = [h for h in headers if not proved_by_build(h)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, code, errors in pool.map(lambda h: compile_alone(h, command_for(h, flags)), alone):
            if code != 0:
                failed += 1
                print(f"{name} does not compile alone:\n{errors}")
    print(f"check_headers: {len(headers)} headers, {len(alone)} compiled here, {failed} failed")
    return 1 if failed or not alone else 0


if __name__ == "__main__":
    sys.exit(main())
