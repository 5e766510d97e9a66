#!/usr/bin/python3
"""Inputs that must be refused, through the real binary: each with one clear message, the right exit code,
and nothing written or changed. The parsers have unit tests of their own; here it is the whole program
that must say no, before it has made a file."""
import hashlib
import json
import pathlib
import struct
import unittest

from checkpoint_copy import (INDEX, SHARD, copy_checkpoint, edit_json, pack_shard, read_shard,
                             rebuild_shard, rewrite, shard_tensors)
from tandem_job import CHECKPOINT, JobDir, TandemTest

GOOD = {"id": "a", "prompt": "Item 1:", "max_tokens": 4}
Q_PROJ = "model.layers.3.self_attn.q_proj.weight"


def snapshot(directory):
    """{file: (size, hash)} below a directory."""
    files = {}
    for path in sorted(pathlib.Path(directory).rglob("*")):
        if path.is_file():
            data = path.read_bytes()
            files[str(path.relative_to(directory))] = (len(data), hashlib.sha1(data).hexdigest())
    return files


class BadInputTest(TandemTest):
    @classmethod
    def setUpClass(cls):
        cls.checkpoint_before = snapshot(CHECKPOINT)

    @classmethod
    def tearDownClass(cls):
        # Through all those hard links.
        assert snapshot(CHECKPOINT) == cls.checkpoint_before, "the original checkpoint was changed"

    def good_job(self, **sections):
        job = JobDir(self)
        job.write_prompts([GOOD])
        job.write_job(**sections)
        return job

    def refuse(self, name, job, code, *parts, args=(), limit_s=120, **how):
        """Runs the job; it must be refused with the code and the words, and leave the directory as it was."""
        with self.subTest(name):
            before = snapshot(job.path)
            self.assert_refused(job.run_job(*args, limit_s=limit_s, **how), code, *parts)
            self.assertEqual(snapshot(job.path), before, "files were written or changed")

    # --- job file ------------------------------------------------------------------------------

    def refuse_job(self, name, text, *parts, code=2, args=(), **how):
        job = self.good_job()
        good = f'model: {{path: "{CHECKPOINT}"}}\nprompts: {{file: prompts.jsonl}}\n'
        job.job.write_bytes(text if isinstance(text, bytes) else (good + text).encode())
        self.refuse(name, job, code, *parts, args=("--output", job.out, *args), **how)

    def test_job_file(self):
        self.refuse_job("unknown key", "sampling: {max_token: 3}\n", "job.yaml:3",
                        "sampling.max_token", "sampling.max_tokens")
        self.refuse_job("wrong section", "scheduler: {page_tokens: 16}\n", "memory.page_tokens")
        self.refuse_job("wrong type", "sampling: {temperature: hot}\n", "job.yaml:3", "'hot'")
        self.refuse_job("out of range", "sampling: {top_p: 1.5}\n", "job.yaml:3", "(0, 1]")
        self.refuse_job("page size", "memory: {page_tokens: 12}\n", "power of two")
        self.refuse_job("duplicate key", "run: {repeats: 1, repeats: 2}\n", "duplicate key")
        self.refuse_job("tab", "run:\n\trepeats: 1\n", "job.yaml:4", "tab")
        self.refuse_job("yaml boolean", "output: {text: yes}\n", "true or false")
        self.refuse_job("syntax", "run: [1, 2\n", "not valid YAML")
        self.refuse_job("empty", b"", "the file is empty")
        self.refuse_job("binary", b"\x7fELF\x00\x01\x02", "job.yaml")
        self.refuse_job("no model", b"prompts: {file: p}\n", "model.path")
        self.refuse_job("no prompts", b"model: {path: m}\n", "prompts.file")
        self.refuse_job("all faults at once",
                        "sampling: {top_p: 7}\nrun: {warmup: -1}\nnonsense: 1\n",
                        "sampling.top_p", "run.warmup", "nonsense")
        self.refuse_job("extends missing", "extends: other.yaml\n", "other.yaml")
        self.refuse_job("extends itself", "extends: job.yaml\n", "job.yaml")
        self.refuse_job("model.path missing", b'model: {path: no-such}\nprompts: {file: p}\n',
                        "no-such")
        self.refuse_job("--set unknown", "", "nonsense", args=("--set", "nonsense.key=1"))
        self.refuse_job("--set without value", "", "sampling.seed", args=("--set", "sampling.seed"))
        self.refuse_job("same fault on two ranks", "sampling: {max_token: 3}\n", "max_tokens", np=2)
        job = self.good_job()
        job.job.unlink()
        self.refuse("job file missing", job, 2, "job.yaml")
        job.job.mkdir()
        self.refuse("job file is a folder", job, 2, "job.yaml")

    def test_command_line(self):
        job = self.good_job()
        for name, args, part in (("no command", (), "no command"),
                                 ("unknown command", ("rum",), "rum"),
                                 ("unknown option", ("run", job.job, "--fast"), "--fast"),
                                 ("no job file", ("run",), "job"),
                                 ("resume and overwrite",
                                  ("run", job.job, "--resume", "--overwrite"), "--overwrite"),
                                 ("plan with no ranks", ("plan", job.job, "--np", "0"), "--np")):
            with self.subTest(name):
                self.assert_refused(job.run(*args), 2, part)

    # --- keys whose value this build or this checkpoint cannot honour ----------------------------

    def test_what_is_not_available(self):
        def refuse(name, code, *parts, np=None, **sections):
            self.refuse(name, self.good_job(**sections), code, *parts, np=np)

        for method in ("dspark", "dflash", "lookup"):
            refuse(method, 2, "speculative.method", speculative={"method": method})
        refuse("separate drafter", 2, "model.drafter", model={"drafter": str(CHECKPOINT)})
        refuse("another family's KV", 2, "memory.kv_dtype", memory={"kv_dtype": "fp8_ds_mla"})
        refuse("no KV scales", 2, "k_scale", "fp8_dynamic", memory={"kv_dtype": "fp8_static"})
        refuse("replicas of one rank", 2, "2 replicas", parallel={"data": 2})
        refuse("RDMA", 5, "transport.require", transport={"require": "rdma"})
        refuse("CUDA", 2, "cuda", backend="cuda")
        refuse("context", 2, "scheduler.max_context", scheduler={"max_context": 100000})

    # --- prompt file ---------------------------------------------------------------------------

    def refuse_prompts(self, name, data, *parts, code=3, **how):
        job = self.good_job()
        if isinstance(data, list):
            data = "".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in data)
        job.prompts.write_bytes(data if isinstance(data, bytes) else data.encode())
        self.refuse(name, job, code, *parts, **how)

    def test_prompt_file(self):
        for name, line, part in (
                ("bad JSON", "{\"id\": ", "bad JSON"),
                ("no object", "[1, 2]", "not a JSON object"),
                ("no id", {"prompt": "x"}, "id is missing"),
                ("no prompt", {"id": "x"}, "no prompt"),
                ("two prompts", {"id": "x", "prompt": "y", "tokens": [1]}, "more than one"),
                ("empty prompt", {"id": "x", "prompt": ""}, "empty"),
                ("unknown field", {"id": "x", "prompt": "y", "max_token": 3}, "max_token"),
                ("unknown role", {"id": "x", "messages": [{"role": "boss", "content": "y"}]}, "boss"),
                ("negative max_tokens", {"id": "x", "prompt": "y", "max_tokens": -1}, "max_tokens"),
                ("top_p", {"id": "x", "prompt": "y", "top_p": 2}, "top_p"),
                ("token id", {"id": "x", "tokens": [4096]}, "4096"),
                ("number as prompt", {"id": "x", "prompt": 3}, "prompt"),
                ("too long", {"id": "x", "tokens": [5] * 5000}, "5000"),
                ("wrong url", {"custom_id": "x", "method": "POST", "url": "/v1/embeddings",
                               "body": {"input": "x"}}, "/v1/embeddings"),
                ("penalty", {"custom_id": "x", "method": "POST", "url": "/v1/completions",
                             "body": {"prompt": "x", "presence_penalty": 1}}, "presence_penalty")):
            self.refuse_prompts(name, [GOOD, line], "prompts.jsonl:2", part)
        self.refuse_prompts("duplicate id", [GOOD, GOOD], "prompts.jsonl:2", "line 1")
        self.refuse_prompts("bad UTF-8", b'{"id": "x", "prompt": "\xff"}\n', "prompts.jsonl:1", "UTF-8")
        self.refuse_prompts("zero byte", b'{"id": "x", "prompt": "a\x00b"}\n', "prompts.jsonl:1")
        self.refuse_prompts("empty", b"", "no requests")
        self.refuse_prompts("blank lines", b"\n\n  \n", "no requests")
        self.refuse_prompts("every fault", [GOOD, "x", {"id": "b"}], "2 faults", ":2: ", ":3: ")
        self.refuse_prompts("deep nesting", [GOOD, "[" * 100000], "prompts.jsonl:2")
        self.refuse_prompts("10 MB line", [GOOD, "{" + " " * 10_000_000], "prompts.jsonl:2")
        self.refuse_prompts("on two ranks", [GOOD, "x"], "prompts.jsonl:2", np=2)
        job = self.good_job()
        job.prompts.unlink()
        self.refuse("missing", job, 3, "prompts.jsonl")

    # --- checkpoint ----------------------------------------------------------------------------

    def refuse_checkpoint(self, name, spoil, *parts, code=2, **how):
        job = self.good_job()
        spoil(copy_checkpoint(job.path / "model"))
        job.write_job(model={"path": "model"})
        self.refuse(name, job, code, *parts, **how)

    def refuse_shard(self, name, make, *parts, **how):
        self.refuse_checkpoint(name, lambda d: rewrite(d / SHARD, make()), *parts, **how)

    def refuse_header(self, name, edit, *parts):
        def make():
            header, data = read_shard()
            edit(header)
            return pack_shard(header, data)
        self.refuse_shard(name, make, *parts)

    def refuse_tensors(self, name, edit, *parts, **how):
        def make():
            tensors = shard_tensors()
            edit(tensors)
            return rebuild_shard(tensors)
        self.refuse_shard(name, make, *parts, **how)

    def test_shards(self):
        whole = (CHECKPOINT / SHARD).read_bytes()
        header, data = read_shard()
        self.refuse_shard("truncated data", lambda: whole[:-1000], SHARD, "truncated")
        self.refuse_shard("truncated header", lambda: whole[:500], SHARD)
        self.refuse_shard("empty", lambda: b"", SHARD)
        self.refuse_shard("trailing bytes", lambda: whole + b"x" * 64, SHARD, "64 bytes")
        self.refuse_shard("LFS pointer",
                          lambda: b"version https://git-lfs.github.com/spec/v1\noid sha256:"
                                  + b"0" * 64 + b"\nsize 10154600\n", SHARD, "git-lfs pointer")
        self.refuse_shard("HTML page", lambda: b"<!DOCTYPE html><html>Not found</html>", SHARD)
        self.refuse_shard("header length 2^64-1",
                          lambda: pack_shard(header, data, length=2**64 - 1), "18446744073709551615")
        self.refuse_shard("header length 2^40", lambda: pack_shard(header, data, length=2**40), SHARD)
        self.refuse_shard("header not JSON", lambda: pack_shard(b"{nonsense", data), "JSON")
        self.refuse_shard("deep header", lambda: pack_shard(b'{"a":' + b"[" * 200000, data), SHARD)
        self.refuse_header("overlap", lambda h: h[Q_PROJ].update(
            data_offsets=[x - 256 for x in h[Q_PROJ]["data_offsets"]]), "overlaps")
        self.refuse_header("offsets beyond the file", lambda h: h[Q_PROJ].update(
            data_offsets=[x + 2**33 for x in h[Q_PROJ]["data_offsets"]]), SHARD)
        self.refuse_header("negative offset", lambda h: h[Q_PROJ].update(data_offsets=[-2, 6]), Q_PROJ)
        self.refuse_header("unknown dtype", lambda h: h[Q_PROJ].update(dtype="F7"), Q_PROJ, "F7")
        self.refuse_header("size against shape", lambda h: h[Q_PROJ].update(shape=[2048, 127]), Q_PROJ)
        self.refuse_header("overflowing shape",
                           lambda h: h[Q_PROJ].update(shape=[2**40, 2**40]), Q_PROJ)
        self.refuse_checkpoint("shard missing", lambda d: (d / SHARD).unlink(), SHARD)
        self.refuse_shard("truncated, on two ranks", lambda: whole[:-1000], "truncated", np=2)

    def test_tensors(self):
        self.refuse_tensors("missing", lambda t: t.pop(Q_PROJ), Q_PROJ)
        self.refuse_tensors("unknown", lambda t: t.update(
            {"model.layers.3.self_attn.r_proj.weight": ("BF16", [2], b"\0" * 4)}), "r_proj")
        self.refuse_tensors("wrong shape", lambda t: t.update(
            {Q_PROJ: ("BF16", [128, 2048], t[Q_PROJ][2])}), Q_PROJ, "[2048, 128]")
        self.refuse_tensors("wrong dtype", lambda t: t.update(
            {Q_PROJ: ("I16", [2048, 128], t[Q_PROJ][2])}), Q_PROJ, "I16")

        def spoil(value):
            def edit(t):
                dtype, shape, raw = t[Q_PROJ]
                t[Q_PROJ] = (dtype, shape, raw[:4000] + struct.pack("<H", value) + raw[4002:])
            return edit
        self.refuse_tensors("NaN weight", spoil(0x7FC0), Q_PROJ)
        self.refuse_tensors("infinite weight", spoil(0xFF80), Q_PROJ)
        self.refuse_tensors("NaN weight, on two ranks", spoil(0x7FC0), Q_PROJ, np=2)

    def write_index(self, directory, weight_map):
        (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))

    def test_index(self):
        names = list(read_shard()[0])

        def two_shards(directory, in_second):
            tensors = shard_tensors()
            first = {n: t for n, t in tensors.items() if n not in in_second}
            (directory / "a.safetensors").write_bytes(rebuild_shard(first))
            (directory / "b.safetensors").write_bytes(rebuild_shard({n: tensors[n] for n in in_second}))
            (directory / SHARD).unlink()
            return {n: "b.safetensors" if n in in_second else "a.safetensors" for n in names}

        def missing_shard(directory):
            self.write_index(directory, two_shards(directory, [Q_PROJ]))
            (directory / "b.safetensors").unlink()

        def misplaced(directory):
            weight_map = two_shards(directory, [Q_PROJ])
            weight_map[Q_PROJ] = "a.safetensors"
            self.write_index(directory, weight_map)

        def twice(directory):
            weight_map = two_shards(directory, [Q_PROJ])
            tensors = shard_tensors()
            (directory / "a.safetensors").write_bytes(rebuild_shard(tensors))
            self.write_index(directory, weight_map)

        def no_index(directory):
            two_shards(directory, [Q_PROJ])

        self.refuse_checkpoint("names a missing shard", missing_shard, "b.safetensors")
        self.refuse_checkpoint("names the wrong shard", misplaced, Q_PROJ)
        self.refuse_checkpoint("tensor in two shards", twice, Q_PROJ)
        self.refuse_checkpoint("no index beside two shards", no_index, INDEX)
        self.refuse_checkpoint("tensor that is nowhere", lambda d: self.write_index(
            d, {**{n: SHARD for n in names}, "model.extra.weight": SHARD}), "model.extra.weight")
        self.refuse_checkpoint("path out of the folder", lambda d: self.write_index(
            d, {n: "../model/" + SHARD for n in names}), INDEX)
        self.refuse_checkpoint("not JSON", lambda d: (d / INDEX).write_text("{"), INDEX)

    def test_config(self):
        def refuse(name, edit, *parts):
            self.refuse_checkpoint(name, lambda d: edit_json(d / "config.json", edit), *parts)

        for family in ("LlamaForCausalLM", "DeepseekV4ForCausalLM"):
            refuse(family, lambda c, f=family: c.update(model_type="other", architectures=[f]), family)
        refuse("hidden size", lambda c: c.update(hidden_size=256), "128")
        refuse("layers", lambda c: c.update(num_hidden_layers=5), "config.json")
        refuse("zero heads", lambda c: c.update(num_attention_heads=0), "num_attention_heads")
        refuse("negative", lambda c: c.update(vocab_size=-1), "vocab_size")
        refuse("text for number", lambda c: c.update(hidden_size="128"), "hidden_size")
        refuse("key missing", lambda c: c.pop("rms_norm_eps"), "rms_norm_eps")
        refuse("huge", lambda c: c.update(intermediate_size=2**60), "intermediate_size")
        refuse("layer type", lambda c: c.update(layer_types=["sliding_attention"] * 4),
               "sliding_attention")
        refuse("activation", lambda c: c.update(hidden_act="gelu"), "gelu")
        refuse("rope", lambda c: c["rope_parameters"].update(rope_type="yarn"), "yarn")
        refuse("quantization", lambda c: c.update(
            quantization_config={"quant_method": "mystery"}), "mystery")
        self.refuse_checkpoint("config.json missing", lambda d: (d / "config.json").unlink(), "config.json")
        self.refuse_checkpoint("config.json cut", lambda d: rewrite(
            d / "config.json", (CHECKPOINT / "config.json").read_bytes()[:300]), "config.json")

    def test_tokenizer(self):
        def refuse(name, edit, *parts):
            self.refuse_checkpoint(name, lambda d: edit_json(d / "tokenizer.json", edit), *parts)

        whole = (CHECKPOINT / "tokenizer.json").read_bytes()
        self.refuse_checkpoint("missing", lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json")
        self.refuse_checkpoint("cut", lambda d: rewrite(d / "tokenizer.json", whole[:100000]),
                               "tokenizer.json")
        refuse("merge of unknown tokens", lambda t: t["model"]["merges"].append(["zzzq", "qzzz"]), "zzzq")
        refuse("merge of one", lambda t: t["model"]["merges"].append(["a"]), "tokenizer.json")
        refuse("unknown model", lambda t: t["model"].update(type="Unigram"), "Unigram")
        refuse("unknown pre-tokenizer", lambda t: t.update(pre_tokenizer={"type": "Metaspace"}),
               "Metaspace")
        refuse("unknown normalizer", lambda t: t.update(normalizer={"type": "Lowercase"}), "Lowercase")
        refuse("bad pattern", lambda t: t["pre_tokenizer"]["pretokenizers"][0]["pattern"].update(
            Regex="("), "tokenizer.json")
        refuse("id twice", lambda t: t["model"]["vocab"].update(a=5), "tokenizer.json")
        refuse("id too large", lambda t: t["added_tokens"][0].update(id=2**40), "tokenizer.json")

    # --- memory and ranks ----------------------------------------------------------------------

    def test_memory(self):
        self.refuse("KV pool without a page", self.good_job(memory={"kv": "1KiB"}), 4, "memory.kv")
        job = self.good_job(memory={"reserve": "900TiB"})
        self.refuse("reserve above the machine", job, 4, "memory.reserve")
        self.refuse("the same on two ranks", job, 4, "memory.reserve", np=2)
        self.assert_refused(self.good_job().run(
            "plan", job.job, "--set", "memory.reserve=0B", "--mem-available", "64MiB"), 4, "missing")

    def test_rank_counts(self):
        self.refuse("three ranks", self.good_job(), 2, np=3)
        self.refuse("sixteen ranks", self.good_job(), 2, np=16)
        self.refuse("tensor against ranks", self.good_job(parallel={"tensor": 2}), 2, "mpirun")
        self.refuse("more than ranks", self.good_job(parallel={"tensor": 4}), 2, "parallel", np=2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
