#!/usr/bin/python3
"""Output paths that cannot be used, and disks that fill up: refused before anything runs and without
touching what is there, or survived with everything that had been written."""
import contextlib
import fcntl
import os
import resource
import subprocess
import tempfile
import threading
import time
import types
import unittest

from tandem_job import BINARY, LAUNCH_ENVIRONMENT, JobDir, TandemTest, errors_in, h5py, read_rows, tokens_by_id

PROMPTS = [{"id": f"r{i}", "prompt": f"Item {i}:", "max_tokens": 24, "ignore_eos": True}
           for i in range(4)]


class OutputPathTest(TandemTest):
    def good_job(self, **sections):
        job = JobDir(self)
        job.write_prompts(PROMPTS)
        job.write_job(**sections)
        return job

    def mount_tmpfs(self, options):
        """A small or read-only file system of its own, where this process may mount one."""
        folder = tempfile.mkdtemp(prefix="tandem-e2e-disk-")
        self.addCleanup(os.rmdir, folder)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder],
                                 stderr=subprocess.DEVNULL).returncode == 0
        if not mounted:
            self.skipTest("mounting a tmpfs is not allowed here")
        self.addCleanup(subprocess.run, ["umount", "-l", folder])
        return folder

    def refuse_file(self, path, *parts, code=2, **how):
        job = self.good_job()
        self.assert_refused(job.run_job("--output", path, **how), code, *parts)

    def test_existing_file(self):
        job = self.good_job()
        job.out.write_bytes(b"not ours")
        for how in ({}, {"np": 2}):
            self.assert_refused(job.run_job(**how), 2, "exists already", "--resume", "--overwrite")
        self.assert_refused(job.run_job("--resume"), 2, str(job.out))
        self.assertEqual(job.out.read_bytes(), b"not ours")
        self.assertEqual(job.temporaries(), [])
        self.assert_code(job.run_job("--overwrite"), 0)
        self.assertEqual(len(read_rows(job.out)), len(PROMPTS))

    def test_refused_job_leaves_an_existing_result_alone(self):
        job = self.good_job()
        job.write_prompts([{**p, "max_tokens": 400} for p in PROMPTS])
        process = job.start_job()
        while not job.out.exists():
            time.sleep(0.002)
        process.kill_all()  # a complete file would be nothing to resume
        process.wait()
        before = job.out.read_bytes()
        job.write_job(memory={"kv": "1KiB"})
        for option in ("--overwrite", "--resume"):
            self.assert_refused(job.run_job(option), 4, "memory.kv")
            self.assertEqual(job.out.read_bytes(), before, option)
        self.assertEqual(job.temporaries(), [])

    def test_resume_of_what_is_not_there_or_not_ours(self):
        job = self.good_job()
        self.assert_refused(job.run_job("--resume"), 2, "out.h5")
        with h5py.File(job.out, "w") as f:
            f["data"] = [1, 2, 3]
        before = job.out.read_bytes()
        self.assert_refused(job.run_job("--resume"), 2, "out.h5")
        self.assertEqual(job.out.read_bytes(), before)

    def test_not_a_file(self):
        job = self.good_job()
        self.assert_refused(job.run_job("--output", job.path), 2, "folder")
        self.assert_refused(job.run_job("--output", job.prompts / "out.h5"), 2, "prompts.jsonl")
        self.assert_refused(job.run_job("--output", "/proc/out.h5"), 2, "/proc/out.h5")

    def test_missing_folder_is_made(self):
        job = self.good_job()
        self.assert_code(job.run_job("--output", job.path / "a/b/c.h5"), 0)
        self.assertEqual(len(read_rows(job.path / "a/b/c.h5")), len(PROMPTS))

    def test_locked(self):
        job = self.good_job()
        with open(f"{job.out}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assert_refused(job.run_job(), 2, "another process", "out.h5.lock")
        self.assertFalse(job.out.exists())

    def test_second_job_on_the_same_file(self):
        job = self.good_job(sampling={"max_tokens": 300})
        job.write_prompts([{**p, "max_tokens": 300} for p in PROMPTS])
        first = job.start_job()
        while not job.out.exists():
            time.sleep(0.005)
        second = job.run_job("--overwrite")
        if first.popen.poll() is None:
            self.assert_refused(second, 2, f"process {first.popen.pid} is writing")
        self.assert_code(first.wait(), 0)
        self.assertEqual(len(read_rows(job.out)), len(PROMPTS))

    def test_read_only_file_system(self):
        if os.geteuid() == 0:
            folder = self.mount_tmpfs("ro")
        else:
            folder = tempfile.mkdtemp(prefix="tandem-e2e-ro-")
            self.addCleanup(os.rmdir, folder)
            os.chmod(folder, 0o555)
        self.refuse_file(f"{folder}/out.h5", "out.h5", "output.file")

    def test_full_at_start(self):
        folder = self.mount_tmpfs("size=64k")
        self.refuse_file(f"{folder}/out.h5", "No space left", "free space")
        self.assertEqual(os.listdir(folder), [])

    def start_and_wait_for_rows(self, job, out):
        # They run side by side, and are to end one after the other.
        job.write_prompts([{**PROMPTS[0], "id": f"r{i}", "max_tokens": 30 * (i + 1)} for i in range(12)])
        process = job.start_job("--output", out)
        while not os.path.exists(out) or len(read_rows(out)) < 2:
            self.assertIsNone(process.popen.poll(), process.output()[1])
            time.sleep(0.01)
        return process

    def check_disk_failure(self, job, out, process, reason, mend):
        kept = tokens_by_id(out)
        finished = process.wait()
        self.assert_code(finished, 1)
        self.assertEqual(len(errors_in(finished.err)), 1, finished.err)
        self.assertIn(reason, finished.err)
        self.assertIn("--resume", finished.err)
        self.assertLessEqual(set(kept), set(tokens_by_id(out)))
        mend()
        self.assert_code(job.run_job("--output", out, "--resume"), 0)
        self.assertEqual(len(read_rows(out)), 12)

    def test_file_size_limit_during_the_run(self):
        job = self.good_job()
        process = self.start_and_wait_for_rows(job, job.out)
        resource.prlimit(process.popen.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        self.check_disk_failure(job, job.out, process, "ulimit -f", lambda: None)

    @contextlib.contextmanager
    def kept_full(self, folder):
        """Fills a disk, and again whenever something is given back: a copy that was under way at first leaves room
        for another one when it has replaced the file before."""
        done = threading.Event()
        path = f"{folder}/filler"

        def fill():
            with open(path, "wb", buffering=0) as filler:
                while not done.is_set():
                    try:
                        filler.write(bytes(64 << 10))
                    except OSError:
                        time.sleep(0.001)

        thread = threading.Thread(target=fill)

        def stop():
            if not done.is_set():
                done.set()
                thread.join()
                os.unlink(path)

        thread.start()
        try:
            yield types.SimpleNamespace(stop=stop)
        finally:
            stop()

    def test_full_during_the_run(self):
        folder = self.mount_tmpfs("size=24m")
        job = self.good_job()
        out = f"{folder}/out.h5"
        process = self.start_and_wait_for_rows(job, out)
        with self.kept_full(folder) as filler:
            self.check_disk_failure(job, out, process, "No space left", filler.stop)

    def test_dry_run_writes_nothing(self):
        job = self.good_job()
        before = sorted(os.listdir(job.path))
        self.assert_code(job.run_job("--dry-run"), 0)
        self.assert_code(job.run_job("--dry-run", np=2), 0)
        self.assertEqual(sorted(os.listdir(job.path)), before)
        self.assert_code(job.run("plan", job.job), 0)
        self.assertEqual(sorted(os.listdir(job.path)), before)

    def test_closed_standard_streams(self):
        """Their numbers must not go to the result or a socket, where messages would end up."""
        job = self.good_job()
        command = f"exec '{BINARY}' run '{job.job}' <&- >&- 2>&-"
        self.assertEqual(subprocess.run(["sh", "-c", command],
                                        env={**os.environ, **LAUNCH_ENVIRONMENT}).returncode, 0)
        self.assertEqual(len(read_rows(job.out)), len(PROMPTS))
        self.assertEqual(job.temporaries(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
