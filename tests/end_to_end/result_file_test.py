#!/usr/bin/python3
"""The file of a real two-rank job against its page, results/README.md, read with h5py alone: every dataset
and attribute, no NaN, and the numbers that must agree with one another."""
import re
import unittest

from tandem_job import SOURCE, JobDir, TandemTest, h5py, np

RANKS = 2
MAX_CONTEXT = 300
PROMPTS = [
    {"id": "chat", "messages": [{"role": "user", "content": "Write a Python class named Stack."}],
     "tags": {"task": "py", "validate": ["line_count"]}, "max_tokens": 60},
    {"id": "stop", "prompt": "Item 1: value=1, squared=1, status=active\nItem 2:", "stop": ["status"],
     "max_tokens": 60},
    {"id": "one", "prompt": "a", "max_tokens": 1},
    {"id": "sampled", "tokens": [300, 301, 302], "temperature": 0.9, "seed": 2**64 - 1, "max_tokens": 30},
    {"id": "reference", "prompt": "Item 1:", "reference": "nothing like it", "max_tokens": 20},
    {"id": "schön 月", "prompt": "月", "max_tokens": 25},
    {"id": "bad", "prompt": "", "max_tokens": 5}]
TYPES = {"int64": "<i8", "uint64": "<u8", "float64": "<f8", "int8": "|i1", "int32": "<i4", "uint8": "|u1"}


def page_datasets():
    """{path: (type, may miss, units)} of the tables in results/README.md."""
    found = {}
    for line in (SOURCE / "results/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `/") and len(cells) == 6:
            kind, _, miss = cells[1].partition(", ")
            found[cells[0].strip("`")] = (kind, miss == "may miss", cells[3])
    return found


