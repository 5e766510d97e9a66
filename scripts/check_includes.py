#!/usr/bin/env python3
"""Checks every #include of src/ and kernels/ against the table of CONTRIBUTING.md, "Who may include whom".

The table is the data at the top; the rest applies it. Also checked: the order of includes in a file, that
quoted paths lead to a file from src/ or the root, that no headers include each other in a circle, and
that interface headers have no #if. tests/ may include anything.

  scripts/check_includes.py              the tree this script is in; exit 1 and a list when something is wrong
  scripts/check_includes.py --self-test  made-up trees: each kind of wrong include must be found
"""
import argparse
import fnmatch
import pathlib
import re
import sys
import tempfile
import unittest

# Lowest first; a folder may include the levels below its own, never its neighbours.
LEVELS = (
    ("base",),
    ("kernels", "config"),
    ("parallel", "memory"),
    ("checkpoint", "cache", "prompts", "output"),
    ("layers",),
    ("models",),
    ("speculative",),
)
BELOW_ENGINE = tuple(folder for level in LEVELS for folder in level) + ("sampling", "scheduler")
LAST = ("report", "bench", "doctor")


def table():
    """folder -> folders it may include, itself apart."""
    allowed = {}
    below = []
    for level in LEVELS:
        allowed.update({folder: set(below) for folder in level})
        below += level
    allowed["kernels"] = {"base"}
    # The sampler takes a rank's rows of the vocabulary as layers/vocab.h splits them.
    allowed["sampling"] = {"base", "kernels", "config", "parallel", "memory", "layers"}
    allowed["speculative"].add("sampling")
    allowed["scheduler"] = {"base", "config", "cache", "prompts"}
    allowed["engine"] = set(BELOW_ENGINE)
    for folder in LAST:
        allowed[folder] = set(BELOW_ENGINE) | {"engine"}
    allowed["cli"] = set(BELOW_ENGINE) | {"engine", *LAST}
    allowed["main.cpp"] = set(allowed) - {"main.cpp"}
    return allowed


ALLOWED = table()

# Header -> the files that may include it. fmt is the formatting of <format> and allowed everywhere.
THIRD_PARTY = (
    ("fmt/*", ("src/*", "kernels/*")),
    ("spdlog/*", ("src/base/*.cpp",)),
    ("openssl/*", ("src/base/*.cpp",)),
    ("xxhash.h", ("src/base/*.cpp",)),
    ("nlohmann/*", ("src/*.cpp",)),
    ("yaml-cpp/*", ("src/config/*.cpp",)),
    ("hdf5*", ("src/output/*",)),
    ("mpi.h", ("src/parallel/*",)),
    ("pcre2.h", ("src/prompts/*.cpp",)),
    ("unicode/*", ("src/prompts/*.cpp",)),
    ("CLI/*", ("src/cli/*",)),
    ("hwy/*", ("kernels/cpu/*",)),
    ("nccl.h", ("src/parallel/nccl_comm.cpp",)),
    ("cooperative_groups.h", ("kernels/cuda/*",)),
    ("cuda*", ("kernels/cuda/*", "src/parallel/nccl_comm.cpp")),
    ("driver_types.h", ("kernels/cuda/*",)),
    ("cublas*", ("kernels/cuda/*",)),
    ("nvml.h", ("kernels/cuda/*",)),
)
# Without a row here or above, a header with .h is refused: a new library needs a decision.
SYSTEM = re.compile(r"^([a-z0-9_]+|(sys|net|netinet|arpa|linux|gnu)/[a-z0-9_-]+\.h|"
                    r"(dirent|dlfcn|fcntl|ifaddrs|netdb|omp|poll|pthread|pwd|sched|signal|spawn|termios|time|unistd)\.h)$")

# Only ops/dispatch.h and make_backend.cpp know which backends there are (one that is not compiled in
# may be missing), and NCCL works on the CUDA backend's stream.
BACKENDS = ("cpu", "cuda")
KNOW_BACKENDS = ("kernels/ops/dispatch.h", "kernels/make_backend.cpp", "src/parallel/nccl_comm.cpp")
GENERATED = ("git_revision.h",)
INTERFACE_HEADERS = ("src/*.h", "kernels/backend.h", "kernels/ops/*.h")

INCLUDE = re.compile(r'^\s*#\s*include\s*(?:<([^>]+)>|"([^"]+)")')
CONDITION = re.compile(r"^\s*#\s*if")


def matches(path, patterns):
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def folder_of(path):
    """kernels/ops/linear.h -> kernels; src/output/resume.h -> output; src/main.cpp -> main.cpp."""
    parts = path.split("/")
    return parts[1] if parts[0] == "src" else parts[0]


