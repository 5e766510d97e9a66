#!/usr/bin/python3
"""Quantized copies of the tiny checkpoint through the real binary: the same tokens as the copy whose codes are
multiplied out to F32, on one rank and on two, with the declarations that published checkpoints carry; refusals
of broken scales; dummy weights in every format."""
import shutil
import struct
import unittest

import numpy as np

from checkpoint_copy import SHARD, copy_checkpoint, edit_json, rebuild_shard, rewrite, shard_tensors
from tandem_job import CHECKPOINT, TandemTest, tokens_by_id

PROMPTS = [{"id": f"r{i}", "tokens": [(37 * i + 11 * k) % 4000 for k in range(30 + 20 * i)],
            "max_tokens": 24, "ignore_eos": True} for i in range(4)]
MLP = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
PROJECTIONS = ("q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "in_proj_qkv.weight",
               "in_proj_z.weight", "linear_attn.out_proj.weight")
E4M3 = np.array([(1 + (c & 7) / 8) * 2.0 ** ((c >> 3) - 7) if c >> 3 else (c & 7) * 2.0 ** -9
                 for c in range(127)], np.float32)
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6], np.float32)


def bf16_to_f32(raw):
    return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32)


def to_bf16(x):
    return ((x.astype(np.float32).view(np.uint32) + 0x8000) >> 16).astype("<u2")


def encode(x, table, sign):
    """Nearest codes; `sign`: the sign bit."""
    magnitude = np.minimum(np.abs(x), table[-1])
    high = np.clip(np.searchsorted(table, magnitude), 1, len(table) - 1)
    code = np.where(magnitude - table[high - 1] < table[high] - magnitude, high - 1, high)
    return (code | np.where(np.signbit(x), sign, 0)).astype(np.uint8)


def decode(code, table, sign):
    value = table[code & (sign - 1)]
    return np.where(code & sign, -value, value).astype(np.float32)


