"""A checkpoint of random weights with true shapes, which transformers and tandem both load.

Owns what is in its folder: the flat text-only form of a Qwen3.8 configuration, cut to fewer layers,
the list of its tensors, the safetensors files, and a tokenizer that has every id, so that both
sides choose among the same tokens. All tensors are BF16, as in the published checkpoint. The MTP
head is left out. Values depend on the seed and the tensor's name only, but PyTorch and NumPy draw
different ones.
"""
import concurrent.futures
import dataclasses
import json
import pathlib
import shutil
import time
import zlib
from collections.abc import Callable

import numpy as np

from . import ComparisonError

BF16_BYTES = 2
WRITE_BYTES = 64 << 20
WRITERS = 4  # shards written at once: one thread draws while another waits for the disk
MARK = "random_checkpoint.json"  # tells a folder of ours, and whether it is finished


@dataclasses.dataclass(frozen=True)
class Tensor:
    """Normal values, unless `draw` makes them: (random generator, count) -> float array."""
    name: str
    shape: tuple
    mean: float = 0.0
    std: float = 1.0
    draw: Callable | None = None

    @property
    def num_bytes(self):
        return BF16_BYTES * int(np.prod(self.shape))


def shallow_config(config_dir, layers):
    """config.json of `config_dir` as a text-only model of `layers` layers; with all if None."""
    path = pathlib.Path(config_dir) / "config.json"
    try:
        root = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ComparisonError(f"{path}: {error}") from None
    config = dict(root.get("text_config", root))
    if config.get("model_type") != "qwen3_5_text":
        raise ComparisonError(f"{path}: model_type is {config.get('model_type')}, expected "
                              "qwen3_5_text (Qwen3.8), at the top or in text_config")
    types = config["layer_types"]
    period = types.index("full_attention") + 1
    layers = len(types) if layers is None else layers
    if not 0 < layers <= len(types) or layers % period:
        raise ComparisonError(f"{layers} layers: expected a multiple of {period} (the pattern "
                              f"ends with full attention) up to {len(types)}")
    # transformers has SiLU built in and does not know the key.
    gate = config.pop("output_gate_type", "silu")
    if gate not in ("silu", "swish"):
        raise ComparisonError(f"{path}: output_gate_type is {gate}; transformers knows silu alone")
    config.update(architectures=["Qwen3_5ForCausalLM"], dtype="bfloat16", num_hidden_layers=layers,
                  layer_types=types[:layers], mtp_num_hidden_layers=0, pad_token_id=None)
    config.setdefault("attention_dropout", 0.0)
    config.setdefault("partial_rotary_factor",
                      config["rope_parameters"].get("partial_rotary_factor", 1.0))
    return config


def linear(name, rows, columns):
    """Outputs of unit variance for inputs of unit variance, which the norms provide."""
    return Tensor(name, (rows, columns), std=columns ** -0.5)


def zero_centred_norm(name, width):
    return Tensor(name, (width,), std=0.1)  # applied as 1 + w


def draw_a_log(random, count):
    return np.log(random.uniform(1, 16, count))


def draw_dt_bias(random, count):
    """softplus(dt_bias) log-uniform in [0.001, 0.1]: some heads forget slowly, some at once."""
    dt = np.exp(random.uniform(np.log(1e-3), np.log(1e-1), count))
    return dt + np.log(-np.expm1(-dt))


def delta_net_tensors(c, prefix):
    key = c["linear_num_key_heads"] * c["linear_key_head_dim"]
    value = c["linear_num_value_heads"] * c["linear_value_head_dim"]
    heads, hidden, taps = c["linear_num_value_heads"], c["hidden_size"], c["linear_conv_kernel_dim"]
    return [linear(prefix + "in_proj_qkv.weight", 2 * key + value, hidden),
            linear(prefix + "in_proj_z.weight", value, hidden),
            linear(prefix + "in_proj_b.weight", heads, hidden),
            linear(prefix + "in_proj_a.weight", heads, hidden),
            Tensor(prefix + "conv1d.weight", (2 * key + value, 1, taps), std=taps ** -0.5),
            Tensor(prefix + "A_log", (heads,), draw=draw_a_log),
            Tensor(prefix + "dt_bias", (heads,), draw=draw_dt_bias),
            # Alone among the norms, this one is not zero-centred.
            Tensor(prefix + "norm.weight", (c["linear_value_head_dim"],), mean=1.0, std=0.1),
            linear(prefix + "out_proj.weight", hidden, value)]


def attention_tensors(c, prefix):
    query = c["num_attention_heads"] * c["head_dim"]
    key = c["num_key_value_heads"] * c["head_dim"]
    return [linear(prefix + "q_proj.weight", 2 * query, c["hidden_size"]),  # with the output gate
            linear(prefix + "k_proj.weight", key, c["hidden_size"]),
            linear(prefix + "v_proj.weight", key, c["hidden_size"]),
            linear(prefix + "o_proj.weight", c["hidden_size"], query),
            zero_centred_norm(prefix + "q_norm.weight", c["head_dim"]),
            zero_centred_norm(prefix + "k_norm.weight", c["head_dim"])]


