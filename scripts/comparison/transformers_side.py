"""The same checkpoint and prompts through Hugging Face transformers, in the ways it can be driven.

Owns loading, the timed loops and the facts about them (which kernels ran). Greedy tokens stay on
the GPU: a step has no read-back, no test for an end, no sampling code, so it is the best case for
transformers; `generate()` does more. Needs torch and transformers; knows nothing of tandem. The
clock also works without a GPU, for a look at the code with tiny shapes.

  eager    DynamicCache, one kernel launch after the other: what `model(...)` does
  graph    StaticCache, the decode step recorded once as a CUDA graph and replayed
  compile  StaticCache, the decode step through torch.compile(mode="reduce-overhead")
"""
import dataclasses
import importlib.util
import json
import pathlib
import statistics
import time

import torch
import transformers

from . import ComparisonError

GRAPH_WARMUPS = 3  # libraries choose algorithms and allocate before recording is allowed
COMPILE_WARMUPS = 4  # compile, warm up, record, first replay
VOCAB_ROWS = 1 << 14  # of the head, widened to FP32 at a time


@dataclasses.dataclass
class Run:
    """One way, one batch."""
    step_ms: float
    num_steps: int
    prefill_tokens_per_s: float
    tokens: list  # [batch][generated]


class Clock:
    """Time between marks: on the GPU's own time line where there is one."""

    def __init__(self, device):
        self.cuda = device.type == "cuda"
        self.marks = []

    def mark(self):
        if self.cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.marks.append(event)
        else:
            self.marks.append(time.perf_counter())

    def intervals_ms(self):
        pairs = list(zip(self.marks, self.marks[1:]))
        if self.cuda:
            torch.cuda.synchronize()
            return [a.elapsed_time(b) for a, b in pairs]
        return [1e3 * (b - a) for a, b in pairs]


