#!/usr/bin/python3
"""The checkpoint's scales of an FP8 KV cache through the real binary: the same tokens on one rank and on two,
which is in the passport and in the report; scales that are missing, all 1.0 or unusable are refused."""
import struct
import unittest

from checkpoint_copy import SHARD, copy_checkpoint, rebuild_shard, rewrite, shard_tensors
from tandem_job import CHECKPOINT, JobDir, TandemTest, h5py, tokens_by_id

PROMPTS = [{"id": f"r{i}", "tokens": [(37 * i + 11 * k) % 4000 for k in range(30 + 20 * i)],
            "max_tokens": 24, "ignore_eos": True} for i in range(4)]
MEASURED = {"k_proj.k_scale": [0.030, 0.035], "v_proj.v_scale": [0.012, 0.010]}  # of two KV heads


def attention_prefix():
    """Of the model's one layer with attention."""
    tail = "q_proj.weight"
    return next(n for n in shard_tensors() if n.endswith(tail) and not n.startswith("mtp."))[:-len(tail)]


class KvScalesTest(TandemTest):
    def setUp(self):
        self.job = JobDir(self)
        self.job.write_prompts(PROMPTS)

    def write(self, scales, **memory):
        """A copy of the tiny checkpoint with these scales beside its attention layer, and a job for it."""
        self.copies = getattr(self, "copies", 0) + 1
        model = copy_checkpoint(self.job.path / f"model{self.copies}")
        tensors = shard_tensors(CHECKPOINT / SHARD)
        for name, values in scales.items():
            shape = [] if len(values) == 1 else [len(values)]
            tensors[attention_prefix() + name] = ("F32", shape, struct.pack(f"<{len(values)}f", *values))
        rewrite(model / SHARD, rebuild_shard(tensors))
        self.job.write_job(model={"path": str(model)}, run={"determinism": "rank_invariant"},
                           memory={"reserve": "256MiB", "kv": "16MiB", "kv_dtype": "fp8_static", **memory})

    def passport(self):
        with h5py.File(self.job.out) as f:
            return dict(f["passport"].attrs)

    def test_measured_scales(self):
        self.write(MEASURED)
        self.assert_code(self.job.run_job(), 0)
        tokens = tokens_by_id(self.job.out)
        self.assertIn("F8_E4M3", self.passport()["precision.kv_cache"])
        self.assertEqual(self.passport()["precision.kv_scales"], "of the checkpoint")
        self.assert_code(self.job.run_job("--overwrite", np=2), 0)
        self.assertEqual(tokens_by_id(self.job.out), tokens)

    def test_a_cache_that_needs_no_scales_passes_over_them(self):
        self.write(MEASURED, kv_dtype="bf16")
        self.assert_code(self.job.run_job(), 0)
        self.assertNotIn("precision.kv_scales", self.passport())

    def test_scales_of_one_need_the_key_and_are_told(self):
        for scales in ({"k_proj.k_scale": [1], "v_proj.v_scale": [1]}, {}):
            self.write(scales)
            self.assert_refused(self.job.run_job(), 2, "kv_unit_scale", "fp8_dynamic")
            self.write(scales, kv_unit_scale=True)
            self.assert_code(self.job.run_job("--overwrite"), 0)
            self.assertIn("NOT CALIBRATED", self.passport()["precision.kv_scales"])
            for view in ((), ("--methods",)):
                report = self.job.run("report", self.job.out, *view)
                self.assert_code(report, 0)
                self.assertIn("NOT CALIBRATED", report.out)
            self.job.out.unlink()

    def test_unusable_scales_are_refused(self):
        for scales, part in (({"kv_scale": [0]}, "positive"), ({"kv_scale": [float("nan")]}, "positive"),
                             ({"kv_scale": [0.1, 0.2, 0.3]}, "2 KV heads"),
                             ({"k_proj.k_scale": [0.1]}, "v_proj.v_scale")):
            with self.subTest(scales=scales):
                self.write(scales)
                for command in (("run", self.job.job), ("plan", self.job.job)):
                    self.assert_refused(self.job.run(*command), 2, attention_prefix(), part)


if __name__ == "__main__":
    unittest.main(verbosity=2)
