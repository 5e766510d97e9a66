#!/usr/bin/python3
"""SIGINT, SIGTERM and SIGUSR1 to a running job: finished requests are saved, the exit code is 130 where
the launcher lets it through, a second signal ends the job at once, and --resume gives the tokens of an
uninterrupted run. What Open MPI does with each signal is told in src/parallel/signals.h."""
import signal
import time
import unittest

from tandem_job import SOURCE, JobDir, TandemTest, enough_requests, h5py, read_rows, tokens_by_id

WRAPPER = SOURCE / "scripts/mpirun_job.sh"
SCHEDULER = {"max_sequences": 3, "max_batched_tokens": 64}


def make_prompts(count):
    return [{"id": f"r{i}", "prompt": f"class Stack{i}:\n    def ", "max_tokens": 150 + 20 * (i % 10),
             "ignore_eos": True, "temperature": 0.7 * (i % 2)} for i in range(count)]


class SignalTest(TandemTest):
    @classmethod
    def setUpClass(cls):
        case = cls("setUpClass")
        cls.num_requests = enough_requests(make_prompts, 10, scheduler=SCHEDULER)
        cls.reference = {}
        for np in (None, 2):
            job = case.make_job()
            case.assert_code(job.run_job(np=np), 0)
            cls.reference[np] = tokens_by_id(job.out)
        case.doCleanups()

    def make_job(self):
        job = JobDir(self)
        job.write_prompts(make_prompts(self.num_requests))
        job.write_job(scheduler=SCHEDULER)
        return job

    def start_and_wait_for_rows(self, rows=2, **how):
        job = self.make_job()
        process = job.start_job(**how)
        while not job.out.exists() or len(read_rows(job.out)) < rows:
            self.assertIsNone(process.popen.poll(), process.output()[1])
            time.sleep(0.02)
        return job, process

    def check_saved_and_resumed(self, job, np, status="interrupted"):
        kept = tokens_by_id(job.out)
        self.assertGreaterEqual(len(kept), 2)
        self.assertLess(len(kept), self.num_requests)
        with h5py.File(job.out) as f:
            self.assertEqual(f["passport"].attrs["exit_status"], status)
        self.assert_code(job.run_job("--resume", np=np), 0)
        self.assertEqual(tokens_by_id(job.out), self.reference[np])
        with h5py.File(job.out) as f:
            self.assertEqual(f["passport"].attrs["exit_status"], "done")
            self.assertEqual(list(f["sessions/session"][:]), [1, 2])

    def test_single_process(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(signal=number.name):
                job, process = self.start_and_wait_for_rows()
                process.popen.send_signal(number)
                finished = process.wait(20)
                self.assert_code(finished, 130)
                self.assertNotIn("error", finished.err)
                self.check_saved_and_resumed(job, None)

    def test_mpirun(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            with self.subTest(signal=number.name):
                job, process = self.start_and_wait_for_rows(np=2)
                process.popen.send_signal(number)
                finished = process.wait(20)
                # On SIGINT and SIGTERM Open MPI 4.1 returns 1 whatever the ranks return.
                codes = (130,) if number == signal.SIGUSR1 else (1, 130)
                self.assert_code(finished, *codes)
                self.check_saved_and_resumed(job, 2)

    def test_launch_wrapper_returns_130(self):
        job, process = self.start_and_wait_for_rows(np=2, launcher=[str(WRAPPER)])
        process.popen.send_signal(signal.SIGINT)
        self.assert_code(process.wait(20), 130)
        self.check_saved_and_resumed(job, 2)

    def test_second_signal_ends_at_once(self):
        job, process = self.start_and_wait_for_rows()
        process.popen.send_signal(signal.SIGINT)
        process.popen.send_signal(signal.SIGINT)
        process.popen.send_signal(signal.SIGTERM)
        self.assert_code(process.wait(5), 130)
        # Between the two signals the first may have been obeyed already.
        with h5py.File(job.out) as f:
            self.assertIn(f["passport"].attrs["exit_status"], ("running", "interrupted"))
        self.assert_code(job.run_job("--resume"), 0)
        self.assertEqual(tokens_by_id(job.out), self.reference[None])
        self.assertEqual(job.temporaries(), [])

    def test_during_load(self):
        job = self.make_job()
        process = job.start_job()
        while not job.out.exists():
            time.sleep(0.001)
        process.popen.send_signal(signal.SIGTERM)
        self.assert_code(process.wait(20), 130)
        self.assertEqual(read_rows(job.out), {})
        self.assert_code(job.run_job("--resume"), 0)
        self.assertEqual(tokens_by_id(job.out), self.reference[None])


if __name__ == "__main__":
    unittest.main(verbosity=2)
