"""The comparison's jobs for tandem, and what their result files say.

Owns prompt and job files, the call of the program, and how a step time is read from /steps. Needs
numpy and h5py; knows nothing of PyTorch.
"""
import dataclasses
import json
import pathlib
import subprocess

import h5py
import numpy as np

from . import ComparisonError

LIMIT_S = 900
MIB = 1 << 20


@dataclasses.dataclass
class Level:
    """What one level of concurrency measured."""
    step_ms: float  # from the start of a round to the start of the next
    round_ms: float  # its own duration, without what happens between rounds
    num_steps: int
    prefill_tokens_per_s: float
    tokens: dict  # prompt id -> completion ids


def random_prompts(count, length, vocab_size, seed):
    """{id: token ids}"""
    random = np.random.default_rng(seed)
    return {f"p{i}": random.integers(0, vocab_size, length).tolist() for i in range(count)}


def write_prompts(path, prompts):
    lines = [json.dumps({"id": name, "tokens": ids}) for name, ids in prompts.items()]
    pathlib.Path(path).write_text("\n".join(lines) + "\n")


def kv_bytes(config, sequences, context):
    """Twice the keys and values of `sequences` full contexts: pages are not filled exactly."""
    layers = config["layer_types"].count("full_attention")
    per_token = layers * 2 * config["num_key_value_heads"] * config["head_dim"] * 2
    return 2 * sequences * (context + 256) * per_token


def job(checkpoint, prompts_file, config, args, batches):
    """The job of the measured run: plain greedy decoding, every prompt read in full."""
    context = args.prompt_tokens + args.new_tokens
    kv_mib = max(64, kv_bytes(config, max(batches), context) // MIB)
    return {
        "job": "compare-transformers",
        "model": {"path": str(checkpoint)},
        "backend": args.backend,
        # The other side reads the same files from the page cache afterwards.
        "memory": {"reserve": "1GiB", "kv": f"{kv_mib}MiB", "drop_page_cache": False},
        "scheduler": {"max_sequences": max(batches), "max_context": context, "prefix_cache": False},
        "speculative": {"method": "none"},
        "sampling": {"temperature": 0.0, "max_tokens": args.new_tokens, "ignore_eos": True},
        "prompts": {"file": str(prompts_file), "chat_template": "none"},
        "run": {"mode": "bench", "concurrency": list(batches), "warmup": 1, "repeats": 1},
        "output": {"text": False},
    }


def checked_job(measured):
    """The first prompt once more, with log-probabilities; apart, since they cost time."""
    return {**measured, "prompts": {**measured["prompts"], "limit": 1}, "run": {"mode": "batch"},
            "output": {**measured["output"], "logprobs": 1}}


def run_job(command, content, folder, name):
    """Runs `command` (launcher and program) on a job; returns the result file."""
    job_file, result, log = (folder / f"{name}{end}" for end in (".yaml", ".h5", ".log"))
    job_file.write_text(json.dumps(content, indent=1) + "\n")  # JSON is YAML
    call = [*command, "run", str(job_file), "--output", str(result), "--overwrite", "--quiet"]
    with open(log, "w") as out:
        try:
            code = subprocess.run(call, stdin=subprocess.DEVNULL, stdout=out,
                                  stderr=subprocess.STDOUT, timeout=LIMIT_S).returncode
        except OSError as error:
            raise ComparisonError(f"{command[0]}: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise ComparisonError(f"{name}: not done after {LIMIT_S} s; see {log}") from None
    if code != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise ComparisonError(f"{' '.join(call)}: exit code {code}\n{tail}")
    return result


def completions(file, rows):
    """{id: completion ids} of some rows of /requests, of which each id may have one."""
    ids = file["requests/id"].asstr()[:]
    offsets, flat = file["tokens/completion_offsets"][:], file["tokens/completion_ids"][:]
    return {ids[i]: flat[offsets[i]:offsets[i + 1]].tolist() for i in np.flatnonzero(rows)}


def check_requests(file, path, new_tokens):
    reasons = file["requests/finish_reason"].asstr()[:]
    lengths = file["requests/completion_tokens"][:]
    if len(reasons) == 0 or any(reasons != "length") or any(lengths != new_tokens):
        raise ComparisonError(f"{path}: expected {new_tokens} tokens of every request; finish "
                              f"reasons {sorted(set(reasons))}, tokens {sorted(set(lengths))}")


def read_level(file, path, batch):
    """Rounds of `batch` sequences without prompt rows; prompts by the steps that read some."""
    steps = {name: column[:] for name, column in file["steps"].items()
             if name in ("step", "rank", "start_s", "duration_s", "concurrency", "warmup",
                         "sequences", "prompt_tokens")}
    kinds = file["steps/kind"].asstr()[:]
    counted = (steps["rank"] == 0) & ~steps["warmup"] & (steps["concurrency"] == batch)
    full = counted & (kinds == "round") & (steps["prompt_tokens"] == 0) & (
        steps["sequences"] == batch)
    order = np.flatnonzero(full)
    follows = np.diff(steps["step"][order]) == 1
    periods = np.diff(steps["start_s"][order])[follows]
    if len(periods) == 0:
        raise ComparisonError(f"{path}: no two rounds in a row of {batch} sequences")
    reads = counted & (steps["prompt_tokens"] > 0)
    rows = (file["requests/concurrency"][:] == batch) & ~file["requests/warmup"][:]
    return Level(step_ms=1e3 * float(np.median(periods)),
                 round_ms=1e3 * float(np.median(steps["duration_s"][order])),
                 num_steps=len(periods),
                 prefill_tokens_per_s=float(steps["prompt_tokens"][reads].sum()
                                            / steps["duration_s"][reads].sum()),
                 tokens=completions(file, rows))


def read_levels(path, batches, new_tokens):
    """({batch: Level}, facts about the program)"""
    with h5py.File(path) as file:
        check_requests(file, path, new_tokens)
        facts = {name: str(file["passport"].attrs[name])
                 for name in ("program_version", "git_revision", "backend")}
        return {batch: read_level(file, path, batch) for batch in batches}, facts


def read_logprobs(path, new_tokens):
    """(completion ids, their log-probabilities) of the only request."""
    with h5py.File(path) as file:
        check_requests(file, path, new_tokens)
        return file["tokens/completion_ids"][:].tolist(), file["tokens/logprob"][:].tolist()