def resolve(root, name):
    """The file that a quoted include names, relative to root, or None."""
    for path in (f"src/{name}", name):
        if (root / path).is_file():
            return path
    return None


class Tree:
    def __init__(self, root):
        self.root = root
        self.faults = []
        self.edges = {}  # header -> headers it includes
        for top in ("src", "kernels"):
            for path in sorted((root / top).rglob("*")):
                if path.suffix in (".h", ".cpp", ".cu", ".cuh"):
                    self.check_file(path.relative_to(root).as_posix())
        self.check_circles()

    def fault(self, path, line, text):
        self.faults.append(f"{path}:{line}: {text}")

    def check_file(self, path):
        includes = []  # (line, name, quoted)
        lines = (self.root / path).read_text().splitlines()
        for number, line in enumerate(lines, 1):
            found = INCLUDE.match(line)
            if found:
                includes.append((number, found[1] or found[2], found[2] is not None))
            elif CONDITION.match(line) and matches(path, INTERFACE_HEADERS) and path not in KNOW_BACKENDS:
                self.fault(path, number, "an interface header carries no #if")
        self.check_order(path, includes)
        ours = []
        for number, name, quoted in includes:
            target = resolve(self.root, name) if quoted else None
            if target:
                ours.append((number, target))
            elif quoted and name not in GENERATED and path not in KNOW_BACKENDS:
                self.fault(path, number, f'"{name}" is no file seen from src/ or the root')
            elif not quoted:
                self.check_third_party(path, number, name)
        self.edges[path] = ours
        for number, target in ours:
            self.check_ours(path, number, target)

    def check_order(self, path, includes):
        own = re.sub(r"\.(cpp|cu)$", ".h", path)
        rest = includes
        if own != path and (self.root / own).is_file():
            position = next((i for i, (_, name, quoted) in enumerate(includes)
                             if quoted and resolve(self.root, name) == own), None)
            # Highway compiles a file once for each target; what selects the target has to come first.
            highway = includes and includes[0][1] == "hwy/foreach_target.h"
            if position is None:
                self.fault(path, 1, f"does not include its own header {own}")
            elif position > 0 and not highway:
                self.fault(path, includes[position][0], "a file's own header comes first")
            rest = [entry for i, entry in enumerate(includes) if i != position]
        seen_ours = False
        for number, name, quoted in rest:
            if quoted:
                seen_ours = True
            elif seen_ours:
                self.fault(path, number, f"<{name}> stands below our own headers")

    def check_third_party(self, path, number, name):
        for pattern, places in THIRD_PARTY:
            if fnmatch.fnmatchcase(name, pattern):
                if not matches(path, places):
                    self.fault(path, number, f"<{name}> belongs in {' or '.join(places)}")
                return
        if not SYSTEM.match(name):
            self.fault(path, number, f"<{name}> is neither standard nor in the table of libraries")

    def check_ours(self, path, number, target):
        folder, to = folder_of(path), folder_of(target)
        if folder not in ALLOWED:
            self.fault(path, number, f"folder {folder} is not in the table")
        elif to != folder and to not in ALLOWED[folder]:
            self.fault(path, number, f"{folder} may not include {to} ({target})")
        elif to == "kernels":
            part = target.split("/")[1]
            if part in BACKENDS and path not in KNOW_BACKENDS and not path.startswith(f"kernels/{part}/"):
                self.fault(path, number, f"{target}: only kernels/{part} includes it; others take kernels/ops/")

    def check_circles(self):
        done, stack = set(), []

        def visit(path):
            if path in stack:
                self.fault(path, 1, "circle: " + " -> ".join(stack[stack.index(path):] + [path]))
                return
            if path in done:
                return
            stack.append(path)
            for _, target in self.edges.get(path, []):
                visit(target)
            stack.pop()
            done.add(path)

        for path in sorted(self.edges):
            visit(path)


