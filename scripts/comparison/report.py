"""What is made of the measurements: how far token lists agree, and the table in Markdown.

Works on plain numbers, so that it can be tested without a GPU or PyTorch.
"""
NAMES = {"eager": "transformers, eager", "graph": "transformers, as one CUDA graph",
         "compile": "transformers, torch.compile"}


def leading_agreement(a, b):
    """Number of equal tokens before the first difference."""
    for i, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return i
    return min(len(a), len(b))


def ratio_text(ours, theirs):
    """How many times as fast ours is, from two times."""
    return f"{theirs / ours:.2f} x"


def row(name, cells):
    return f"| {name} | " + " | ".join(cells) + " |"


def cell(run, text):
    return "failed" if "failed" in run else text(run)


def table(measured, batches):
    """measured: {"tandem": {batch: numbers}, "transformers": {way: {batch: numbers or a failure}}}.

    Ratios above 1: tandem is faster."""
    ours = measured["tandem"]
    lines = [row("", [f"batch {b}" for b in batches]), "| --- " * (len(batches) + 1) + "|",
             row("tandem, ms a step", [f"{ours[b]['step_ms']:.2f}" for b in batches])]
    for way, runs in measured["transformers"].items():
        lines.append(row(f"{NAMES[way]}, ms a step (ratio)", [
            cell(runs[b], lambda run, b=b: f"{run['step_ms']:.2f} "
                 f"({ratio_text(ours[b]['step_ms'], run['step_ms'])})") for b in batches]))
    lines.append(row("tandem, prefill tok/s",
                     [f"{ours[b]['prefill_tokens_per_s']:.0f}" for b in batches]))
    # The way decides about decoding; prompts are read by the same code in all of them.
    eager = measured["transformers"].get("eager")
    if eager:
        lines.append(row("transformers, prefill tok/s (ratio)", [
            cell(eager[b], lambda run, b=b: f"{run['prefill_tokens_per_s']:.0f} ("
                 + ratio_text(1 / ours[b]["prefill_tokens_per_s"],
                              1 / run["prefill_tokens_per_s"]) + ")") for b in batches]))
    return "\n".join(lines)


def profile_text(batch, profile):
    if "failed" in profile:
        return f"- a step of transformers, eager, batch {batch}: no profile, {profile['failed']}"
    return (f"- a step of transformers, eager, batch {batch}: {profile['kernels']} kernels that "
            f"take {profile['device_ms']:.2f} ms together; delta rule by {profile['delta_rule']}, "
            f"convolution by {profile['convolution']}")


def agreement_text(name, tokens, reference):
    return (f"- {name}: the first {leading_agreement(tokens, reference)} of {len(reference)} "
            "tokens of the first prompt equal tandem's")


def followed_text(ours, followed):
    """ours: tandem's log-probabilities of its tokens; followed: transformers' view of them."""
    if "failed" in followed:
        return f"- tandem's tokens given to transformers: {followed['failed']}"
    theirs, gaps = followed["logprobs"], followed["gaps"]
    differences = sorted(abs(a - b) for a, b in zip(ours, theirs))
    first_choice = sum(gap == 0 for gap in gaps)
    return (f"- tandem's tokens given to transformers: {first_choice} of {len(gaps)} are its first "
            f"choice too, none lies more than {max(gaps):.3f} below its best logit; their "
            f"log-probabilities differ by {abs(ours[0] - theirs[0]):.4f} (first token), "
            f"{differences[len(differences) // 2]:.4f} (median), {differences[-1]:.4f} (largest)")
