"""Jobs run through the real binary, and their result files read with h5py alone.

Owns a job's directory (job file, prompts, output), its processes from start to end, and the check that
none is left; what a job must do is the tests'. The binary and the launcher come from the environment,
as CTest sets it: TANDEM_BINARY, TANDEM_MPIRUN."""
import atexit
import collections
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

try:
    import h5py
    import numpy as np
except ImportError:
    # CTest shows this code as "Skipped" (SKIP_RETURN_CODE); unittest alone would call it a success.
    print("skipped: this Python has no h5py", file=sys.stderr)
    sys.exit(77)

SOURCE = pathlib.Path(__file__).resolve().parents[2]
CHECKPOINT = SOURCE / "tests/data/tiny-qwen3.8"
BINARY = os.environ.get("TANDEM_BINARY", str(SOURCE / "build/cpu/tandem"))
MPIRUN = os.environ.get("TANDEM_MPIRUN", "mpirun")
# More ranks than cores, root, containers: what scripts/cmake/TandemMpiTest.cmake sets for CTest.
LAUNCH_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "PRTE_ALLOW_RUN_AS_ROOT": "1", "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "PRTE_MCA_hwloc_default_binding_policy": "none", "OMP_NUM_THREADS": "1"}
TAG = "TANDEM_TEST_JOB"  # environment variable that marks every process of a job
LIMIT_S = 300
SECONDS_TO_INTERRUPT = 2.5

Finished = collections.namedtuple("Finished", "code out err seconds")
Row = collections.namedtuple("Row", "tokens hashes finish session fields")


def errors_in(text):
    """The error messages of a run: those that end the program, and those the rank guard speaks."""
    return re.findall(r"^(?:tandem: error: |\[\S+ error rank \d+\] ).*$", text, re.MULTILINE)


class Process:
    """A started job: the launcher, and every process below it, found by a mark in their environment."""

    def __init__(self, command, env, cwd, setup=None):
        self.mark = uuid.uuid4().hex
        self.start_s = time.monotonic()
        # Files, not pipes: nobody has to read them while the job runs.
        self.out, self.err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        self.popen = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, cwd=cwd,
            env={**os.environ, **LAUNCH_ENVIRONMENT, **env, TAG: self.mark},
            start_new_session=True, preexec_fn=setup)
        atexit.register(self.kill_all)

    def pids(self):
        """{pid: rank} of the processes still there; rank is None for launchers. Zombies do not count."""
        found = {}
        needle = f"{TAG}={self.mark}".encode()
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    variables = f.read().split(b"\0")
                with open(f"/proc/{entry}/stat") as f:
                    state = f.read().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if needle in variables and state not in "ZX":
                ranks = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
                found[int(entry)] = int(ranks[0].partition(b"=")[2]) if ranks else None
        return found

    def kill_all(self):
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.popen.wait()

    def output(self):
        self.out.seek(0)
        self.err.seek(0)
        return self.out.read(), self.err.read()

    def wait(self, limit_s=LIMIT_S):
        """Until the launcher and all ranks are gone; fails, after killing them, if that takes longer."""
        deadline = time.monotonic() + limit_s
        try:
            code = self.popen.wait(timeout=limit_s)
            while self.pids():
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(self.popen.args, limit_s)
                time.sleep(0.02)
        except subprocess.TimeoutExpired:
            left = self.pids()
            self.kill_all()
            raise AssertionError(f"still running after {limit_s} s: {left}\n" + self.output()[1])
        atexit.unregister(self.kill_all)
        seconds = time.monotonic() - self.start_s
        out, err = self.output()
        self.out.close()
        self.err.close()
        return Finished(code, out, err, seconds)