def fp8_block(name, w):
    """Qwen's: a BF16 factor for 128 x 128, called weight_scale_inv."""
    rows, cols = (-(-n // 128) for n in w.shape)
    padded = np.zeros((rows * 128, cols * 128), np.float32)
    padded[:w.shape[0], :w.shape[1]] = w
    largest = np.abs(padded).reshape(rows, 128, cols, 128).max((1, 3))
    bits = to_bf16(np.maximum(largest, 1e-6) / 448)
    scale = (bits.astype(np.uint32) << 16).view(np.float32)
    spread = scale.repeat(128, 0).repeat(128, 1)[:w.shape[0], :w.shape[1]]
    codes = encode(w / spread, E4M3, 128)
    return decode(codes, E4M3, 128) * spread, {
        name: ("F8_E4M3", list(w.shape), codes.tobytes()),
        name + "_scale_inv": ("BF16", [rows, cols], bits.tobytes())}


def fp8_tensor(name, w):
    scale = np.float32(np.abs(w).max() / 448)
    codes = encode(w / scale, E4M3, 128)
    return decode(codes, E4M3, 128) * scale, {
        name: ("F8_E4M3", list(w.shape), codes.tobytes()),
        name + "_scale": ("F32", [], struct.pack("<f", scale)),
        name.replace(".weight", ".input_scale"): ("F32", [], struct.pack("<f", 1))}


def nvfp4(name, w):
    """ModelOpt's: E4M3 for 16 columns, and a factor of the whole."""
    second = np.float32(np.abs(w).max() / (6 * 448))
    groups = w.reshape(w.shape[0], -1, 16)
    scales = np.maximum(encode(np.abs(groups).max(2) / (6 * second), E4M3, 128), 1)
    spread = E4M3[scales][:, :, None]
    codes = encode(groups / (spread * second), E2M1, 8)
    values = (decode(codes, E2M1, 8) * spread) * second
    flat = codes.reshape(w.shape)
    return values.reshape(w.shape), {
        name: ("U8", [w.shape[0], w.shape[1] // 2], (flat[:, ::2] | flat[:, 1::2] << 4).tobytes()),
        name + "_scale": ("F8_E4M3", list(scales.shape), scales.tobytes()),
        name + "_scale_2": ("F32", [], struct.pack("<f", second))}


def module(name):
    return name.removesuffix(".weight")


def qwen_fp8(names):
    quantized = [n for n in names if n.endswith(MLP + PROJECTIONS)]
    kept = [module(n) for n in names if n.endswith(".weight") and n not in quantized]
    return {n: fp8_block for n in quantized}, {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        "modules_to_not_convert": kept}


def nvidia_nvfp4(names):
    names = [n for n in names if not n.startswith("mtp.")]
    fours = [n for n in names if n.endswith(MLP)] + ["lm_head.weight"]
    eights = [n for n in names if n.endswith(PROJECTIONS)]
    layers = {module(n): {"quant_algo": "NVFP4", "group_size": 16} for n in fours}
    layers.update({module(n): {"quant_algo": "FP8"} for n in eights})
    return {**{n: nvfp4 for n in fours}, **{n: fp8_tensor for n in eights}}, {
        "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}


class Quantized(TandemTest):
    def setUp(self):
        self.job = self.job_dir()
        self.job.write_prompts(PROMPTS)

    def write(self, **model):
        self.job.write_job(model={"activation_dtype": "fp32", **model}, output={"logit_hash": True})

    def copies(self, recipe):
        """(quantized, multiplied out): directories."""
        tensors = shard_tensors()
        rules, declaration = recipe(list(tensors))
        self.assertGreater(len(rules), 20)
        stored, widened = {}, {}
        for name, (dtype, shape, raw) in tensors.items():
            if name not in rules:
                stored[name] = widened[name] = (dtype, shape, raw)
                continue
            self.assertEqual(dtype, "BF16", name)
            values, parts = rules[name](name, bf16_to_f32(raw).reshape(shape))
            stored.update(parts)
            widened[name] = ("F32", shape, values.astype("<f4").tobytes())
        quantized = copy_checkpoint(self.job.path / "quantized")
        rewrite(quantized / SHARD, rebuild_shard(stored))
        edit_json(quantized / "config.json", lambda c: c.update(quantization_config=declaration))
        plain = copy_checkpoint(self.job.path / "plain")
        rewrite(plain / SHARD, rebuild_shard(widened))
        return quantized, plain

    def tokens(self, path, ranks):
        self.write(path=str(path))
        self.assert_code(self.job.run_job("--overwrite", np=ranks), 0)
        return tokens_by_id(self.job.out)

    def check(self, recipe):
        quantized, plain = self.copies(recipe)
        expected = self.tokens(plain, 1)
        self.assertEqual(len(expected), len(PROMPTS))
        for ranks in (1, 2):
            self.assertEqual(self.tokens(quantized, ranks), expected, f"{ranks} ranks")

    def test_block_fp8(self):
        self.check(qwen_fp8)

    def test_nvfp4_beside_fp8(self):
        self.check(nvidia_nvfp4)

    def test_rank_invariance_is_refused_where_blocks_do_not_divide(self):
        quantized, _ = self.copies(qwen_fp8)
        self.write(path=str(quantized))
        invariant = ("--set", "run.determinism=rank_invariant")
        self.assert_code(self.job.run_job(*invariant, np=1), 0)
        self.assert_refused(self.job.run_job("--overwrite", *invariant, np=2), 2, "rank_invariant",
                            "mlp.down_proj.weight")

    def test_a_reciprocal_second_level_scale_is_refused(self):
        quantized, _ = self.copies(nvidia_nvfp4)
        tensors = shard_tensors(quantized / SHARD)
        name = "lm_head.weight_scale_2"
        dtype, shape, raw = tensors[name]
        tensors[name] = (dtype, shape, struct.pack("<f", 1 / struct.unpack("<f", raw)[0]))
        rewrite(quantized / SHARD, rebuild_shard(tensors))
        self.write(path=str(quantized))
        self.assert_refused(self.job.run_job(), 2, "lm_head.weight", "is it the reciprocal?")

    def test_a_missing_scale_is_refused_before_anything_is_loaded(self):
        quantized, _ = self.copies(qwen_fp8)
        tensors = shard_tensors(quantized / SHARD)
        name = next(n for n in tensors if n.endswith("down_proj.weight_scale_inv"))
        del tensors[name]
        rewrite(quantized / SHARD, rebuild_shard(tensors))
        self.write(path=str(quantized))
        self.assert_refused(self.job.run_job(), 2, name.removesuffix("_scale_inv"), "without a scale tensor")

    def test_dummy_weights_of_every_format(self):
        directory = self.job.path / "shapes"
        directory.mkdir()
        for name in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            shutil.copy(CHECKPOINT / name, directory / name)
        seen = {}
        for form in ("bf16", "fp8_block", "fp8_channel", "nvfp4", "int8_group"):
            self.write(path=str(directory), load="dummy", dummy_format=form)
            self.assert_code(self.job.run_job("--overwrite", np=1), 0)
            seen[form] = tokens_by_id(self.job.out)
            self.assert_code(self.job.run_job("--overwrite", np=2), 0)
            # Blocks of 128 do not divide 384 columns: two ranks add in another order.
            if form not in ("fp8_block", "int8_group"):
                self.assertEqual(tokens_by_id(self.job.out), seen[form], form)
            ids = {i for tokens in seen[form].values() for i in tokens}
            self.assertGreater(len(ids), 10, f"{form}: {ids}")
        self.assertEqual(len({str(t) for t in seen.values()}), len(seen), "formats differ in nothing")


if __name__ == "__main__":
    unittest.main()
