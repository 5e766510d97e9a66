#include "parallel/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "parallel/mpi_env.h"

namespace tandem {
namespace {

// Everything a handler touches: lock-free atomics and system calls, nothing else.
std::atomic<int> g_stop_signal{0};
std::atomic<std::int64_t> g_last_running_ns{0};
std::atomic<std::int64_t> g_last_resumed_ns{0};
std::atomic<pid_t> g_launcher{0};  // 0: none
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::int64_t kRecentNs = 500'000'000;
constexpr int kExitInterrupted = static_cast<int>(ExitCode::kInterrupted);

std::int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void on_stop_signal(int signal, siginfo_t* info, void*) {
  int none = 0;
  if (g_stop_signal.compare_exchange_strong(none, signal)) return;
  // The launcher's SIGTERM follows its SIGCONT, and its SIGKILL follows that: one wish to stop, not
  // two.
  if (signal == SIGTERM && info->si_pid != 0 && info->si_pid == g_launcher.load()) return;
  _exit(kExitInterrupted);
}

void on_continue(int signal, siginfo_t* info, void*) {
  if (info->si_pid == 0 || info->si_pid != g_launcher.load()) return;
  // Was stopped and is resumed now; the thread that notes it may have come before this handler.
  const auto now = now_ns();
  if (now - g_last_running_ns.load() > kRecentNs) return;
  if (now - g_last_resumed_ns.load() < kRecentNs) return;
  int none = 0;
  g_stop_signal.compare_exchange_strong(none, signal);
}

void install(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigemptyset(&action.sa_mask);
  TANDEM_CHECK(sigaction(signal, &action, nullptr) == 0, "signal {}", signal);
}

}  // namespace

void install_signal_handlers() {
  g_launcher.store(started_by_launcher() ? getppid() : 0);
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) install(signal, on_stop_signal);
  install(SIGCONT, on_continue);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested() { return g_stop_signal.load(std::memory_order_relaxed) != 0; }
int stop_signal() { return g_stop_signal.load(std::memory_order_relaxed); }

void note_running() {
  const auto now = now_ns();
  if (now - g_last_running_ns.exchange(now) > kRecentNs) g_last_resumed_ns.store(now);
}

}  // namespace tandem
