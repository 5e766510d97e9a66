#!/usr/bin/python3
"""scripts/compare_transformers.py as far as it goes without PyTorch: the checkpoint it writes is one that
tandem takes whole and that has the tensors of a published one; step times are read as stated; the
numbers of transformers are replaced by made-up ones."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

from tandem_job import BINARY, CHECKPOINT, SOURCE, TandemTest, h5py, np

sys.path.insert(0, str(SOURCE / "scripts"))
from comparison import ComparisonError, random_checkpoint, report, tandem_side  # noqa: E402

SCRIPT = SOURCE / "scripts/compare_transformers.py"
NEW_TOKENS = 12


def header_of(path):
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8:8 + length]), data[8 + length:]


class CompareTransformersTest(TandemTest):
    def folder(self):
        folder = tempfile.TemporaryDirectory(prefix="tandem-compare-")
        self.addCleanup(folder.cleanup)
        return pathlib.Path(folder.name)

    def compare(self, folder, *options):
        return subprocess.run(
            [sys.executable, str(SCRIPT), "--tandem", BINARY, "--backend", "cpu", "--layers", "4",
             "--config-dir", str(CHECKPOINT), "--work", str(folder / "work"), "--writer", "numpy",
             "--skip-transformers", *map(str, options)], capture_output=True, text=True,
            timeout=300)

    def checkpoint(self, folder, seed=1, shard_bytes=1 << 40):
        config = random_checkpoint.shallow_config(CHECKPOINT, 4)
        random_checkpoint.ensure_checkpoint(folder, config, seed, "numpy", shard_bytes,
                                            log=lambda text: None)

    def test_whole_run(self):
        folder = self.folder()
        numbers = folder / "numbers.json"
        options = ("--batches", 2, 1, "--prompt-tokens", 40, "--new-tokens", NEW_TOKENS,
                   "--shard-gb", 0.003, "--json", numbers)
        done = self.compare(folder, *options)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("|  | batch 1 | batch 2 |", done.stdout)
        measured = json.loads(numbers.read_text())
        for batch in "12":
            level = measured["tandem"][batch]
            self.assertGreaterEqual(level["step_ms"], level["round_ms"] * 0.5)
            self.assertGreater(level["prefill_tokens_per_s"], 0)
            self.assertEqual(sorted(level["tokens"]), ["p0", "p1"])
            self.assertTrue(all(len(t) == NEW_TOKENS for t in level["tokens"].values()))
            # Finite logits: NaN would give one and the same token for ever.
            self.assertGreater(len(set(level["tokens"]["p0"])), NEW_TOKENS // 2)
        self.assertEqual(measured["tandem"]["1"]["tokens"], measured["tandem"]["2"]["tokens"])
        reference = measured["reference"]
        self.assertTrue(reference["same_in_all_batches"])
        self.assertEqual(reference["tokens"], measured["tandem"]["1"]["tokens"]["p0"])
        self.assertTrue(all(-30 < p < 0 for p in reference["logprobs"]), reference["logprobs"])
        self.assertGreater(len(list((folder / "work/checkpoint-4-layers").glob("*.safetensors"))), 2)
        verified = subprocess.run([BINARY, "inspect", "--verify", folder / "work/checkpoint-4-layers"],
                                  capture_output=True, text=True)
        self.assertEqual(verified.returncode, 0, verified.stderr)
        self.assertIn("verified: complete", verified.stdout)
        again = self.compare(folder, *options)
        self.assertIn("is there from an earlier run", again.stdout)
        self.assertEqual(json.loads(numbers.read_text())["tandem"]["1"]["tokens"],
                         measured["tandem"]["1"]["tokens"])

    def test_names_and_shapes_are_those_of_a_published_checkpoint(self):
        theirs, _ = header_of(CHECKPOINT / "model.safetensors")
        theirs = {name: tuple(entry["shape"]) for name, entry in theirs.items()
                  if name != "__metadata__" and not name.startswith("mtp.")}
        config = random_checkpoint.shallow_config(CHECKPOINT, 4)
        ours = {t.name: t.shape for t in random_checkpoint.model_tensors(config)}
        self.assertEqual(ours, theirs)

    def test_config_of_the_full_shapes(self):
        config = random_checkpoint.shallow_config(SOURCE / "configs/qwen3.8-27b", 8)
        self.assertEqual(config["layer_types"].count("full_attention"), 2)
        self.assertEqual((config["num_hidden_layers"], config["mtp_num_hidden_layers"]), (8, 0))
        self.assertNotIn("text_config", config)
        whole = random_checkpoint.shallow_config(SOURCE / "configs/qwen3.8-27b", None)
        # The text model of the release: 26 895 998 464 parameters.
        self.assertEqual(sum(t.num_bytes for t in random_checkpoint.model_tensors(whole)),
                         2 * 26895998464)
        for layers in (0, 6, 68):
            with self.assertRaises(ComparisonError):
                random_checkpoint.shallow_config(SOURCE / "configs/qwen3.8-27b", layers)

    def test_values_follow_from_seed_and_name(self):
        one, two, other = self.folder(), self.folder(), self.folder()
        self.checkpoint(one)
        self.checkpoint(two, shard_bytes=3 << 20)  # cut differently
        self.checkpoint(other, seed=2)
        whole, data = header_of(one / "model.safetensors")
        for path in two.glob("*.safetensors"):
            part, part_data = header_of(path)
            for name, entry in part.items():
                if name != "__metadata__":
                    a, b = whole[name]["data_offsets"], entry["data_offsets"]
                    self.assertEqual(data[a[0]:a[1]], part_data[b[0]:b[1]], name)
        self.assertNotEqual(data, header_of(other / "model.safetensors")[1])
        a_log = np.frombuffer(data[slice(*whole["model.layers.0.linear_attn.A_log"]["data_offsets"])],
                              np.uint16)
        values = (a_log.astype(np.uint32) << 16).view(np.float32)
        self.assertTrue(((values > -0.01) & (values < np.log(16) + 0.02)).all(), values)

    def test_rounding_to_bf16(self):
        # 1 + 2^-8 lies between two neighbours and goes to the even one, as does 1 + 3 * 2^-8.
        values = np.array([1, 1 + 2 ** -8, 1 + 3 * 2 ** -8, 1 + 2 ** -8 + 2 ** -16, -2.5, 0])
        self.assertEqual(random_checkpoint.bf16_bits(values).tolist(),
                         [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC020, 0])

    def test_a_folder_of_somebody_else_is_left_alone(self):
        folder = self.folder()
        (folder / "precious").write_text("x")
        with self.assertRaisesRegex(ComparisonError, "not a checkpoint of this script"):
            self.checkpoint(folder)
        self.assertTrue((folder / "precious").exists())

    def test_an_unfinished_checkpoint_is_written_anew(self):
        folder = self.folder()
        self.checkpoint(folder)
        mark = folder / random_checkpoint.MARK
        mark.write_text(json.dumps({**json.loads(mark.read_text()), "finished": False}))
        (folder / "model.safetensors").write_bytes(b"cut off")
        self.checkpoint(folder)
        self.assertGreater((folder / "model.safetensors").stat().st_size, 1 << 20)

    def test_step_times_as_stated(self):
        # step, kind, warm-up, concurrency, sequences, prompt rows, start, duration. Counted are the
        # periods 10-11 and 11-12; 12-14 is not one step to the next, 15 has a sequence less.
        rows = [(8, "prompt", 0, 2, 2, 64, 0.0, 0.5), (9, "round", 0, 2, 2, 16, 0.5, 0.25),
                (10, "round", 0, 2, 2, 0, 1.0, 0.10), (11, "round", 0, 2, 2, 0, 1.125, 0.10),
                (12, "round", 0, 2, 2, 0, 1.25, 0.10), (13, "round", 1, 2, 2, 0, 1.5, 9.0),
                (14, "round", 0, 2, 2, 0, 2.0, 0.10), (15, "round", 0, 2, 1, 0, 7.0, 9.0),
                (16, "round", 0, 1, 2, 0, 9.0, 9.0)]
        path = self.folder() / "steps.h5"
        with h5py.File(path, "w") as f:
            for i, name in enumerate(("step", "kind", "warmup", "concurrency", "sequences",
                                      "prompt_tokens", "start_s", "duration_s")):
                column = [row[i] for row in rows]
                f[f"steps/{name}"] = (np.array(column, "S8") if name == "kind" else
                                      np.array(column, bool) if name == "warmup" else column)
            f["steps/rank"] = np.zeros(len(rows), int)
            f["requests/id"] = np.array(["a", "b", "a"], "S4")
            f["requests/concurrency"] = [2, 2, 2]
            f["requests/warmup"] = np.array([False, False, True])
            f["tokens/completion_offsets"] = [0, 2, 5, 6]
            f["tokens/completion_ids"] = [1, 2, 3, 4, 5, 6]
        with h5py.File(path) as f:
            level = tandem_side.read_level(f, path, 2)
            with self.assertRaisesRegex(ComparisonError, "no two rounds"):
                tandem_side.read_level(f, path, 1)
        self.assertEqual((level.step_ms, level.num_steps), (125, 2))
        self.assertAlmostEqual(level.round_ms, 100)
        self.assertAlmostEqual(level.prefill_tokens_per_s, 80 / 0.75)
        self.assertEqual(level.tokens, {"a": [1, 2], "b": [3, 4, 5]})

    def test_table_and_agreement(self):
        ours = {1: {"step_ms": 5.0, "prefill_tokens_per_s": 1000.0},
                8: {"step_ms": 8.0, "prefill_tokens_per_s": 4000.0}}
        theirs = {"eager": {b: {"step_ms": 10.0, "prefill_tokens_per_s": 2000.0} for b in (1, 8)},
                  "compile": {1: {"failed": "no compiler"}, 8: {"step_ms": 4.0}}}
        self.assertEqual(report.table({"tandem": ours, "transformers": theirs}, [1, 8]), "\n".join([
            "|  | batch 1 | batch 8 |", "| --- | --- | --- |",
            "| tandem, ms a step | 5.00 | 8.00 |",
            "| transformers, eager, ms a step (ratio) | 10.00 (2.00 x) | 10.00 (1.25 x) |",
            "| transformers, torch.compile, ms a step (ratio) | failed | 4.00 (0.50 x) |",
            "| tandem, prefill tok/s | 1000 | 4000 |",
            "| transformers, prefill tok/s (ratio) | 2000 (0.50 x) | 2000 (2.00 x) |"]))
        self.assertEqual(report.leading_agreement([1, 2, 3], [1, 2, 4]), 2)
        self.assertEqual(report.leading_agreement([1, 2], [1, 2, 4]), 2)
        text = report.followed_text([-1.0, -2.0, -3.0], {"logprobs": [-1.5, -2.0, -3.25],
                                                         "gaps": [0.0, 0.125, 0.0]})
        for part in ("2 of 3", "0.125 below", "0.5000 (first token)", "0.2500 (median)",
                     "0.5000 (largest)"):
            self.assertIn(part, text)

    def test_what_cannot_work_is_said_first(self):
        folder = self.folder()
        for options, words in (((), ""),
                               (("--new-tokens", 4), "--new-tokens: at least 8"),
                               (("--layers", 3), "a multiple of 4"),
                               (("--tandem", folder / "absent"), "no such program")):
            done = self.compare(folder, "--prompt-tokens", 5000, *options)  # 4096 positions
            self.assertEqual(done.returncode, 1)
            self.assertIn(words or "exceed the model's 4096 positions", done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        self.assertFalse((folder / "work").exists())


if __name__ == "__main__":
    unittest.main()