class ResultFileTest(TandemTest):
    @classmethod
    def setUpClass(cls):
        cls.case = cls("setUpClass")
        job = JobDir(cls.case)
        job.write_prompts(PROMPTS)
        job.write_job(output={"logprobs": 1, "logit_hash": True},
                      scheduler={"max_context": MAX_CONTEXT, "max_batched_tokens": 48})
        finished = job.run_job("--skip-bad-prompts", "--hash-weights", np=RANKS)
        cls.case.assert_code(finished, 8)  # one request failed: that with the bad prompt
        cls.f = h5py.File(job.out, "r")

    @classmethod
    def tearDownClass(cls):
        cls.f.close()
        cls.case.doCleanups()

    def column(self, path):
        """Missing values masked, text decoded."""
        d = self.f[path]
        if d.dtype.kind == "S":
            return d.asstr()[:]
        fill = d.attrs.get("_FillValue")
        return d[:] if fill is None else np.ma.masked_equal(d[:], fill)

    def datasets(self):
        found = {}
        self.f.visititems(lambda name, d: found.update({"/" + name: d})
                          if isinstance(d, h5py.Dataset) else None)
        return found

    def test_page_and_file_agree(self):
        page, found = page_datasets(), self.datasets()
        page = {path: entry for path, entry in page.items() if not path.startswith("/bench/")}
        self.assertGreater(len(page), 100)
        self.assertEqual(sorted(page), sorted(found))
        self.assertEqual(self.f.attrs["schema_version"], 2)
        for path, (kind, may_miss, units) in page.items():
            d = found[path]
            with self.subTest(path):
                self.assertEqual(d.attrs["units"], units)
                self.assertGreater(len(d.attrs["description"]), 5)
                self.assertGreaterEqual(d.attrs["since"], 1)
                self.assertEqual("_FillValue" in d.attrs, may_miss)
                if kind in TYPES:
                    self.assertEqual(d.dtype.str, TYPES[kind])
                elif kind == "text":
                    self.assertEqual(h5py.check_string_dtype(d.dtype).encoding, "utf-8")
                else:
                    self.assertEqual(kind, "bool")

    def test_nothing_is_nan(self):
        def check(name, node):
            for key, value in node.attrs.items():
                if np.asarray(value).dtype.kind == "f":
                    self.assertTrue(np.isfinite(value).all(), f"{name} @{key}")
            if isinstance(node, h5py.Dataset) and node.dtype.kind == "f":
                self.assertTrue(np.isfinite(node[:]).all(), name)
        self.f.visititems(check)

    def test_requests(self):
        ids = list(self.column("requests/id"))
        self.assertEqual(sorted(ids), sorted(p["id"] for p in PROMPTS))
        by_id = {name: i for i, name in enumerate(ids)}
        reason = self.column("requests/finish_reason")
        self.assertLessEqual(set(reason), {"stop", "length", "error"})
        bad = by_id["bad"]
        self.assertEqual(reason[bad], "error")
        self.assertIn("empty", self.column("requests/error_text")[bad])
        self.assertEqual(reason[by_id["one"]], "length")
        self.assertEqual(reason[by_id["stop"]], "stop")
        self.assertEqual(self.column("requests/seed")[by_id["sampled"]], 2**64 - 1)
        self.assertEqual(self.column("requests/exact_match")[by_id["reference"]], 0)
        self.assertTrue(np.ma.getmaskarray(self.column("requests/exact_match"))[by_id["chat"]])
        # Rates without events are missing.
        speed = self.column("requests/decode_tokens_per_s")
        self.assertEqual([ids[i] for i in np.flatnonzero(np.ma.getmaskarray(speed))],
                         [name for name in ids if name in ("one", "bad")])

    def test_times(self):
        ok = self.column("requests/finish_reason") != "error"
        arrival, scheduled, first, last, ttft, queue = (
            self.column(f"requests/{name}")[ok] for name in
            ("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "ttft_s", "queue_s"))
        self.assertTrue(((arrival <= scheduled) & (scheduled <= first) & (first <= last)).all())
        np.testing.assert_allclose(ttft, first - arrival)
        np.testing.assert_allclose(queue, scheduled - arrival)
        tokens = self.column("requests/completion_tokens")[ok]
        speed = self.column("requests/decode_tokens_per_s")[ok]
        many = tokens > 1
        np.testing.assert_allclose(speed[many], (tokens[many] - 1) / (last[many] - first[many]))

    def test_tokens_and_text(self):
        n = len(self.f["requests/id"])
        completion = self.f["tokens/completion_offsets"][:]
        self.assertTrue((np.diff(completion) == self.column("requests/completion_tokens")).all())
        self.assertTrue((np.diff(self.f["tokens/prompt_offsets"][:])
                         == self.column("requests/prompt_tokens")).all())
        total = completion[-1]
        for name in ("completion_ids", "time_s", "step", "logprob", "logit_hash"):
            self.assertEqual(len(self.f[f"tokens/{name}"]), total, name)
        self.assertTrue((self.column("tokens/logprob") <= 0).all())
        self.assertFalse(np.ma.getmaskarray(self.column("tokens/logit_hash")).any())
        times, steps = self.f["tokens/time_s"][:], self.f["tokens/step"][:]
        text = self.f["text/completion"][:].tobytes()
        offsets = self.f["text/completion_offsets"][:]
        self.assertEqual(len(offsets), n + 1)
        for i, name in enumerate(self.column("requests/id")):
            mine = slice(completion[i], completion[i + 1])
            self.assertTrue((np.diff(times[mine]) >= 0).all(), name)
            self.assertTrue((np.diff(steps[mine]) >= 0).all(), name)
            answer = text[offsets[i]:offsets[i + 1]].decode()
            self.assertNotIn("status", answer if name == "stop" else "")

    def test_acceptance(self):
        proposed, accepted = self.f["acceptance/proposed"][:], self.f["acceptance/accepted"][:]
        self.assertEqual(proposed.shape, (len(PROMPTS), 3))
        self.assertTrue((accepted <= proposed).all())
        self.assertTrue((np.diff(accepted, axis=1) <= 0).all(), "a draft follows an accepted one")
        self.assertTrue((proposed.sum(axis=1) == self.column("requests/drafted_tokens")).all())
        self.assertTrue((accepted.sum(axis=1) == self.column("requests/accepted_tokens")).all())
        self.assertGreater(accepted.sum(), 0)

    def test_steps(self):
        rank, step = self.column("steps/rank"), self.column("steps/step")
        self.assertEqual(set(rank), set(range(RANKS)))
        mine = rank == 0
        for r in range(1, RANKS):
            self.assertEqual(list(step[rank == r]), list(step[mine]))
        self.assertEqual(list(step[mine]), list(range(mine.sum())))
        made = self.column("steps/output_tokens")[mine].sum()
        kept = self.column("requests/completion_tokens").sum()
        self.assertEqual(made, kept)  # what was discarded is in neither
        good = self.column("requests/finish_reason") != "error"
        self.assertEqual(self.column("steps/prompt_tokens")[mine].sum(),
                         (self.column("requests/prompt_tokens")
                          - self.column("requests/cached_prompt_tokens"))[good].sum())
        self.assertEqual(self.column("steps/draft_tokens")[mine].sum(),
                         self.column("requests/drafted_tokens").sum())
        self.assertLessEqual(set(self.column("tokens/step")), set(step))
        parts = sum(self.column(f"steps/{name}").filled(0) for name in
                    ("host_prepare_s", "device_compute_s", "collective_s", "sample_verify_s",
                     "wait_device_s", "wait_rank_s"))
        duration = self.column("steps/duration_s")
        self.assertTrue((duration > 0).all())
        np.testing.assert_allclose(parts, duration, rtol=0.02, atol=2e-3)

    def test_samples_and_log(self):
        self.assertEqual(set(self.column("memory/rank")), set(range(RANKS)))
        self.assertTrue((self.column("memory/rss_bytes") > 1 << 20).all())
        self.assertLessEqual(set(self.column("canary/name")), {"copy", "gemv", "gemm", "acceptance"})
        self.assertTrue((self.column("canary/duration_s") > 0).all())
        self.assertLessEqual(set(self.column("log/level")), {"info", "warning", "error"})
        self.assertIn("info", set(self.column("log/level")))

    def test_passport(self):
        passport = self.f["passport"].attrs
        for name in ("start_utc", "end_utc"):
            self.assertRegex(passport[name], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertEqual(passport["exit_status"], "some_requests_failed")
        for name in ("host", "cpu_model", "kernel", "compiler", "compiler_flags", "git_revision",
                     "program_version", "hdf5_version", "mpi.version", "cuda.version", "nccl.version",
                     "job.config_yaml", "job.settings",
                     "checkpoint.path", "checkpoint.identity", "ranks.map", "backend", "transport",
                     "env.OMP_NUM_THREADS"):
            self.assertTrue(str(passport[name]), name)
        for name in ("job.file_sha256", "prompts.sha256", "tokenizer.sha256"):
            self.assertRegex(passport[name], r"^[0-9a-f]{64}$")
        self.assertTrue(re.search(r"[0-9a-f]{64}", str(passport["checkpoint.sha256"])))
        self.assertEqual(passport["ranks.count"], RANKS)
        self.assertIn(f"max_context: {MAX_CONTEXT}", passport["job.config_yaml"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