def model_tensors(c):
    """All tensors of a configuration, in the order in which they are written."""
    hidden, wide = c["hidden_size"], c["intermediate_size"]
    tensors = [Tensor("model.embed_tokens.weight", (c["vocab_size"], hidden))]
    for i, kind in enumerate(c["layer_types"]):
        prefix = f"model.layers.{i}."
        tensors.append(zero_centred_norm(prefix + "input_layernorm.weight", hidden))
        if kind == "linear_attention":
            tensors += delta_net_tensors(c, prefix + "linear_attn.")
        else:
            tensors += attention_tensors(c, prefix + "self_attn.")
        tensors += [zero_centred_norm(prefix + "post_attention_layernorm.weight", hidden),
                    linear(prefix + "mlp.gate_proj.weight", wide, hidden),
                    linear(prefix + "mlp.up_proj.weight", wide, hidden),
                    linear(prefix + "mlp.down_proj.weight", hidden, wide)]
    tensors.append(zero_centred_norm("model.norm.weight", hidden))
    if not c.get("tie_word_embeddings", False):
        tensors.append(linear("lm_head.weight", c["vocab_size"], hidden))
    return tensors


def bf16_bits(values):
    """Finite floats rounded to nearest even, as uint16."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def tensor_seed(seed, name):
    return (seed << 32 | zlib.crc32(name.encode())) & (2 ** 63 - 1)


class NumpyDrawer:
    """BF16 bits of a tensor, an array of 16-bit integers."""

    def __call__(self, tensor, seed):
        random = np.random.default_rng(tensor_seed(seed, tensor.name))
        if tensor.draw is not None:
            return bf16_bits(tensor.draw(random, int(np.prod(tensor.shape))))
        values = random.standard_normal(tensor.shape, dtype=np.float32)
        return bf16_bits(values * np.float32(tensor.std) + np.float32(tensor.mean))

    def close(self):
        pass


class TorchDrawer:
    """The same on the GPU, where there is one: far faster."""

    def __init__(self):
        import torch  # here, once: the calls come from several threads
        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def __call__(self, tensor, seed):
        if tensor.draw is not None:
            return NumpyDrawer()(tensor, seed)
        torch = self.torch
        generator = torch.Generator(device=self.device)
        generator.manual_seed(tensor_seed(seed, tensor.name))
        values = torch.empty(tensor.shape, dtype=torch.bfloat16, device=self.device)
        values.normal_(tensor.mean, tensor.std, generator=generator)
        return values.view(torch.int16).cpu().numpy()

    def close(self):
        """Gives the memory back, which the program to be measured may need."""
        if self.device == "cuda":
            self.torch.cuda.empty_cache()


def split_shards(tensors, shard_bytes):
    shards, room = [], 0
    for tensor in tensors:
        if not shards or tensor.num_bytes > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= tensor.num_bytes
    return shards


def write_shard(path, tensors, draw, seed):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for tensor in tensors:
        end = offset + tensor.num_bytes
        header[tensor.name] = {"dtype": "BF16", "shape": list(tensor.shape),
                               "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors:
            data = memoryview(draw(tensor, seed)).cast("B")
            for begin in range(0, len(data), WRITE_BYTES):
                file.write(data[begin:begin + WRITE_BYTES])


def byte_characters():
    """The 256 characters that stand for bytes in byte-level BPE (GPT-2's table)."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def full_tokenizer(vocab_size):
    """tokenizer.json with a token for each row of the head. tandem never chooses an id without one.

    Text would be read byte by byte; the prompts of the comparison are token ids."""
    words = byte_characters()[:vocab_size]
    words += [f"t{i}" for i in range(len(words), vocab_size)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False,
             "use_regex": False}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": {word: i for i, word in enumerate(words)},
             "merges": []}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": model}


def start_folder(folder, total_bytes):
    """Empties a folder of ours; refuses one that is not."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise ComparisonError(f"{folder}: is not empty and not a checkpoint of this script; "
                                  "choose another --work")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < total_bytes * 1.02:
        raise ComparisonError(f"{folder}: the checkpoint takes {total_bytes / 1e9:.1f} GB, "
                              f"{free / 1e9:.1f} GB are free; fewer --layers or another --work")


def ensure_checkpoint(folder, config, seed, writer, shard_bytes, log=print):
    """Writes the checkpoint, or finds that an earlier run has written the very same."""
    folder = pathlib.Path(folder)
    made_of = {"config": config, "seed": seed, "writer": writer}
    mark = folder / MARK
    if mark.exists() and json.loads(mark.read_text()) == {**made_of, "finished": True}:
        log(f"checkpoint: {folder} is there from an earlier run")
        return
    tensors = model_tensors(config)
    total_bytes = sum(t.num_bytes for t in tensors)
    start_folder(folder, total_bytes)
    mark.write_text(json.dumps({**made_of, "finished": False}))
    start_s = time.monotonic()
    stop = config["eos_token_id"]
    for name, content in (("config.json", config),
                          ("generation_config.json", {"eos_token_id": stop}),
                          ("tokenizer.json", full_tokenizer(config["vocab_size"]))):
        (folder / name).write_text(json.dumps(content))
    shards = split_shards(tensors, shard_bytes)
    names = ["model.safetensors"] if len(shards) == 1 else [
        f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    draw = TorchDrawer() if writer == "torch" else NumpyDrawer()
    with concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
        for done in [pool.submit(write_shard, folder / name, shard, draw, seed)
                     for name, shard in zip(names, shards)]:
            done.result()
    draw.close()
    if len(shards) > 1:
        index = {"metadata": {"total_size": total_bytes},
                 "weight_map": {t.name: name for name, shard in zip(names, shards) for t in shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    mark.write_text(json.dumps({**made_of, "finished": True}))
    seconds = time.monotonic() - start_s
    log(f"checkpoint: {len(tensors)} tensors, {total_bytes / 1e9:.2f} GB in {len(shards)} files, "
        f"{seconds:.1f} s ({writer}): {folder}")