def load(folder, device):
    """The model in BF16 with PyTorch's attention; each tensor of the files must find its place."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())
    model_class = getattr(transformers, config["architectures"][0])
    how = {"dtype": torch.bfloat16, "attn_implementation": "sdpa", "output_loading_info": True}
    if importlib.util.find_spec("accelerate"):  # straight to the GPU, not by way of the host
        model, report = model_class.from_pretrained(folder, device_map={"": device}, **how)
    else:
        model, report = model_class.from_pretrained(folder, **how)
        model = model.to(device)
    for what in ("missing_keys", "unexpected_keys"):
        if report[what]:
            raise ComparisonError(f"transformers: {what} {sorted(map(str, report[what]))[:5]}")
    if model.lm_head.weight.dtype != torch.bfloat16:
        raise ComparisonError(f"transformers: loaded as {model.lm_head.weight.dtype}")
    return model.eval()


def versions():
    names = ("fla", "causal_conv1d", "kernels")  # each replaces a part of the delta rule's layer
    found = [name for name in names if importlib.util.find_spec(name)]
    return {"transformers": transformers.__version__, "torch": torch.__version__,
            "fast_path_packages": found,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}


def best(output):
    return output.logits[:, -1].argmax(-1, keepdim=True)  # [batch, 1]


def prefill(model, prompts, cache):
    """The first token of each prompt, [batch, 1]."""
    return best(model(input_ids=prompts, past_key_values=cache, use_cache=True, logits_to_keep=1))


def dynamic_cache(model):
    return transformers.DynamicCache(config=model.config)


def static_cache(model, prompts, new_tokens):
    # The second parameter, the length, is not named: its name changes between versions.
    return transformers.StaticCache(model.config, prompts.shape[1] + new_tokens)


def timed_prefill(model, prompts, make_cache):
    """(cache, first tokens, milliseconds); once before the clock runs, for libraries to warm up."""
    prefill(model, prompts, make_cache())
    cache, clock = make_cache(), Clock(prompts.device)
    clock.mark()
    token = prefill(model, prompts, cache)
    clock.mark()
    return cache, token, clock.intervals_ms()[0]


def decode(step, token, num_steps, device):
    """Milliseconds of each step, and the tokens [batch, num_steps]."""
    clock, tokens = Clock(device), []
    clock.mark()
    for _ in range(num_steps):
        token = step(token)
        tokens.append(token.clone())  # a graph's output is overwritten by its next replay
        clock.mark()
    return clock.intervals_ms(), torch.cat(tokens, 1)


def finish(prompts, first, prefill_ms, warm, times_ms, tokens):
    generated = torch.cat([first, *warm, tokens], 1).tolist()
    return Run(step_ms=statistics.median(times_ms), num_steps=len(times_ms),
               prefill_tokens_per_s=1e3 * prompts.numel() / prefill_ms, tokens=generated)


def run_eager(model, prompts, new_tokens):
    cache, first, prefill_ms = timed_prefill(model, prompts, lambda: dynamic_cache(model))

    def step(token):
        return best(model(input_ids=token, past_key_values=cache, use_cache=True))

    times_ms, tokens = decode(step, first, new_tokens - 1, prompts.device)
    return finish(prompts, first, prefill_ms, [], times_ms, tokens)


class StaticStep:
    """A decode step that reads and writes the same memory every time."""

    def __init__(self, model, prompts, cache, token):
        self.model, self.cache = model, cache
        self.token = token.clone()
        # Given, because from the cache's length they would have to be made anew in each step.
        self.positions = torch.full_like(token, prompts.shape[1])

    def forward(self, token, positions):
        return best(self.model(input_ids=token, position_ids=positions,
                               past_key_values=self.cache, use_cache=True))

    def advance(self):
        self.token.copy_(self.forward(self.token, self.positions))
        self.positions.add_(1)
        return self.token


def run_graph(model, prompts, new_tokens):
    cache, first, prefill_ms = timed_prefill(
        model, prompts, lambda: static_cache(model, prompts, new_tokens))
    state = StaticStep(model, prompts, cache, first)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        warm = [state.advance().clone() for _ in range(GRAPH_WARMUPS)]
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):  # records, does not run
        state.advance()

    def step(_):
        recorded.replay()
        return state.token

    times_ms, tokens = decode(step, first, new_tokens - 1 - GRAPH_WARMUPS, prompts.device)
    return finish(prompts, first, prefill_ms, warm, times_ms, tokens)


def run_compiled(model, prompts, new_tokens):
    torch.compiler.reset()  # each batch is compiled by itself: shapes are constants
    cache, first, prefill_ms = timed_prefill(
        model, prompts, lambda: static_cache(model, prompts, new_tokens))
    state = StaticStep(model, prompts, cache, first)
    compiled = torch.compile(state.forward, mode="reduce-overhead", dynamic=False)

    def step(token):
        token = token.clone()  # it may lie where the next replay writes
        torch.compiler.cudagraph_mark_step_begin()
        token = compiled(token, state.positions)
        state.positions.add_(1)  # outside: a step that changes its inputs is not recorded
        return token

    token, warm = first, []
    for _ in range(COMPILE_WARMUPS):
        token = step(token).clone()
        warm.append(token)
    times_ms, tokens = decode(step, token, new_tokens - 1 - COMPILE_WARMUPS, prompts.device)
    return finish(prompts, first, prefill_ms, warm, times_ms, tokens)


WAYS = {"eager": run_eager, "graph": run_graph, "compile": run_compiled}
FEWEST_TOKENS = COMPILE_WARMUPS + 4


@torch.no_grad()
def run(way, model, prompts, new_tokens):
    """`prompts` [batch][length] by one of WAYS. Raises whatever torch or transformers raise."""
    ids = torch.tensor(prompts, device=model.device)
    measured = WAYS[way](model, ids, new_tokens)
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return measured


@torch.no_grad()
def profile_step(model, prompts):
    """What one eager decode step runs: number of kernels, their time, whose delta rule it is."""
    ids = torch.tensor(prompts, device=model.device)
    cache = dynamic_cache(model)
    token = prefill(model, ids, cache)

    def step():
        best(model(input_ids=token, past_key_values=cache, use_cache=True))
        torch.cuda.synchronize()

    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step()
    kernels = [event for event in profile.events()
               if event.device_type == torch.autograd.DeviceType.CUDA
               and not event.name.startswith(("Memcpy", "Memset"))]
    names = " ".join(event.name for event in kernels)
    whose = {True: "a kernel of its own", False: "PyTorch operators"}
    return {"kernels": len(kernels),
            "device_ms": sum(event.time_range.elapsed_us() for event in kernels) / 1e3,
            "delta_rule": whose["delta_rule" in names],
            "convolution": whose["causal_conv1d" in names]}


@torch.no_grad()
def follow(model, prompt, completion):
    """What the model thinks of tokens that another program chose after the same text.

    One pass over prompt and completion; logits in FP32 from the BF16 hidden states, since BF16
    logits tie. Per token: its log-probability, and by how much its logit misses the best."""
    ids = torch.tensor([[*prompt, *completion[:-1]]], device=model.device)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    hidden = hidden[0, len(prompt) - 1:].float()
    head = model.lm_head.weight
    logits = torch.cat([hidden @ rows.float().T for rows in head.split(VOCAB_ROWS)], 1)
    chosen = torch.tensor(completion, device=model.device)[:, None]
    logits_of_chosen = logits.gather(1, chosen)[:, 0]
    logprobs = logits_of_chosen - logits.logsumexp(1)
    return {"logprobs": logprobs.tolist(),
            "gaps": (logits.max(1).values - logits_of_chosen).tolist()}
