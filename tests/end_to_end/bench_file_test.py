#!/usr/bin/python3
"""`tandem bench --output`: the file against what --json prints, read with h5py alone; the report of such a
file; output paths that cannot be used."""
import json
import unittest

from tandem_job import JobDir, TandemTest, h5py, np

ARGUMENTS = {"memory": ["--bytes", "4MiB"],
             "gemm": ["--shape", "64x64", "--rows", "1,4", "--format", "bf16,nvfp4"],
             "collective": ["--max-bytes", "4KiB"]}


def table(group):
    return {name: (d.asstr() if d.dtype.kind == "S" else d)[:] for name, d in group.items()}


class BenchFileTest(TandemTest):
    def bench(self, job, kind, *options, np=None):
        return job.run("bench", kind, "--backend", "cpu", "--threads", 1, *ARGUMENTS[kind], *options, np=np)

    def test_values_are_those_printed(self):
        for kind in ARGUMENTS:
            with self.subTest(kind=kind):
                job = JobDir(self)
                finished = self.bench(job, kind, "--json", "--output", job.out)
                self.assert_code(finished, 0)
                printed = json.loads(finished.out)
                with h5py.File(job.out) as f:
                    self.assertEqual(set(f), {"passport", "bench"})
                    self.assertEqual(set(f["bench"]), {"ranks", kind})
                    for dataset in (*f["bench/ranks"].values(), *f[f"bench/{kind}"].values()):
                        self.assertTrue(dataset.attrs["units"] and dataset.attrs["description"], dataset.name)
                    passport = f["passport"].attrs
                    self.assertEqual(passport["bench.name"], kind)
                    self.assertEqual(passport["exit_status"], "done")
                    self.assertEqual(passport["ranks.count"], 1)
                    self.assertEqual(passport["backend"], printed["backend"])
                    self.assertEqual(list(passport["bench.command_line"][1:3]), ["bench", kind])
                    self.assertLessEqual(passport["start_utc"], passport["end_utc"])
                    rows, ranks = table(f[f"bench/{kind}"]), table(f["bench/ranks"])
                self.assertEqual({len(column) for column in rows.values()}, {len(printed["results"])})
                for name in set(rows) & set(printed["results"][0]):
                    self.assertEqual(rows[name].tolist(), [row[name] for row in printed["results"]], name)
                for name in ("read_bytes_per_s", "copy_bytes_per_s"):
                    if name in printed:
                        self.assertEqual(ranks[name].tolist(), [printed[name]])
                self.assertEqual(job.temporaries(), [])

    def test_all_ranks_in_one_file(self):
        for kind in ARGUMENTS:
            with self.subTest(kind=kind):
                job = JobDir(self)
                finished = self.bench(job, kind, "--output", job.out, np=2)
                self.assert_code(finished, 0)
                with h5py.File(job.out) as f:
                    self.assertEqual(f["bench/ranks/rank"][:].tolist(), [0, 1])
                    self.assertEqual(f["passport"].attrs["ranks.count"], 2)
                    if kind != "collective":
                        self.assertEqual(np.unique(f[f"bench/{kind}/rank"][:]).tolist(), [0, 1])
                report = job.run("report", job.out)
                self.assert_code(report, 0)
                self.assertEqual(report.out, finished.out)

    def test_other_forms_of_report_and_replay_say_what_the_file_is(self):
        job = JobDir(self)
        self.assert_code(self.bench(job, "memory", "--output", job.out), 0)
        for command in (["report", "--csv"], ["report", "--methods"], ["replay"]):
            self.assert_refused(job.run(*command, job.out), 2, "out.h5", "tandem bench")
        self.assert_code(job.run("report", job.out, "--redact", job.path / "shared.h5"), 0)
        self.assert_code(job.run("report", job.path / "shared.h5"), 0)

    def test_paths_that_cannot_be_used(self):
        job = JobDir(self)
        job.out.write_bytes(b"not ours")
        for np_ in (None, 2):
            self.assert_refused(self.bench(job, "memory", "--output", job.out, np=np_), 2, "exists already",
                                "--overwrite")
        self.assert_refused(self.bench(job, "memory", "--output", job.path), 2, "folder", "--output")
        self.assert_refused(self.bench(job, "memory", "--output", job.out / "a.h5"), 2, "cannot create")
        self.assertEqual(job.out.read_bytes(), b"not ours")
        self.assertEqual(job.temporaries(), [])
        self.assert_code(self.bench(job, "memory", "--output", job.out, "--overwrite"), 0)
        with h5py.File(job.out) as f:
            self.assertIn("bench", f)


if __name__ == "__main__":
    unittest.main(verbosity=2)
