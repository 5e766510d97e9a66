#!/usr/bin/python3
"""Bench mode and what is made of its file: groups, warm-up rows, summary rows; the report in each form,
a redacted copy, and replay, which must reproduce an honest file and expose an altered one."""
import collections
import csv
import getpass
import io
import json
import os
import shutil
import socket
import unittest

from tandem_job import JobDir, TandemTest, h5py, np, read_rows

PROMPTS = [{"id": f"r{i}", "prompt": f"Item {i}: value={i},", "max_tokens": 24, "ignore_eos": True,
            "temperature": 0.8 * (i % 2)} for i in range(6)]
BENCH = {"mode": "bench", "concurrency": [1, 2], "warmup": 1, "repeats": 2}


class ReportTest(TandemTest):
    @classmethod
    def setUpClass(cls):
        cls.case = cls("setUpClass")
        cls.job = JobDir(cls.case)
        cls.job.write_prompts(PROMPTS)
        cls.job.write_job(run=BENCH, job="bench-test")
        cls.case.assert_code(cls.job.run_job(np=2), 0)
        cls.file = cls.job.out

    @classmethod
    def tearDownClass(cls):
        cls.case.doCleanups()

    def test_groups_and_rows(self):
        rows = read_rows(self.file)
        runs = collections.Counter(key[1:] for key in rows)
        self.assertEqual(dict(runs), {(level, index, warmup): len(PROMPTS) for level in (1, 2)
                                      for index, warmup in ((0, True), (0, False), (1, False))})
        for prompt in PROMPTS:  # repeats of a request are the same tokens, whatever the concurrency
            same = {row.tokens for key, row in rows.items() if key[0] == prompt["id"]}
            self.assertEqual(len(same), 1, prompt["id"])
        with h5py.File(self.file) as f:
            self.assertEqual(len(f["groups/concurrency"]), 6)
            self.assertTrue((f["groups/end_s"][:] > f["groups/start_s"][:]).all())
            in_flight = f["steps/sequences"][:]
            level = f["steps/concurrency"][:]
            self.assertLessEqual(in_flight[level == 1].max(), 1)
            self.assertEqual(in_flight[level == 2].max(), 2)

    def test_summary_follows_from_the_rows(self):
        rows = read_rows(self.file)
        with h5py.File(self.file) as f:
            summary = {name: (d.asstr() if d.dtype.kind == "S" else d)[:]
                       for name, d in f["summary"].items()}
            groups = {name: d[:] for name, d in f["groups"].items()}
        for level in (1, 2):
            counted = [r for key, r in rows.items() if key[1] == level and not key[3]]
            wall = sum((groups["end_s"] - groups["start_s"])[
                (groups["concurrency"] == level) & ~groups["warmup"]])
            row = np.flatnonzero((summary["concurrency"] == level) & (summary["cache"] == "all")
                                 & (summary["session"] == 0))
            self.assertEqual(len(row), 1)
            row = row[0]
            self.assertEqual(summary["requests"][row], len(counted))
            tokens = sum(len(r.tokens) for r in counted)
            self.assertEqual(summary["completion_tokens"][row], tokens)
            self.assertAlmostEqual(summary["tokens_per_s"][row] / (tokens / wall), 1, places=6)
            ttft = sorted(r.fields["ttft_s"] for r in counted)
            self.assertAlmostEqual(summary["ttft_s_p50"][row], ttft[(len(ttft) + 1) // 2 - 1])

    def report(self, *options):
        finished = self.job.run("report", self.file, *options)
        self.assert_code(finished, 0)
        self.assertEqual(finished.err, "")
        self.assertNotRegex(finished.out, r"(?i)\bnan\b|\binf\b")
        return finished.out

    def test_forms(self):
        text = self.report()
        for part in ("bench-test", "tiny-qwen3.8", "2 (tensor 2", "warm-up", "tok/s"):
            self.assertIn(part, text)
        table = list(csv.DictReader(io.StringIO(self.report("--csv"))))
        self.assertEqual({row["concurrency"] for row in table}, {"1", "2"})
        self.assertTrue(all(float(row["tokens_per_s"]) > 0 for row in table if row["cache"] == "all"))
        (report,) = json.loads(self.report("--json"))
        self.assertEqual(report["warmup_rows"], 2 * len(PROMPTS))
        self.assertEqual({row["runs"] for row in report["summary"]}, {2})
        latex = self.report("--latex")
        self.assertEqual(latex.count("{"), latex.count("}"))
        self.assertEqual(latex.count("\\begin"), latex.count("\\end"))
        methods = self.report("--methods")
        for part in ("At concurrency 1,", "At concurrency 2,", "warm-up", "batch_invariant", "2 MPI ranks"):
            self.assertIn(part, methods)
        self.assert_code(self.job.run("report", self.file, self.file, "--csv"), 0)

    def test_redacted_copy(self):
        out = self.job.path / "shared.h5"
        finished = self.job.run("report", self.file, "--redact", out)
        self.assert_code(finished, 0)
        secrets = {socket.gethostname(), str(self.job.path), os.path.expanduser("~"), getpass.getuser()}
        data = out.read_bytes()
        for secret in secrets:
            if len(secret) > 3:  # "vm" or "root" may be part of any word
                self.assertNotIn(secret.encode(), data, secret)
        with h5py.File(out) as f:
            self.assertEqual(f["passport"].attrs["redacted"], 1)
            for name in ("host", "user"):
                self.assertNotIn(f["passport"].attrs.get(name, ""), (socket.gethostname(), getpass.getuser()))
        rows = {key: row.tokens for key, row in read_rows(self.file).items()}
        self.assertEqual({key: row.tokens for key, row in read_rows(out).items()}, rows)
        self.assert_refused(self.job.run("report", self.file, "--redact", out), 2, "shared.h5")
        again = self.job.run("report", out)
        self.assert_code(again, 0)

    def test_replay_reproduces(self):
        for ranks in (2, None):
            with self.subTest(ranks=ranks):
                finished = self.job.run("replay", self.file, "--sample", 5, np=ranks)
                self.assert_code(finished, 0)
                self.assertIn("5 of 5 sampled requests reproduced", finished.out)

    def test_replay_exposes_an_altered_token(self):
        altered = self.job.path / "altered.h5"
        shutil.copy(self.file, altered)
        with h5py.File(altered, "r+") as f:
            ids = f["requests/id"].asstr()[:]
            warmup = f["requests/warmup"][:]
            row = int(np.flatnonzero((ids == "r3") & ~warmup)[0])
            begin = f["tokens/completion_offsets"][row]
            f["tokens/completion_ids"][begin + 7] += 1
        finished = self.job.run("replay", altered, "--sample", 100, np=2)
        # mpirun passes the ranks' code on.
        self.assert_code(finished, 6)
        self.assertIn("5 of 6 sampled requests reproduced", finished.out)
        self.assertIn("r3: first difference at completion token 7", finished.out)

    def test_replay_refuses_other_inputs(self):
        moved = self.job.path / "moved.jsonl"
        shutil.copy(self.job.prompts, moved)
        self.assert_code(self.job.run("replay", self.file, "--sample", 2, "--set",
                                      f"prompts.file={moved}"), 0)
        moved.write_text("".join(json.dumps({**p, "prompt": "other"}) + "\n" for p in PROMPTS))
        self.assert_refused(self.job.run("replay", self.file, "--set", f"prompts.file={moved}"), 2,
                            "prompt 'r0'")
        self.assert_refused(self.job.run("replay", self.job.prompts), 2, "prompts.jsonl")


if __name__ == "__main__":
    unittest.main(verbosity=2)
