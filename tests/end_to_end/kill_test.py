#!/usr/bin/python3
"""kill -9 of a rank, of mpirun and of everything at random moments of a two-rank job, spread over
start-up, load, run and writing: the file opens, keeps what had been reported, and is completed by
--resume with the tokens of an uninterrupted run; no process stays behind.

TANDEM_KILLS: moments per victim (2), TANDEM_SEED: of the moments."""
import os
import random
import signal
import sys
import time
import unittest

from tandem_job import JobDir, TandemTest, enough_requests, errors_in, read_rows, tokens_by_id

KILLS = int(os.environ.get("TANDEM_KILLS", "2"))
SEED = int(os.environ.get("TANDEM_SEED", "1"))
RANKS = 2
LEAVE_LIMIT_S = 10
PHASES = ("start-up", "load", "run", "writing")
# More requests than places, so that rows reach the file all the way through the job.
SCHEDULER = {"max_sequences": 3, "max_batched_tokens": 64}


def make_prompts(count):
    return [{"id": f"r{i}", "prompt": f"Item {i}: value={i}, squared={i * i}, status=", "seed": i,
             "max_tokens": 200 + 7 * (i % 10), "ignore_eos": True,
             "temperature": 0.8 if i % 2 else 0.0} for i in range(count)]


def finished_ids(job):
    return set(tokens_by_id(job.out)) if job.out.exists() else set()


class KillTest(TandemTest):
    @classmethod
    def setUpClass(cls):
        case = cls("setUpClass")
        cls.num_requests = enough_requests(make_prompts, 10, scheduler=SCHEDULER)
        job = case.make_job()
        finished = job.run_job(np=RANKS)
        case.assert_code(finished, 0)
        cls.reference = tokens_by_id(job.out)
        case.assertEqual(len(cls.reference), cls.num_requests)
        job.out.unlink()
        # How long start-up takes on this machine today, until the output is opened.
        process = job.start_job(np=RANKS)
        while not job.temporaries():
            time.sleep(0.01)
        cls.start_up_s = time.monotonic() - process.start_s
        process.kill_all()
        process.wait()
        case.doCleanups()

    def make_job(self):
        job = JobDir(self)
        job.write_prompts(make_prompts(self.num_requests))
        job.write_job(scheduler=SCHEDULER)
        return job

    def wait_for(self, job, process, condition):
        while not condition():
            self.assertIsNone(process.popen.poll(), process.output()[1])
            time.sleep(0.002)

    def wait_for_moment(self, job, process, phase, rng):
        """Returns with the job somewhere inside the phase."""
        if phase == "start-up":
            time.sleep(rng.uniform(0.05, 0.95) * self.start_up_s)
            return
        if phase == "load":  # begins when the output is opened, ends when the file appears
            self.wait_for(job, process, job.temporaries)
            time.sleep(rng.uniform(0, 0.15))
            return
        self.wait_for(job, process, job.out.exists)
        # A flush must still be to come, or there is no writing left to interrupt.
        last = self.num_requests * 3 // 4 if phase == "writing" else self.num_requests - 1
        wanted = rng.randrange(0, last)
        self.wait_for(job, process, lambda: len(finished_ids(job)) >= wanted)
        if phase == "writing":  # a flush works on the temporary
            self.wait_for(job, process, lambda: "out.h5.tmp" in job.temporaries())
            time.sleep(rng.choice((0, 0.001, 0.003, 0.01)))
        else:
            time.sleep(rng.uniform(0, 0.4))

    def kill(self, process, victim, rng):
        """Kills; returns the rank killed if it was one, or None if the job had ended before."""
        pids = process.pids()
        launcher = process.popen.pid
        ranks = {rank: pid for pid, rank in pids.items() if rank is not None and pid != launcher}
        if victim == "rank" and ranks:
            rank = rng.choice(sorted(ranks))
            os.kill(ranks[rank], signal.SIGKILL)
            return rank
        # Before the ranks exist there is only mpirun to kill.
        for pid in pids if victim == "all" else [launcher]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return None

    def check_kill(self, victim, phase, rng):
        job = self.make_job()
        process = job.start_job(np=RANKS)
        self.wait_for_moment(job, process, phase, rng)
        guarded = bool(job.temporaries())  # the lock is taken after the guard is up
        reported = finished_ids(job)
        killed_rank = self.kill(process, victim, rng)
        killed_s = time.monotonic()
        finished = process.wait(LEAVE_LIMIT_S)  # fails if any process stays
        left_s = time.monotonic() - killed_s
        if guarded and killed_rank is not None and finished.code != 0:
            # The survivor names the lost rank, once.
            lost = [e for e in errors_in(finished.err) if f"rank {killed_rank} on " in e]
            self.assertEqual(len(lost), 1, finished.err)
            self.assertIn("is lost", lost[0])

        resume, kept = [], {}
        if job.out.exists():
            kept = tokens_by_id(job.out)
            self.assertLessEqual(reported, set(kept))
            for request_id, tokens in kept.items():
                self.assertEqual(tokens, self.reference[request_id], request_id)
            resume = ["--resume"]
        else:
            self.assertEqual(reported, set())
        again = job.run_job(*resume, np=RANKS)
        self.assert_code(again, 0)
        rows = read_rows(job.out)  # fails if an id comes twice
        self.assertEqual({key[0]: row.tokens for key, row in rows.items()}, self.reference)
        if resume:
            self.assertEqual(sum(row.session == 1 for row in rows.values()), len(kept))
        self.assertEqual(job.temporaries(), [])
        print(f"kill {victim:6} {phase:8} kept {len(kept):2} of {self.num_requests}, all left after "
              f"{left_s:.2f} s", file=sys.stderr)

    def check_victim(self, victim):
        rng = random.Random(f"{SEED} {victim}")
        shift = ("rank", "mpirun", "all").index(victim)  # short runs cover all phases together
        for i in range(KILLS):
            phase = PHASES[(i + 2 * shift) % len(PHASES)]
            with self.subTest(victim=victim, phase=phase, kill=i):
                self.check_kill(victim, phase, rng)

    def test_a_rank(self):
        self.check_victim("rank")

    def test_a_stopped_rank(self):
        """Silence instead of a closed connection: a host that hangs looks like this."""
        job = self.make_job()
        process = job.start_job(np=RANKS)
        self.wait_for(job, process, lambda: len(finished_ids(job)) >= 1)
        (pid,) = (pid for pid, rank in process.pids().items() if rank == 1)
        os.kill(pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        finished = process.wait(2 * LEAVE_LIMIT_S)
        print(f"stopped rank: all left after {time.monotonic() - stopped_s:.2f} s", file=sys.stderr)
        self.assert_code(finished, 6)
        self.assertEqual(len(errors_in(finished.err)), 1, finished.err)
        self.assertRegex(finished.err, r"rank 1 on \S+ \(pid \d+\) is lost")
        self.assertLess(len(finished_ids(job)), self.num_requests)
        self.assert_code(job.run_job("--resume", np=RANKS), 0)
        self.assertEqual(tokens_by_id(job.out), self.reference)

    def test_mpirun(self):
        self.check_victim("mpirun")

    def test_everything(self):
        self.check_victim("all")


if __name__ == "__main__":
    unittest.main(verbosity=2)
