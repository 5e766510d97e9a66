#!/usr/bin/env bash
# mpirun for tandem jobs, with exit codes that mean something: scripts/mpirun_job.sh -np 2 tandem run JOB.yaml
#
# Open MPI 4.1 answers Ctrl-C and SIGTERM by killing the ranks after a fixed time and returns 1 whatever
# they return; SIGUSR1 it passes on, without a deadline, and returns the ranks' own code. So the first
# Ctrl-C or SIGTERM goes on as SIGUSR1: the job finishes its step, saves, and this script exits 130.
# The second ends everything at once. A rank killed by a signal (mpirun: 128 + signal) exits 6.
set -um  # -m: mpirun gets a process group of its own, out of reach of the terminal's Ctrl-C

interrupts=0
trapped=0
interrupt() {
  trapped=1
  interrupts=$((interrupts + 1))
  if ((interrupts == 1)); then
    kill -USR1 "$job" 2>/dev/null
  else
    kill -TERM "$job" 2>/dev/null
  fi
}

mpirun "$@" </dev/null &
job=$!
trap interrupt INT TERM

while true; do
  wait "$job"
  code=$?
  ((trapped)) || break  # otherwise it was the signal that ended wait
  trapped=0
done

if ((interrupts > 1 || (interrupts == 1 && code > 128))); then
  exit 130
elif ((code > 128 && code != 130)); then
  exit 6
fi
exit "$code"
