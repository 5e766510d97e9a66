#!/usr/bin/env python3
"""What happens to a job when something goes wrong: kills, stops, hangs and interrupts real ranks under
mpirun, then looks at exit codes, messages, what was saved, how long it took and what is left running."""
import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ARGS = None
LIMIT_S = 10  # product.md: all ranks stop within seconds


class Job:
    """A guard_driver job in its own directory and session."""

    def __init__(self, mode, ranks=2, launcher=None):
        self.directory = tempfile.TemporaryDirectory(prefix="tandem-guard-")
        self.ranks = ranks
        start = [ARGS.mpirun] if launcher is None else launcher  # [] for a process without mpirun
        if start:
            start = start + ["-np", str(ranks)]
        self.stderr = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            start + [ARGS.driver, mode, self.directory.name], stdin=subprocess.DEVNULL,
            stdout=self.stderr, stderr=self.stderr, start_new_session=True)

    def file(self, name):
        try:
            with open(os.path.join(self.directory.name, name)) as f:
                return f.read()
        except FileNotFoundError:
            return ""

    def pid(self, rank):
        return int(self.file(f"pid{rank}"))

    def wait_until_running(self):
        deadline = time.monotonic() + 30
        while not all(self.file(f"pid{r}").endswith("\n") for r in range(self.ranks)):
            assert time.monotonic() < deadline, "the job did not start:\n" + self.output()
            time.sleep(0.05)
        time.sleep(0.7)  # some steps, some heartbeats

    def output(self):
        self.stderr.seek(0)
        return self.stderr.read()

    def wait(self, limit_s=LIMIT_S):
        """The launcher's exit code; fails if it or a rank is still there after limit_s."""
        deadline = time.monotonic() + limit_s
        code = self.process.wait(timeout=limit_s)
        while any(alive(self.pid(r)) for r in range(self.ranks)):
            assert time.monotonic() < deadline, "a rank outlived the job"
            time.sleep(0.05)
        return code

    def close(self):
        for rank in range(self.ranks):
            if self.file(f"pid{rank}") and alive(self.pid(rank)):
                os.kill(self.pid(rank), signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.stderr.close()
        self.directory.cleanup()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class GuardTest(unittest.TestCase):
    def start(self, mode, **kwargs):
        job = Job(mode, **kwargs)
        self.addCleanup(job.close)
        job.wait_until_running()
        return job

    def assert_one_message(self, job, *parts):
        lines = [line for line in job.output().splitlines() if "stopping" in line]
        self.assertEqual(len(lines), 1, job.output())
        for part in parts:
            self.assertIn(part, lines[0])

    def test_orderly_end(self):
        job = self.start("orderly")
        self.assertEqual(job.wait(), 0, job.output())
        self.assertEqual(job.file("saved"), "end code 0\n")
        self.assertIn("0 7 hello from 0\n", job.file("messages"))
        self.assertIn("1 7 hello from 1\n", job.file("messages"))
        self.assertNotIn("error", job.output())

    def test_four_ranks_end_orderly(self):
        job = self.start("orderly", ranks=4)
        self.assertEqual(job.wait(20), 0, job.output())
        self.assertIn("3 7 hello from 3\n", job.file("messages"))

    def test_unwatched_pause_is_no_stall(self):
        job = self.start("unwatched")
        self.assertEqual(job.wait(), 0, job.output())

    def test_ranks_wait_until_rank_0_has_saved(self):
        job = self.start("slow_save")
        job.process.send_signal(signal.SIGUSR1)
        self.assertEqual(job.wait(), 8, job.output())
        self.assertEqual(job.file("saved"), "end code 130\n")

    def test_exception_in_rank_1(self):
        job = self.start("throw1")
        self.assertEqual(job.wait(), 4, job.output())
        self.assert_one_message(job, "rank 1 on ", "step 20", "decode", "out of pages",
                                f"pid {job.pid(1)}")
        self.assertEqual(job.file("saved"), "failure rank 1 step 20 code 4\n")

    def test_exception_in_rank_0(self):
        job = self.start("throw0")
        self.assertEqual(job.wait(), 4, job.output())
        self.assert_one_message(job, "rank 0 on ", "step 20", "out of pages")
        self.assertEqual(job.file("saved"), "failure rank 0 step 20 code 4\n")

    def test_stall_names_the_rank_that_hangs_and_not_the_one_that_waits(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                job = self.start(f"stall{rank}")
                self.assertEqual(job.wait(), 6, job.output())
                self.assert_one_message(job, f"rank {rank} on ", "finished no step", "step 20",
                                        "decode")
                self.assertEqual(job.file("saved"), f"failure rank {rank} step 20 code 6\n")

    def test_rank_1_killed(self):
        job = self.start("run")
        os.kill(job.pid(1), signal.SIGKILL)
        # Open MPI reports the first end it sees, the killed rank's 128 + 9; ours is 6.
        self.assertIn(job.wait(), (6, 137), job.output())
        self.assert_one_message(job, "rank 1 on ", "is lost", "step", f"pid {job.pid(1)}")
        self.assertRegex(job.file("saved"), r"^failure rank 1 step [1-9]\d* code 6\n$")

    def test_rank_1_of_4_killed(self):
        job = self.start("run", ranks=4)
        os.kill(job.pid(1), signal.SIGKILL)
        self.assertIn(job.wait(), (6, 137), job.output())
        self.assert_one_message(job, "rank 1 on ", "is lost")

    def test_rank_0_killed(self):
        job = self.start("run", ranks=3)
        os.kill(job.pid(0), signal.SIGKILL)
        self.assertIn(job.wait(), (6, 137), job.output())
        self.assert_one_message(job, "rank 0 on ", "is lost", f"pid {job.pid(0)}")

    def test_rank_that_exits_without_a_word(self):
        job = self.start("exit1")
        # Open MPI turns an exit code of 0 without MPI_Finalize into 1.
        self.assertIn(job.wait(), (1, 6), job.output())
        self.assert_one_message(job, "rank 1 on ", "is lost")

    def test_rank_stopped(self):
        for rank in (0, 1):
            with self.subTest(rank=rank):
                job = self.start("run")
                os.kill(job.pid(rank), signal.SIGSTOP)
                self.assertEqual(job.wait(), 6, job.output())
                self.assert_one_message(job, f"rank {rank} on ")

    def test_save_that_hangs_does_not_keep_the_job(self):
        job = self.start("save_hangs1")
        self.assertIn(job.wait(), (6, 137), job.output())
        self.assert_one_message(job, "rank 1 on ")

    def test_mpirun_killed(self):
        job = self.start("run")
        os.kill(job.process.pid, signal.SIGKILL)
        job.wait()
        self.assertRegex(job.file("saved"), r"^failure rank 0 step [1-9]\d* code 6\n$")

    def test_whole_job_stopped_and_resumed(self):
        job = self.start("pause")
        job.process.send_signal(signal.SIGTSTP)
        time.sleep(4)  # twice what counts as lost
        self.assertEqual(job.file("saved"), "")
        job.process.send_signal(signal.SIGCONT)
        self.assertEqual(job.wait(20), 0, job.output())
        self.assertEqual(job.file("saved"), "end code 0\n")

    def test_interrupts_on_mpirun_save_and_exit_130(self):
        for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number.name):
                job = self.start("run")
                job.process.send_signal(number)
                code = job.wait()
                # On SIGINT and SIGTERM Open MPI 4.1 returns 1 whatever the ranks return.
                self.assertIn(code, (130,) if number == signal.SIGUSR1 else (1, 130), job.output())
                self.assertEqual(job.file("saved"), "end code 130\n", job.output())
                self.assertEqual(job.file("exit0") + job.file("exit1"), "130\n130\n")

    def test_wrapper_interrupt_exits_130(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(signal=number.name):
                job = self.start("run", launcher=[ARGS.wrapper])
                job.process.send_signal(number)
                self.assertEqual(job.wait(), 130, job.output())
                self.assertEqual(job.file("saved"), "end code 130\n")

    def test_wrapper_rank_killed_exits_6(self):
        job = self.start("run", launcher=[ARGS.wrapper])
        os.kill(job.pid(1), signal.SIGKILL)
        self.assertEqual(job.wait(), 6, job.output())

    def test_wrapper_passes_codes_on(self):
        job = self.start("throw1", launcher=[ARGS.wrapper])
        self.assertEqual(job.wait(), 4, job.output())

    def test_single_process(self):
        job = self.start("run", ranks=1, launcher=[])
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(), 130, job.output())
        self.assertEqual(job.file("saved"), "end code 130\n")
        job = self.start("stall0", ranks=1, launcher=[])
        self.assertEqual(job.wait(), 6, job.output())
        self.assert_one_message(job, "rank 0 on ", "finished no step")

    def test_second_interrupt_ends_at_once(self):
        job = self.start("stall0", ranks=1, launcher=[])
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        self.assertIsNone(job.process.poll())
        job.process.send_signal(signal.SIGINT)
        self.assertEqual(job.wait(1), 130)
        self.assertEqual(job.file("saved"), "")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mpirun", required=True)
    parser.add_argument("--driver", required=True)
    parser.add_argument("--wrapper", required=True)
    ARGS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0]] + rest)
