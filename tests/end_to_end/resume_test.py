#!/usr/bin/python3
"""--resume: goes on where a run was interrupted, with other batch settings where determinism allows it;
refuses, field by field, whatever could change a token; does nothing to a complete file."""
import json
import signal
import time
import unittest

from checkpoint_copy import SHARD, copy_checkpoint, rewrite
from tandem_job import JobDir, TandemTest, enough_requests, h5py, read_rows, tokens_by_id

BATCH = {"max_sequences": 2, "max_batched_tokens": 64}


def make_prompts(count):
    return [{"id": f"r{i}", "prompt": f"def square_{i}(x):\n    return ", "max_tokens": 120 + 10 * (i % 8),
             "ignore_eos": True, "temperature": 0.8 * (i % 2)} for i in range(count)]


class ResumeTest(TandemTest):
    def make_job(self, **sections):
        job = JobDir(self)
        job.write_prompts(self.prompts)
        job.write_job(**{"scheduler": BATCH, **sections})
        return job

    def interrupted_job(self, np=None, **sections):
        """A job stopped after some of its requests."""
        job = self.make_job(**sections)
        process = job.start_job(np=np)
        while not job.out.exists() or len(read_rows(job.out)) < 2:
            self.assertIsNone(process.popen.poll(), process.output()[1])
            time.sleep(0.01)
        process.popen.send_signal(signal.SIGUSR1)  # mpirun passes this one on
        self.assert_code(process.wait(), 130)
        self.assertLess(len(read_rows(job.out)), len(self.prompts))
        return job

    @classmethod
    def setUpClass(cls):
        case = cls("setUpClass")
        cls.prompts = make_prompts(enough_requests(make_prompts, 8, scheduler=BATCH))
        job = case.make_job()
        case.assert_code(job.run_job(), 0)
        cls.reference = tokens_by_id(job.out)
        case.doCleanups()

    def test_other_batch_settings(self):
        for name, change in (
                ("concurrency", {"scheduler": {"max_sequences": 5, "max_batched_tokens": 64}}),
                ("chunks and cache", {"scheduler": {"max_sequences": 2, "max_batched_tokens": 17,
                                                    "prefix_cache": False}}),
                ("pages and pool", {"memory": {"page_tokens": 64, "kv": "4MiB"}}),
                ("flushes and text", {"output": {"flush_every": "5s", "text": False}})):
            with self.subTest(name):
                job = self.interrupted_job()
                job.write_job(**{"scheduler": BATCH, **change})
                self.assert_code(job.run_job("--resume"), 0)
                self.assertEqual(tokens_by_id(job.out), self.reference)

    def test_twice(self):
        job = self.interrupted_job()
        kept = len(read_rows(job.out))  # more than were waited for, perhaps
        process = job.start_job("--resume")
        while len(read_rows(job.out)) <= kept:
            self.assertIsNone(process.popen.poll(), process.output()[1])
            time.sleep(0.01)
        process.popen.send_signal(signal.SIGKILL)
        process.wait()
        self.assert_code(job.run_job("--resume"), 0)
        rows = read_rows(job.out)
        self.assertEqual({key[0]: row.tokens for key, row in rows.items()}, self.reference)
        self.assertEqual({row.session for row in rows.values()}, {1, 2, 3})

    def test_bench_mode(self):
        bench = {"run": {"mode": "bench", "concurrency": [1, 2], "warmup": 1, "repeats": 2}}
        job = self.make_job(**bench)
        prompts = [{**p, "max_tokens": 30} for p in self.prompts]
        job.write_prompts(prompts)
        process = job.start_job()
        while not job.out.exists() or len(read_rows(job.out)) < 2 * len(prompts) + 3:
            self.assertIsNone(process.popen.poll(), process.output()[1])
            time.sleep(0.01)
        process.popen.send_signal(signal.SIGKILL)
        process.wait()
        kept = read_rows(job.out)
        self.assert_code(job.run_job("--resume"), 0)
        rows = read_rows(job.out)
        self.assertEqual(len(rows), 2 * 3 * len(prompts))
        self.assertEqual({key for key, row in rows.items() if row.session == 1}, set(kept))
        for prompt in prompts:
            self.assertEqual(len({row.tokens for key, row in rows.items() if key[0] == prompt["id"]}), 1)

    def test_complete_file(self):
        job = self.make_job()
        for ranks in (None, 2):
            job.out.unlink(missing_ok=True)
            self.assert_code(job.run_job(np=ranks), 0)
            before = job.out.read_bytes()
            self.assert_code(job.run_job("--resume", np=ranks), 0)
            self.assertEqual(job.out.read_bytes(), before)
            self.assertEqual(job.temporaries(), [])

    def refuse(self, job, *parts, args=(), **how):
        before = job.out.read_bytes()
        self.assert_refused(job.run_job("--resume", *args, **how), 2, "cannot resume", *parts)
        self.assertEqual(job.out.read_bytes(), before)

    def test_refusals_name_every_field(self):
        job = self.interrupted_job()
        self.refuse(job, "sampling.seed: the file has '0', this run '7'",
                    args=("--set", "sampling.seed=7"))
        self.refuse(job, "sampling.top_k", "sampling.seed", "speculative.tokens",
                    args=("--set", "sampling.top_k=5", "--set", "sampling.seed=1", "--set",
                          "speculative.tokens=2"))
        self.refuse(job, "run.determinism", args=("--set", "run.determinism=schedule"))
        self.refuse(job, "model.activation_dtype", args=("--set", "model.activation_dtype=fp32"))
        self.refuse(job, "ranks: the file has '1', this run '2'", np=2)

        job.write_prompts([{**self.prompts[0], "prompt": "other"}, *self.prompts[1:]])
        self.refuse(job, "prompt 'r0'")
        job.write_prompts([{**self.prompts[0], "max_tokens": 9}, *self.prompts[1:]])
        self.refuse(job, "prompt 'r0'")
        job.write_prompts(self.prompts[1:] + [{**self.prompts[0], "id": "new"}])
        self.refuse(job, "prompt 'new': not in the file", "prompt 'r0': only in the file")
        # The order of the lines is nobody's business.
        job.write_prompts(self.prompts[::-1])
        self.assert_code(job.run_job("--resume"), 0)
        self.assertEqual(tokens_by_id(job.out), self.reference)

    def test_batch_settings_count_where_equality_is_not_promised(self):
        level = {"run": {"determinism": "schedule"}}
        job = self.interrupted_job(**level)
        job.write_job(scheduler={**BATCH, "max_sequences": 3}, **level)
        self.refuse(job, "scheduler.max_sequences: the file has '2', this run '3'")

    def test_other_checkpoint(self):
        job = self.make_job()
        model = copy_checkpoint(job.path / "model")
        job.write_job(scheduler=BATCH, model={"path": "model"})
        self.assert_code(job.run_job(), 0)
        shard = bytearray((model / SHARD).read_bytes())
        shard[-1000] ^= 1  # same header, same size; the last page is among those compared
        rewrite(model / SHARD, bytes(shard))
        self.refuse(job, "checkpoint")

    def test_other_tokenizer(self):
        job = self.make_job()
        model = copy_checkpoint(job.path / "model")
        job.write_job(scheduler=BATCH, model={"path": "model"})
        self.assert_code(job.run_job(), 0)
        tokenizer = json.loads((model / "tokenizer.json").read_text())
        tokenizer["model"]["merges"].pop()
        rewrite(model / "tokenizer.json", json.dumps(tokenizer).encode())
        self.refuse(job, "tokenizer")

    def test_rank_count_is_free_under_rank_invariant(self):
        job = self.interrupted_job(np=2, run={"determinism": "rank_invariant"})
        self.assert_code(job.run_job("--resume"), 0)
        rows = read_rows(job.out)
        self.assertEqual(len(rows), len(self.prompts))
        self.assertEqual({row.session for row in rows.values()}, {1, 2})
        alone = self.make_job(run={"determinism": "rank_invariant"})
        self.assert_code(alone.run_job(), 0)
        self.assertEqual({key: row.tokens for key, row in read_rows(alone.out).items()},
                         {(key[0], BATCH["max_sequences"], *key[2:]): row.tokens
                          for key, row in rows.items()})
        with h5py.File(job.out) as f:
            self.assertEqual(list(f["sessions/num_ranks"][:]), [2, 1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
