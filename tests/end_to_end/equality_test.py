#!/usr/bin/python3
"""Equal tokens, through the binary, over everything that determinism promises: concurrency, chunks, pages,
pool, prefix cache, speculation, threads and, under rank_invariant, ranks. Temperature 0.8 beside greedy:
verification compares drafts with the sampler's own draw, so speculation keeps sampled tokens as well.

TANDEM_ALL: vary every dimension under every dtype (CTest varies each once); TANDEM_RANDOM: number of
random combinations (3), TANDEM_SEED: of them."""
import os
import random
import unittest

from tandem_job import JobDir, TandemTest, h5py, read_rows

ALL = bool(os.environ.get("TANDEM_ALL"))
RANDOM = int(os.environ.get("TANDEM_RANDOM", "3"))
SEED = int(os.environ.get("TANDEM_SEED", "1"))
STEM = "class Queue:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n"
# Greedy and sampled; equal beginnings, for the prefix cache; a prompt longer than a chunk.
PROMPTS = [
    {"id": "greedy", "prompt": "The old house", "max_tokens": 40},
    {"id": "sampled", "prompt": "The old house", "temperature": 0.8, "max_tokens": 40},
    {"id": "code", "prompt": STEM, "max_tokens": 40},
    {"id": "top-p", "prompt": STEM + "        self", "temperature": 0.8, "top_p": 0.9, "seed": 5,
     "max_tokens": 33},
    {"id": "top-k", "prompt": "Item 1: value=1,", "temperature": 0.8, "top_k": 20, "max_tokens": 48},
    {"id": "chat", "messages": [{"role": "user", "content": "请写一篇关于月亮的短文。"}], "max_tokens": 40},
    {"id": "long", "prompt": STEM * 6 + "Item 1:", "temperature": 0.8, "max_tokens": 24},
    {"id": "one", "prompt": "a", "max_tokens": 1},
    {"id": "stop", "prompt": "Item 1: value=1, squared=1, status=active\nItem 2:", "stop": ["=active\nItem 4"],
     "max_tokens": 60},
    {"id": "again", "prompt": STEM * 6, "max_tokens": 24}]
DTYPES = ("bf16", "fp32")

# name: (job sections, ranks, environment); ranks None: no launcher.
SAME_SPECULATION = {
    "concurrency 1": ({"scheduler": {"max_sequences": 1}}, None, {}),
    "concurrency 8": ({"scheduler": {"max_sequences": 8}}, None, {}),
    "chunks of 16": ({"scheduler": {"max_batched_tokens": 16}}, None, {}),
    "chunks of 37": ({"scheduler": {"max_batched_tokens": 37}}, None, {}),
    "chunks of 2048": ({"scheduler": {"max_batched_tokens": 2048}}, None, {}),
    "pages of 8": ({"memory": {"page_tokens": 8}}, None, {}),
    "pages of 64": ({"memory": {"page_tokens": 64}}, None, {}),
    "no prefix cache": ({"scheduler": {"prefix_cache": False}}, None, {}),
    "two threads": ({}, None, {"OMP_NUM_THREADS": "2"}),
    "two ranks": ({}, 2, {}),
    "four ranks": ({}, 4, {}),
    "two replicas": ({"parallel": {"data": 2}}, 2, {}),
}
OTHER_SPECULATION = {
    "no speculation": ({"speculative": {"method": "none"}}, None, {}),
    "depth 1": ({"speculative": {"tokens": 1}}, None, {}),
    "depth 5": ({"speculative": {"tokens": 5}}, None, {}),
    "adaptive depth": ({"speculative": {"tokens": 5, "adaptive": True}}, None, {}),
    "no speculation, two ranks": ({"speculative": {"method": "none"}}, 2, {}),
}


