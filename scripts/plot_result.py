#!/usr/bin/env python3
"""Draws a result file: tokens/s by concurrency, acceptance by draft position, where the step time goes.

Usage: plot_result.py RESULT.h5 [OUT.png]    needs h5py, numpy and matplotlib, and nothing of ours.
"""
import sys
import h5py
import matplotlib
import numpy as np
matplotlib.use("Agg")
import matplotlib.pyplot as plt

PARTS = ["host_prepare_s", "device_compute_s", "collective_s", "sample_verify_s", "wait_device_s", "wait_rank_s"]

def column(dataset):
    fill = dataset.attrs.get("_FillValue")
    return np.ma.masked_array(dataset[:]) if fill is None else np.ma.masked_equal(dataset[:], fill)

def main(source, target):
    figure, (speed, acceptance, split) = plt.subplots(1, 3, figsize=(13, 4), constrained_layout=True)
    with h5py.File(source) as f:
        if "summary" not in f:
            sys.exit(f"{source}: not a result of tandem run; print a file of tandem bench with tandem report")
        summary = f["summary"]
        whole = (summary["session"][:] == 0) & (summary["cache"].asstr()[:] == "all")
        level, mean, low, high = (column(summary[k])[whole] for k in
                                  ("concurrency", "tokens_per_s", "tokens_per_s_min", "tokens_per_s_max"))
        speed.errorbar(level, mean, yerr=np.ma.clip([mean - low, high - mean], 0, None), fmt="o-", capsize=3)
        speed.set(xlabel="concurrency", ylabel="tokens/s (bars: slowest and fastest run)", xticks=level, ylim=(0, None))
        counted = ~f["requests/warmup"][:]
        proposed, accepted = (f[f"acceptance/{k}"][:][counted].sum(axis=0) for k in ("proposed", "accepted"))
        position = np.arange(len(proposed)) + 1
        acceptance.bar(position, accepted / np.maximum(proposed, 1))
        acceptance.set(xlabel="draft position", ylabel="accepted / proposed", xticks=position, ylim=(0, 1))
        steps = f["steps"]
        first = (steps["rank"][:] == 0) & ~steps["warmup"][:] & (steps["kind"].asstr()[:] == "round")
        parts = {k[:-2].replace("_", " "): column(steps[k])[first] for k in PARTS}
        means = {k: 1e3 * v.mean() for k, v in parts.items() if v.count() > 0}  # what was never measured is not drawn
        split.barh(list(means), list(means.values()))
        split.set(xlabel="ms a round (rank 0)")
        figure.suptitle(f"{f['passport'].attrs.get('job.name', source)}: {counted.sum()} rows, warm-up left out")
    figure.savefig(target, dpi=150)

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else sys.argv[1].removesuffix(".h5") + ".png")