class JobDir:
    """A temporary directory with job.yaml, prompts.jsonl and out.h5."""

    def __init__(self, test):
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="tandem-e2e-"))
        test.addCleanup(shutil.rmtree, self.path, ignore_errors=True)
        self.job, self.prompts, self.out = (self.path / n for n in
                                            ("job.yaml", "prompts.jsonl", "out.h5"))

    def write_prompts(self, lines):
        self.prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def write_job(self, **sections):
        """The tiny checkpoint on one thread's worth of memory; `sections` override single keys."""
        job = {"model": {"path": str(CHECKPOINT)}, "backend": "cpu",
               "memory": {"reserve": "256MiB", "kv": "16MiB"},
               "scheduler": {"max_sequences": 4, "max_batched_tokens": 256},
               "prompts": {"file": str(self.prompts)},
               "output": {"file": str(self.out), "flush_every": "200ms"}}
        for section, values in sections.items():
            if isinstance(values, dict):
                job[section] = {**job.get(section, {}), **values}
            else:
                job[section] = values
        self.job.write_text(json.dumps(job, indent=1))  # JSON is YAML

    def start(self, *args, np=None, env=None, setup=None, launcher=None):
        command = [BINARY, *map(str, args)]
        if np is not None:
            command = [*(launcher or [MPIRUN]), "-np", str(np), *command]
        return Process(command, env or {}, self.path, setup)

    def run(self, *args, limit_s=LIMIT_S, **how):
        return self.start(*args, **how).wait(limit_s)

    def start_job(self, *args, **how):
        return self.start("run", self.job, "--quiet", *args, **how)

    def run_job(self, *args, limit_s=LIMIT_S, **how):
        return self.start_job(*args, **how).wait(limit_s)

    def temporaries(self):
        return sorted(p.name for p in self.path.glob("out.h5.*"))


def enough_requests(make_prompts, start, **sections):
    """How many of make_prompts(n) keep this machine busy for SECONDS_TO_INTERRUPT after the first rows are
    on disk: a test that interrupts a job must not find it finished, however fast the machine."""
    case = TandemTest("job_dir")
    job = JobDir(case)
    job.write_prompts(make_prompts(start))
    job.write_job(**sections)
    process = job.start_job()
    while not job.out.exists() or not read_rows(job.out):
        case.assertIsNone(process.popen.poll(), process.output()[1])
        time.sleep(0.002)
    first_s = time.monotonic()
    case.assert_code(process.wait(), 0)
    seconds = max(time.monotonic() - first_s, 0.05)
    case.doCleanups()
    return start * max(1, min(50, math.ceil(SECONDS_TO_INTERRUPT / seconds)))


def read_rows(path):
    """{(id, concurrency, run, warm-up): Row} of /requests and /tokens; fails if a key comes twice."""
    rows = {}
    with h5py.File(path, "r") as f:
        requests = f["requests"]
        columns = {name: (d.asstr() if d.dtype.kind == "S" else d)[:]
                   for name, d in requests.items()}
        offsets = f["tokens/completion_offsets"][:]
        ids, hashes = f["tokens/completion_ids"][:], f["tokens/logit_hash"][:]
        for i, begin in enumerate(offsets[:-1]):
            fields = {name: column[i] for name, column in columns.items()}
            key = (fields["id"], int(fields["concurrency"]), int(fields["run_index"]),
                   bool(fields["warmup"]))
            assert key not in rows, f"{path}: {key} twice"
            rows[key] = Row(tuple(ids[begin:offsets[i + 1]].tolist()),
                            tuple(hashes[begin:offsets[i + 1]].tolist()),
                            fields["finish_reason"], int(fields["session"]), fields)
        assert len(offsets) == len(columns["id"]) + 1
    return rows


def tokens_by_id(path):
    """{id: completion ids} of a batch-mode file."""
    return {key[0]: row.tokens for key, row in read_rows(path).items()}


class TandemTest(unittest.TestCase):
    maxDiff = 2000

    def job_dir(self):
        return JobDir(self)

    def assert_code(self, finished, *codes):
        self.assertIn(finished.code, codes, finished.out + finished.err)

    def assert_refused(self, finished, code, *parts):
        """The code, exactly one error message on stderr, and what it must say."""
        self.assert_code(finished, code)
        self.assertEqual(len(errors_in(finished.err)), 1, finished.err)
        for part in parts:
            self.assertIn(part, finished.err)