class EqualityTest(TandemTest):
    baseline = {}

    def run_variant(self, dtype, sections, ranks=None, env=None, prompts=PROMPTS):
        """{id: (tokens, logit hashes)} and the job."""
        job = JobDir(self)
        job.write_prompts(prompts)
        base = {"scheduler": {"max_sequences": 3, "max_batched_tokens": 64},
                "speculative": {"method": "mtp", "tokens": 3},
                "model": {"activation_dtype": dtype}, "run": {"determinism": "rank_invariant"},
                "output": {"logit_hash": True}}
        for section, values in sections.items():
            base[section] = {**base.get(section, {}), **values}
        job.write_job(**base)
        self.assert_code(job.run_job(np=ranks, env=env), 0)
        rows = read_rows(job.out)
        return {key[0]: (row.tokens, row.hashes) for key, row in rows.items()}, job

    def reference(self, dtype):
        if dtype not in self.baseline:
            rows, _ = self.run_variant(dtype, {})
            self.assertEqual(set(rows), {p["id"] for p in PROMPTS})
            self.assertTrue(all(len(hashes) == len(tokens) for tokens, hashes in rows.values()))
            # If these were equal, a test that ignored the temperature would pass.
            self.assertNotEqual(rows["greedy"][0], rows["sampled"][0])
            self.baseline[dtype] = rows
        return self.baseline[dtype]

    def check(self, variants):
        for i, (name, (sections, ranks, env)) in enumerate(variants.items()):
            for dtype in DTYPES if ALL else (DTYPES[i % len(DTYPES)],):
                with self.subTest(name, dtype=dtype):
                    rows, _ = self.run_variant(dtype, sections, ranks, env)
                    for request, (tokens, hashes) in self.reference(dtype).items():
                        self.assertEqual(rows[request][0], tokens, request)
                        self.assertEqual(rows[request][1], hashes, f"logits of {request}")

    def test_batch_and_ranks(self):
        self.check(SAME_SPECULATION)

    def test_speculation(self):
        self.check(OTHER_SPECULATION)

    def test_fp8_kv(self):
        """An FP8 cache keeps the same promises, and is another cache than BF16."""
        fp8 = {"memory": {"kv_dtype": "fp8_dynamic"}}
        expected, job = self.run_variant("bf16", fp8)
        with h5py.File(job.out) as f:
            self.assertIn("F8_E4M3", f["passport"].attrs["precision.kv_cache"])
        hashes = {name: row[1] for name, row in self.reference("bf16").items()}
        self.assertNotEqual({name: row[1] for name, row in expected.items()}, hashes)
        for name in ("concurrency 8", "chunks of 37", "pages of 8", "no prefix cache", "two ranks"):
            sections, ranks, env = SAME_SPECULATION[name]
            memory = {**fp8["memory"], **sections.get("memory", {})}
            with self.subTest(name):
                rows, _ = self.run_variant("bf16", {**sections, "memory": memory}, ranks, env)
                self.assertEqual(rows, expected)

    def test_order_and_company(self):
        rows, _ = self.run_variant("bf16", {}, prompts=PROMPTS[::-1])
        self.assertEqual(rows, self.reference("bf16"))
        rows, _ = self.run_variant("bf16", {}, prompts=[PROMPTS[4]])
        self.assertEqual(rows["top-k"], self.reference("bf16")["top-k"])

    def test_random_combinations(self):
        rng = random.Random(SEED)
        for i in range(RANDOM):
            method = rng.choice(("mtp", "mtp", "none"))
            sections = {
                "scheduler": {"max_sequences": rng.randint(1, 9), "max_batched_tokens": rng.randint(1, 300),
                              "prefix_cache": rng.random() < 0.7,
                              "max_long_prefills": rng.randint(1, 3),
                              "long_prefill_tokens": rng.choice((16, 60, 8192))},
                # From hardly enough for the longest request to plenty.
                "memory": {"page_tokens": rng.choice((4, 8, 16, 32, 64)),
                           "kv": f"{rng.choice((2300, 2600, 4000, 16000))}KiB"},
                "speculative": {"method": method, "tokens": rng.randint(1, 7),
                                "adaptive": method == "mtp" and rng.random() < 0.3}}
            ranks, dtype = rng.choice((None, None, 2)), rng.choice(DTYPES)
            with self.subTest(i, dtype=dtype, ranks=ranks, **sections):
                prompts = rng.sample(PROMPTS, len(PROMPTS))
                rows, _ = self.run_variant(dtype, sections, ranks, prompts=prompts)
                self.assertEqual(rows, self.reference(dtype))

    def test_context_ceiling(self):
        """Answers that end exactly at the context's limit, wherever a round of drafts meets it."""
        limit = 128
        prompts = [{"id": f"p{n}", "tokens": list(range(400, 400 + n)), "max_tokens": 300,
                    "ignore_eos": True, "temperature": 0.8 * (n % 2)} for n in range(limit - 11, limit)]
        expected = None
        for name, speculative in (("none", {"method": "none"}), ("depth 1", {"tokens": 1}),
                                  ("depth 3", {"tokens": 3}), ("depth 6", {"tokens": 6})):
            with self.subTest(name):
                rows, _ = self.run_variant("bf16", {"scheduler": {"max_context": limit},
                                                    "speculative": speculative}, prompts=prompts)
                self.assertEqual({name: len(tokens) for name, (tokens, _) in rows.items()},
                                 {p["id"]: limit - len(p["tokens"]) for p in prompts})
                expected = expected or rows
                self.assertEqual(rows, expected)

    def test_preemption(self):
        """A pool for hardly two of the sequences: some are thrown out and computed again."""
        prompts = [{**p, "id": f"{p['id']}-{i}", "max_tokens": 150, "ignore_eos": True}
                   for i in range(2) for p in PROMPTS[:4]]
        plenty = {"scheduler": {"max_sequences": 6, "prefix_cache": False}}
        for dtype, pool in (("bf16", "1MiB"), ("fp32", "2MiB")):  # 256 tokens
            scarce = {**plenty, "memory": {"kv": pool, "page_tokens": 8}}
            with self.subTest(dtype):
                expected, job = self.run_variant(dtype, plenty, prompts=prompts)
                self.assertEqual(self.recomputed_tokens(job), 0)
                rows, job = self.run_variant(dtype, scarce, prompts=prompts)
                self.assertGreater(self.recomputed_tokens(job), 0, "nothing was preempted")
                self.assertEqual(rows, expected)

    def recomputed_tokens(self, job):
        with h5py.File(job.out) as f:
            steps = f["steps"]
            computed = steps["prompt_tokens"][:][steps["rank"][:] == 0].sum()
            return int(computed - f["requests/prompt_tokens"][:].sum())


if __name__ == "__main__":
    unittest.main(verbosity=2)
