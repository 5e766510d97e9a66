// Turns SIGINT, SIGTERM and SIGUSR1 into a flag that the step loop reads between steps: finish the
// step, save, exit 130. A second one ends the process at once. SIGPIPE and SIGXFSZ are ignored:
// writes fail with EPIPE and EFBIG instead.
//
// What mpirun of Open MPI 4.1 does (measured with 4.1.4; orte/mca/ess/hnp, orte/mca/odls/base),
// with T = odls_base_sigkill_timeout, 1 s unless set:
//   SIGINT, SIGTERM, SIGHUP to mpirun: SIGCONT to every rank's process group at once, SIGTERM after
//   T,
//     SIGKILL after 2T. mpirun returns 1 after 2T, whatever the ranks return and however early they
//     are done; a second Ctrl-C is not passed on.
//   SIGUSR1 to mpirun: passed on to the ranks. No deadline, and mpirun returns the ranks' own code
//     (130). This is the way to interrupt a job with a meaningful exit code; scripts/mpirun_job.sh
//     translates Ctrl-C and SIGTERM into it.
//   a rank exits with a code above 0, or dies of a signal: the same SIGCONT, SIGTERM, SIGKILL
//   sequence
//     for the others; mpirun returns the first such code (128 + signal number for a killed rank).
//   SIGTSTP: ranks get SIGSTOP, and SIGCONT on resuming.
//   SIGKILL: the ranks get nothing, their parent changes, writes to stdout and stderr fail with
//   EPIPE.
// SIGTERM and SIGINT cannot be added to the signals that mpirun passes on (ess_base_forward_signals
// refuses them). configs/openmpi/tandem-mca.conf sets T = 3, which leaves 6 s to save.
//
// So a SIGCONT from the launcher to a process that was not stopped is the first sign of the end,
// and counts as a stop request: it doubles the time to save.
#pragma once

namespace tandem {

// Once per process, before other threads start.
void install_signal_handlers();
// True from the first signal on. Async-signal-safe, cheap enough for every step.
bool stop_requested();
// The signal that asked to stop; 0 if none did.
int stop_signal();
// Says that this process is running. A SIGCONT within half a second of this did not wake the
// process up, so it means that the launcher is ending the job. RankGuard calls it ten times a
// second.
void note_running();

}  // namespace tandem
