// A job without a model, for guard_test.py: steps with a collective in each, one fault of choice,
// and a "result file" DIR/saved that the failure callback and the orderly end write.
//   guard_driver MODE DIR
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "base/log.h"
#include "parallel/host_comm.h"
#include "parallel/mpi_device_comm.h"
#include "parallel/mpi_env.h"
#include "parallel/rank_guard.h"
#include "parallel/signals.h"

namespace tandem {
namespace {

constexpr int kFaultStep = 20;

void sleep_s(double s) { std::this_thread::sleep_for(std::chrono::duration<double>(s)); }

void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text << '\n';
}

int run(int argc, char** argv) {
  install_signal_handlers();
  MpiEnv env(&argc, &argv);
  const std::string mode = argv[1];
  const std::filesystem::path dir = argv[2];
  log_configure(env.rank(), false);
  const HostComm world = HostComm::world();
  const bool faulty = env.rank() == (mode.ends_with("0") ? 0 : 1);

  StepBeacon beacon;
  RankGuardOptions options;
  options.heartbeat_s = 0.25;
  options.lost_after_s = 2;
  options.stall_timeout_s = 2;
  options.save_deadline_s = 2;
  options.on_failure = [&](const Failure& failure) {
    if (mode == "save_hangs1") sleep_s(1000);
    write_file(dir / "saved", fmt::format("failure rank {} step {} code {}", failure.rank,
                                          failure.step, static_cast<int>(failure.code)));
  };
  options.on_message = [&](int rank, std::uint32_t kind, const std::string& bytes) {
    write_file(dir / "messages", fmt::format("{} {} {}", rank, kind, bytes));
  };
  RankGuard guard(world, beacon, options);
  const auto comm = make_mpi_device_comm(world, &beacon);
  guard.send_to_root(7, fmt::format("hello from {}", env.rank()));
  write_file(dir / fmt::format("pid{}", env.rank()), std::to_string(getpid()));

  auto code = ExitCode::kDone;
  try {
    beacon.operation = "decode";
    guard.begin_watch();
    const int num_steps = mode == "orderly" ? 100 : mode == "pause" ? 500 : 100000;
    for (int step = 0; step < num_steps; ++step) {
      if (step == kFaultStep && faulty) {
        if (mode.starts_with("throw")) throw Error(ExitCode::kDoesNotFit, {.what = "out of pages"});
        if (mode.starts_with("stall")) sleep_s(1000);
        if (mode.starts_with("exit")) _exit(0);
        if (mode.starts_with("save_hangs")) raise(SIGKILL);
      }
      if (step == kFaultStep && mode == "unwatched") {
        guard.end_watch();  // longer than the stall timeout, and no failure
        sleep_s(3);
        guard.begin_watch();
      }
      sleep_s(0.01);
      float stop = stop_requested() ? 1.0f : 0.0f;  // everyone stops after the same step
      comm->all_reduce_tree_f32(&stop, 1);
      ++beacon.step;
      if (mode == "unwatched" && step > kFaultStep + 5) break;
      if (stop > 0) {
        code = ExitCode::kInterrupted;
        break;
      }
    }
    guard.end_watch();
    if (env.rank() == 0) {
      if (mode == "slow_save") sleep_s(3);  // longer than mpirun leaves once a rank has exited
      write_file(dir / "saved", fmt::format("end code {}", static_cast<int>(code)));
    }
    if (mode == "slow_save") code = ExitCode::kSomeFailed;
    guard.goodbye();
  } catch (const Error& e) {
    guard.fail(e);
  }
  write_file(dir / fmt::format("exit{}", env.rank()), std::to_string(static_cast<int>(code)));
  return static_cast<int>(code);
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run(argc, argv); }
