#!/usr/bin/python3
"""`tandem plan` against what ranks really take: the sum of the plan's parts and the peak resident memory of
each rank of a job with dummy weights agree within 5 %.

TANDEM_LAYERS, TANDEM_HIDDEN: a larger model than CTest's."""
import json
import os
import re
import shutil
import time
import unittest

from tandem_job import CHECKPOINT, JobDir, TandemTest, h5py

LAYERS = int(os.environ.get("TANDEM_LAYERS", "4"))
HIDDEN = int(os.environ.get("TANDEM_HIDDEN", "1024"))
TOLERANCE = 0.05
UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
PROMPTS = [{"id": f"r{i}", "tokens": [7 + i] * 520, "max_tokens": 8, "ignore_eos": True} for i in range(4)]


def write_model(directory):
    """The tiny model's files without weights, scaled up."""
    directory.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(CHECKPOINT / name, directory / name)
    config = json.loads((CHECKPOINT / "config.json").read_text())
    config.update(hidden_size=HIDDEN, intermediate_size=4 * HIDDEN, num_hidden_layers=LAYERS,
                  layer_types=["full_attention" if i % 4 == 3 else "linear_attention"
                               for i in range(LAYERS)])
    (directory / "config.json").write_text(json.dumps(config))


def planned_bytes(text):
    """{rank: sum of the parts}, what the process holds anyway included."""
    ranks, rank = {}, None
    for line in text.splitlines():
        if match := re.match(r"rank (\d+) on ", line):
            rank = int(match[1])
            ranks[rank] = 0
        elif match := re.match(r"  (steady state|load peak|budget per rank|left|missing)\b", line):
            continue
        elif match := re.match(r"  .{36} +([\d.]+) (B|[KMG]iB)\b", line):
            ranks[rank] += float(match[1]) * UNITS[match[2]]
    return ranks


def peak_resident_bytes(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) << 10
    except (OSError, TypeError):  # gone, or going
        return 0


class PlanMemoryTest(TandemTest):
    def make_job(self, **sections):
        job = JobDir(self)
        write_model(job.path / "model")
        job.write_prompts(PROMPTS)
        memory = {"reserve": "256MiB", "kv": "256MiB"}
        job.write_job(**{"model": {"path": "model", "load": "dummy"}, "memory": memory,
                         "scheduler": {"max_sequences": 12, "max_batched_tokens": 512,
                                       "max_context": 4096}, **sections})
        return job

    def check(self, np, **sections):
        job = self.make_job(**sections)
        plan = job.run("plan", job.job, "--np", np)
        self.assert_code(plan, 0)
        planned = planned_bytes(plan.out)
        self.assertEqual(set(planned), set(range(np)), plan.out)

        process = job.start_job(np=np)
        peaks = dict.fromkeys(range(np), 0)
        while process.popen.poll() is None:
            for pid, rank in process.pids().items():
                if rank is not None:
                    peaks[rank] = max(peaks[rank], peak_resident_bytes(pid))
            time.sleep(0.05)
        self.assert_code(process.wait(), 0)
        with h5py.File(job.out) as f:
            sampled = f["memory/rss_bytes"][:].max()
        self.assertLessEqual(sampled, max(peaks.values()) * 1.001)
        for rank in range(np):
            error = planned[rank] / peaks[rank] - 1
            print(f"rank {rank} of {np}: planned {planned[rank] / 2**20:.1f} MiB, peak resident "
                  f"{peaks[rank] / 2**20:.1f} MiB, {100 * error:+.2f} %")
            self.assertLess(abs(error), TOLERANCE, plan.out)

    def test_one_rank(self):
        self.check(1)

    def test_two_ranks(self):
        self.check(2)

    def test_fp8_kv(self):
        memory = {"reserve": "256MiB", "kv": "256MiB"}
        self.check(1, memory={**memory, "kv_dtype": "fp8_dynamic"})

    def test_fp8_kv_holds_more_tokens(self):
        """Two KV heads of 256, K and V, in one layer of the model and one of the drafter's, which stays BF16."""
        for kv_dtype, token_bytes, step_bytes in (("bf16", 2048 + 2048, "2.00 KiB"),
                                                  ("fp8_static", 1024 + 2048, "1.00 KiB"),
                                                  ("fp8_dynamic", 1024 + 4 * 4 + 2048, "1.02 KiB")):
            job = self.make_job(memory={"reserve": "256MiB", "kv": "64MiB", "kv_dtype": kv_dtype})
            plan = job.run("plan", job.job)
            self.assert_code(plan, 0)
            tokens = int(re.search(r"page\) = (\d+) tokens", plan.out)[1])
            self.assertEqual(tokens, (64 << 20) // (16 * token_bytes) * 16, kv_dtype)
            self.assertIn(f"{step_bytes} of KV a sequence and token", plan.out)

    def test_what_does_not_fit_names_fp8(self):
        job = self.make_job(memory={"reserve": "256MiB"})
        plan = job.run("plan", job.job, "--mem-available", "512MiB")
        self.assert_code(plan, 4)
        self.assertIn("memory.kv_dtype: bf16 -> fp8_dynamic (saves", plan.err)

    def test_fp32_activations_without_speculation(self):
        self.check(1, model={"path": "model", "load": "dummy", "activation_dtype": "fp32"},
                   speculative={"method": "none"})


if __name__ == "__main__":
    unittest.main(verbosity=2)