class SelfTest(unittest.TestCase):
    GOOD = {
        "src/base/error.h": "#pragma once\n#include <string>\n#include <fmt/format.h>\n",
        "src/base/error.cpp": '#include "base/error.h"\n\n#include <spdlog/spdlog.h>\n',
        "src/output/a.h": '#include <vector>\n\n#include "base/error.h"\n',
        "src/output/a.cpp": '#include "output/a.h"\n\n#include <hdf5.h>\n',
        "src/layers/mlp.h": '#include "kernels/ops/linear.h"\n',
        "src/cache/pool.h": "",
        "src/scheduler/s.h": '#include "cache/pool.h"\n',
        "kernels/ops/linear.h": '#include "base/error.h"\n',
        "kernels/ops/dispatch.h": '#include "kernels/cpu/cpu_ops.h"\n#if TANDEM_WITH_CUDA\n#endif\n',
        "kernels/cpu/cpu_ops.h": '#include "kernels/ops/linear.h"\n',
        "tests/output/t.h": '#include "kernels/cpu/cpu_ops.h"\n#include <boost/regex.hpp>\n',
    }

    def run_tree(self, changes):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for path, text in {**self.GOOD, **changes}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            return Tree(root).faults

    def expect(self, path, text, words):
        faults = self.run_tree({path: text})
        self.assertEqual(len(faults), 1, faults)
        self.assertTrue(faults[0].startswith(path + ":"), faults)
        self.assertIn(words, faults[0])

    def test_good_tree(self):
        self.assertEqual(self.run_tree({}), [])

    def test_table_has_no_circles(self):
        levels = {}

        def level(folder, above):
            self.assertNotIn(folder, above)
            if folder not in levels:
                levels[folder] = 1 + max((level(f, above + [folder]) for f in ALLOWED[folder]), default=0)
            return levels[folder]

        for folder in ALLOWED:
            level(folder, [])

    def test_upward(self):
        self.expect("src/base/x.h", '#include "output/a.h"\n', "base may not include output")

    def test_neighbour(self):
        self.expect("src/cache/x.h", '#include "output/a.h"\n', "cache may not include output")

    def test_kernels_take_only_base(self):
        self.expect("kernels/ops/x.h", '#include "cache/pool.h"\n', "kernels may not include cache")

    def test_scheduler_knows_no_layers(self):
        self.expect("src/scheduler/x.cpp", '#include "layers/mlp.h"\n', "scheduler may not include layers")

    def test_backend_from_a_layer(self):
        self.expect("src/layers/x.h", '#include "kernels/cpu/cpu_ops.h"\n', "only kernels/cpu")

    def test_backend_from_an_op(self):
        self.expect("kernels/ops/x.cpp", '#include "kernels/cpu/cpu_ops.h"\n', "only kernels/cpu")

    def test_library_in_the_wrong_place(self):
        self.expect("src/layers/x.cpp", "#include <hdf5.h>\n", "<hdf5.h> belongs in src/output/*")
        self.expect("src/output/x.cpp", "#include <mpi.h>\n", "<mpi.h> belongs in src/parallel/*")

    def test_library_in_a_header(self):
        self.expect("src/config/x.h", "#include <yaml-cpp/yaml.h>\n", "belongs in src/config/*.cpp")
        self.expect("src/output/x.h", "#include <nlohmann/json.hpp>\n", "belongs in src/*.cpp")

    def test_unknown_library(self):
        self.expect("src/base/x.cpp", "#include <boost/regex.hpp>\n", "neither standard nor in the table")

    def test_unknown_folder(self):
        self.expect("src/utils/x.h", '#include "base/error.h"\n', "folder utils is not in the table")

    def test_own_header_first(self):
        self.expect("src/output/a.cpp", '#include <hdf5.h>\n\n#include "output/a.h"\n', "own header comes first")

    def test_own_header_missing(self):
        self.expect("src/output/a.cpp", "#include <hdf5.h>\n", "does not include its own header")

    def test_order(self):
        self.expect("src/output/b.cpp", '#include "output/a.h"\n\n#include <vector>\n', "below our own")

    def test_path_from_elsewhere(self):
        self.expect("src/output/b.cpp", '#include "a.h"\n', "is no file seen from")

    def test_program_needs_no_tests(self):
        self.expect("src/output/b.cpp", '#include "tests/output/t.h"\n', "output may not include tests")

    def test_if_in_an_interface(self):
        self.expect("src/output/b.h", "#ifdef NDEBUG\n#endif\n", "carries no #if")

    def test_circle(self):
        faults = self.run_tree({"src/output/b.h": '#include "output/c.h"\n', "src/output/c.h": '#include "output/b.h"\n'})
        self.assertEqual(len(faults), 1, faults)
        self.assertIn("circle: src/output/b.h -> src/output/c.h -> src/output/b.h", faults[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--self-test", action="store_true", help="check the checker")
    if parser.parse_args().self_test:
        return 0 if unittest.main(argv=[sys.argv[0]], exit=False).result.wasSuccessful() else 1
    tree = Tree(pathlib.Path(__file__).resolve().parent.parent)
    for fault in tree.faults:
        print(fault)
    print(f"check_includes: {len(tree.edges)} files, {len(tree.faults)} faults")
    return 1 if tree.faults or not tree.edges else 0


if __name__ == "__main__":
    sys.exit(main())
