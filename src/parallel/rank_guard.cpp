#include "parallel/rank_guard.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "parallel/guard_link.h"
#include "parallel/host_info.h"
#include "parallel/mpi_env.h"
#include "parallel/signals.h"

namespace tandem {
namespace {

constexpr double kTick_s = 0.1;
// A guard thread that did not run for so long was stopped with its process (Ctrl-Z): its clocks
// prove nothing about the others.
constexpr double kOwnGap_s = 2.0;
constexpr std::size_t kMaxQueuedBytes = 1 << 20;
constexpr std::size_t kMaxOperationLength = 64;

// What a rank says about itself with every heartbeat.
struct RankStatus {
  std::uint64_t step = 0;
  double since_step_s = 0;  // since the last step finished, or since watching began
  bool waits_for_peers = false;
  bool watched = false;
  std::array<char, kMaxOperationLength> operation{};  // zero-terminated

  std::string operation_text() const { return operation.data(); }
};

// Whether the message has been written to stderr already, by another rank.
enum class Spoken : std::uint8_t { kNo, kYes };

struct RankInfo {
  char host[256] = {};
  long pid = 0;
};

std::string packed(const Failure& failure, Spoken spoken) {
  FrameWriter body;
  body.put(static_cast<std::int32_t>(failure.rank)).put(static_cast<std::int32_t>(failure.code));
  body.put(failure.step).put_text(failure.operation);
  body.put_text(failure.message.substr(0, 1 << 16));
  body.put(spoken);
  return body.body();
}

}  // namespace

class RankGuard::Core {
 public:
  Core(const HostComm& world, StepBeacon& beacon, RankGuardOptions options);
  ~Core();

  void set_watched(bool watched);
  [[noreturn]] void fail(const ErrorText& text, ExitCode code);
  bool send_to_root(std::uint32_t kind, std::string bytes);
  void goodbye();

 private:
  struct Peer {
    int rank = 0;
    GuardLink link;
    RankStatus status;  // as last heard
    double last_heard_s = 0;
    bool said_goodbye = false;
  };
  struct Outgoing {
    FrameType type{};
    std::string body;
  };

  bool is_root() const { return rank_ == 0; }
  std::string name(int rank) const;

  // Guard thread.
  void run();
  void wait_for_events();
  void update_own_status(double now);
  void forgive_own_gap(double now);
  void send_queued();
  void beat_if_due(double now);
  void handle(Peer& peer, const Frame& frame);
  void check_peers(double now);
  void check_launcher(double now);
  void check_stalls();
  void peer_lost(Peer& peer, const std::string& how);
  Failure describe(int rank, const RankStatus& status, ExitCode code,
                   const std::string& what) const;
  // On rank 0: says what happened, has the results saved, ends all ranks.
  [[noreturn]] void conclude(const Failure& failure, Spoken spoken = Spoken::kNo);
  [[noreturn]] void end_without_root(Peer& root, const std::string& how);
  void wake();

  const int rank_;
  const int size_;
  StepBeacon& beacon_;
  const RankGuardOptions options_;
  const bool launched_ = started_by_launcher();
  const pid_t parent_ = getppid();
  std::vector<RankInfo> infos_;  // [size]
  std::vector<Peer> peers_;      // root: all others; elsewhere: root. Guard thread's own.
  FileDescriptor wake_;

  // Guard thread's own.
  RankStatus own_;
  double step_changed_s_ = 0;
  double last_beat_s_ = 0;
  double last_tick_s_ = 0;
  double launcher_lost_s_ = 0;  // 0: it is there

  // Shared with the other threads.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Outgoing> queue_;  // in order of sending; root's go to itself
  std::size_t queued_bytes_ = 0;
  bool leaving_ = false;  // goodbye() was called
  bool goodbye_sent_ = false;
  int goodbyes_missing_ = 0;  // peers that have not said goodbye and are not closed
  std::optional<Failure> own_failure_;
  std::atomic<bool> watched_{false};
  std::atomic<bool> watch_restarted_{false};
  std::atomic<bool> stop_thread_{false};
  std::thread thread_;
};

RankGuard::Core::Core(const HostComm& world, StepBeacon& beacon, RankGuardOptions options)
    : rank_(world.rank()),
      size_(world.size()),
      beacon_(beacon),
      options_(std::move(options)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  TANDEM_CHECK(static_cast<bool>(wake_), "eventfd");
  RankInfo own;
  own.pid = getpid();
  host_name().copy(own.host, sizeof own.host - 1);
  infos_ = world.all_gather(own);

  std::vector<GuardLink> links;
  if (size_ > 1) links = connect_guard_links(world);
  last_tick_s_ = monotonic_s();
  if (is_root()) {
    for (int r = 1; r < size_; ++r) {
      auto& peer = peers_.emplace_back();
      peer.rank = r;
      peer.link = std::move(links[static_cast<std::size_t>(r)]);
    }
  } else {
    peers_.emplace_back().link = std::move(links[0]);
  }
  for (auto& peer : peers_) peer.last_heard_s = last_tick_s_;
  goodbyes_missing_ = static_cast<int>(peers_.size());
  thread_ = std::thread([this] {
    try {
      run();
    } catch (const std::exception& e) {
      // Without its guard the job could hang for ever; ending is the smaller evil.
      log_error("rank guard: {}", e.what());
      _exit(static_cast<int>(ExitCode::kInternal));
    }
  });
}

RankGuard::Core::~Core() {
  stop_thread_ = true;
  wake();
  thread_.join();
}

std::string RankGuard::Core::name(int rank) const {
  const auto& info = infos_[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} on {} (pid {})", rank, info.host, info.pid);
}

void RankGuard::Core::wake() {
  const std::uint64_t one = 1;
  static_cast<void>(::write(wake_.get(), &one, sizeof one) == 0);
}

void RankGuard::Core::set_watched(bool watched) {
  watch_restarted_ = true;
  watched_ = watched;
}

// --- called by other threads -------------------------------------------------------------------

void RankGuard::Core::fail(const ErrorText& text, ExitCode code) {
  Failure failure{.rank = rank_,
                  .host = infos_[static_cast<std::size_t>(rank_)].host,
                  .pid = getpid(),
                  .step = beacon_.step,
                  .operation = beacon_.operation.load(),
                  .code = code,
                  .message = {}};
  failure.message = fmt::format("{} failed at step {}, {}: {}", name(rank_), failure.step,
                                failure.operation, format_error(text));
  {
    const std::scoped_lock lock(mutex_);
    if (!own_failure_) {
      own_failure_ = failure;
      if (!is_root()) {
        queue_.push_back({FrameType::kFailure, packed(failure, Spoken::kNo)});
      }
    }
  }
  wake();
  // The guard thread ends the process once rank 0 has saved. What follows is for the case that it
  // cannot.
  const double patience_s = options_.linger_s + (is_root() ? options_.save_deadline_s : 0.0);
  std::this_thread::sleep_for(std::chrono::duration<double>(patience_s));
  log_error("{}", failure.message);
  _exit(static_cast<int>(code));
}

bool RankGuard::Core::send_to_root(std::uint32_t kind, std::string bytes) {
  FrameWriter body;
  body.put(kind).put_text(bytes);
  {
    const std::scoped_lock lock(mutex_);
    if (leaving_ || queued_bytes_ + body.body().size() > kMaxQueuedBytes / 2) return false;
    queued_bytes_ += body.body().size();
    queue_.push_back({FrameType::kMessage, body.body()});
  }
  wake();
  return true;
}

void RankGuard::Core::goodbye() {
  set_watched(false);
  std::unique_lock lock(mutex_);
  if (leaving_) return;
  leaving_ = true;
  queue_.push_back({FrameType::kGoodbye, {}});
  wake();
  const auto done = [this] { return goodbyes_missing_ == 0 && goodbye_sent_; };
  if (!is_root()) {
    changed_.wait(lock, done);  // rank 0 may have much to write; its guard says if it dies
    return;
  }
  if (changed_.wait_for(lock, std::chrono::duration<double>(options_.stall_timeout_s), done))
    return;
  const auto late = std::find_if(peers_.begin(), peers_.end(),
                                 [](const Peer& peer) { return !peer.said_goodbye; });
  const std::string who = name(late == peers_.end() ? rank_ : late->rank);
  lock.unlock();
  fail({.what = fmt::format("{} did not reach the end of the job within {:.0f} s of rank 0", who,
                            options_.stall_timeout_s)},
       ExitCode::kRankFailure);
}

// --- guard thread ------------------------------------------------------------------------------

void RankGuard::Core::run() {
  while (!stop_thread_) {
    wait_for_events();
    const double now = monotonic_s();
    note_running();
    forgive_own_gap(now);
    update_own_status(now);
    send_queued();
    for (auto& peer : peers_) {
      for (const auto& frame : peer.link.receive()) {
        peer.last_heard_s = now;
        handle(peer, frame);
      }
      peer.link.flush();
    }
    beat_if_due(now);
    if (is_root()) {
      std::unique_lock lock(mutex_);
      const auto failure = own_failure_;
      lock.unlock();
      if (failure) conclude(*failure);
    }
    check_peers(now);
    check_launcher(now);
    if (is_root()) check_stalls();
  }
}

void RankGuard::Core::wait_for_events() {
  std::vector<pollfd> fds{{.fd = wake_.get(), .events = POLLIN, .revents = 0}};
  for (const auto& peer : peers_) {
    if (!peer.link.open()) continue;
    const short events = peer.link.unsent_bytes() > 0 ? POLLIN | POLLOUT : POLLIN;
    fds.push_back({.fd = peer.link.fd(), .events = events, .revents = 0});
  }
  poll(fds.data(), fds.size(), static_cast<int>(kTick_s * 1000));
  std::uint64_t count = 0;
  static_cast<void>(::read(wake_.get(), &count, sizeof count) == 0);
}

void RankGuard::Core::forgive_own_gap(double now) {
  if (now - last_tick_s_ > kOwnGap_s) {
    for (auto& peer : peers_) {
      peer.last_heard_s = now;
      peer.status.since_step_s = 0;
    }
    step_changed_s_ = now;
  }
  last_tick_s_ = now;
}

void RankGuard::Core::update_own_status(double now) {
  const std::uint64_t step = beacon_.step;
  if (step != own_.step || watch_restarted_.exchange(false) || step_changed_s_ == 0) {
    step_changed_s_ = now;
  }
  own_.step = step;
  own_.since_step_s = now - step_changed_s_;
  own_.watched = watched_;
  own_.waits_for_peers = beacon_.waits_for_peers;
  own_.operation.fill('\0');
  std::string_view(beacon_.operation.load()).copy(own_.operation.data(), kMaxOperationLength - 1);
}

void RankGuard::Core::send_queued() {
  std::deque<Outgoing> queue;
  {
    const std::scoped_lock lock(mutex_);
    queue.swap(queue_);
    queued_bytes_ = 0;
  }
  for (const auto& [type, body] : queue) {
    if (type == FrameType::kMessage && is_root()) {
      Peer self;
      handle(self, {.type = type, .body = body});
      continue;
    }
    for (auto& peer : peers_) {
      // A rank 0 that does not read must not fill this rank's memory: messages give way.
      if (type == FrameType::kMessage && peer.link.unsent_bytes() > kMaxQueuedBytes) continue;
      peer.link.send(type, body);
    }
    if (type == FrameType::kGoodbye) {
      const std::scoped_lock lock(mutex_);
      goodbye_sent_ = true;
      changed_.notify_all();
    }
  }
}

void RankGuard::Core::beat_if_due(double now) {
  if (now - last_beat_s_ < options_.heartbeat_s) return;
  last_beat_s_ = now;
  FrameWriter body;
  body.put(own_);
  for (auto& peer : peers_) peer.link.send(FrameType::kHeartbeat, body.body());
}

void RankGuard::Core::handle(Peer& peer, const Frame& frame) {
  FrameReader body(frame.body);
  switch (frame.type) {
    case FrameType::kHeartbeat:
      peer.status = body.get<RankStatus>();
      break;
    case FrameType::kMessage: {
      const auto kind = body.get<std::uint32_t>();
      if (options_.on_message) options_.on_message(peer.rank, kind, body.get_text());
      break;
    }
    case FrameType::kFailure: {
      Failure failure{.rank = body.get<std::int32_t>(), .host = {}, .operation = {}, .message = {}};
      TANDEM_CHECK(failure.rank >= 0 && failure.rank < size_, "failure of rank {}", failure.rank);
      failure.host = infos_[static_cast<std::size_t>(failure.rank)].host;
      failure.pid = infos_[static_cast<std::size_t>(failure.rank)].pid;
      failure.code = static_cast<ExitCode>(body.get<std::int32_t>());
      failure.step = body.get<std::uint64_t>();
      failure.operation = body.get_text();
      failure.message = body.get_text();
      conclude(failure, body.get<Spoken>());
    }
    case FrameType::kGoodbye: {
      const std::scoped_lock lock(mutex_);
      if (!peer.said_goodbye) --goodbyes_missing_;
      peer.said_goodbye = true;
      changed_.notify_all();
      break;
    }
    case FrameType::kExit:
      _exit(body.get<std::int32_t>());
    case FrameType::kHello:
    case FrameType::kWelcome:
      break;  // handshake, over
  }
}

void RankGuard::Core::check_peers(double now) {
  for (auto& peer : peers_) {
    if (peer.said_goodbye) continue;
    if (!peer.link.open()) peer_lost(peer, "its process ended");
    if (now - peer.last_heard_s > options_.lost_after_s) {
      peer_lost(peer,
                fmt::format("not heard of for {:.0f} s: host down, network cut, or process stopped",
                            now - peer.last_heard_s));
    }
  }
}

void RankGuard::Core::peer_lost(Peer& peer, const std::string& how) {
  if (is_root()) {
    conclude(describe(peer.rank, peer.status, ExitCode::kRankFailure, "is lost (" + how + ")"));
  }
  end_without_root(peer, how);
}

// The parent of a rank is mpirun or its daemon. When that is killed nobody else would end the
// ranks.
void RankGuard::Core::check_launcher(double now) {
  if (!launched_ || getppid() == parent_) return;
  {
    const std::scoped_lock lock(mutex_);
    if (leaving_) return;
  }
  if (launcher_lost_s_ == 0) launcher_lost_s_ = now;
  auto failure = describe(rank_, own_, ExitCode::kRankFailure,
                          fmt::format("lost its mpirun (pid {})", parent_));
  if (is_root()) conclude(failure);
  // On rank 0's host, rank 0 sees the same and speaks first.
  if (now - launcher_lost_s_ < 1.0) return;
  const std::scoped_lock lock(mutex_);
  if (own_failure_) return;
  own_failure_ = failure;
  peers_[0].link.send(FrameType::kFailure, packed(failure, Spoken::kNo));
}

// One rank that hangs makes all others hang in the next collective, so all clocks run out together.
// The culprit has finished the fewest steps; among equals it is one that waits for nobody.
void RankGuard::Core::check_stalls() {
  struct Candidate {
    int rank;
    const RankStatus* status;
  };
  std::vector<Candidate> all{{rank_, &own_}};
  for (const auto& peer : peers_) all.push_back({peer.rank, &peer.status});
  const auto stalled_for = [&](const Candidate& c, double limit_s) {
    return c.status->watched && c.status->since_step_s > limit_s;
  };
  if (std::none_of(all.begin(), all.end(),
                   [&](const Candidate& c) { return stalled_for(c, options_.stall_timeout_s); })) {
    return;
  }
  std::erase_if(all, [&](const Candidate& c) {
    return !stalled_for(c, options_.stall_timeout_s - 3 * options_.heartbeat_s);
  });
  const auto culprit = std::min_element(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return std::tuple(a.status->step, a.status->waits_for_peers, a.rank) <
           std::tuple(b.status->step, b.status->waits_for_peers, b.rank);
  });
  conclude(
      describe(culprit->rank, *culprit->status, ExitCode::kRankFailure,
               fmt::format("has finished no step for {:.0f} s", culprit->status->since_step_s)));
}

Failure RankGuard::Core::describe(int rank, const RankStatus& status, ExitCode code,
                                  const std::string& what) const {
  const auto& info = infos_[static_cast<std::size_t>(rank)];
  return {.rank = rank,
          .host = info.host,
          .pid = info.pid,
          .step = status.step,
          .operation = status.operation_text(),
          .code = code,
          .message = fmt::format("{} {} after step {}, {}", name(rank), what, status.step,
                                 status.operation_text())};
}

void RankGuard::Core::conclude(const Failure& failure, Spoken spoken) {
  // Speaking and saving happen on a thread that may be left behind: both can wait for a lock that
  // the main thread holds while it hangs.
  struct Progress {
    std::mutex mutex;
    std::condition_variable changed;
    bool spoken = false;
    bool done = false;
  };
  const auto progress = std::make_shared<Progress>();
  const auto reach = [progress](bool Progress::*mark) {
    const std::scoped_lock lock(progress->mutex);
    (*progress).*mark = true;
    progress->changed.notify_all();
  };
  std::thread([this, failure, spoken, reach] {
    if (spoken == Spoken::kNo) log_error("{}; stopping all ranks", failure.message);
    reach(&Progress::spoken);
    try {
      if (options_.on_failure) options_.on_failure(failure);
    } catch (const std::exception& e) {
      log_error("while saving: {}", e.what());
    }
    reach(&Progress::done);
  }).detach();

  const double deadline = monotonic_s() + options_.save_deadline_s;
  {
    std::unique_lock lock(progress->mutex);
    while (!progress->done && monotonic_s() < deadline) {
      progress->changed.wait_for(lock, std::chrono::duration<double>(kTick_s));
      beat_if_due(monotonic_s());  // or the others would take rank 0 for lost
    }
    if (!progress->spoken)
      dprintf(STDERR_FILENO, "%s; stopping all ranks\n", failure.message.c_str());
    if (!progress->done) {
      dprintf(STDERR_FILENO, "results since the last flush are not saved: saving hangs\n");
    }
  }

  FrameWriter body;
  body.put(static_cast<std::int32_t>(failure.code));
  for (auto& peer : peers_) peer.link.send(FrameType::kExit, body.body());
  _exit(static_cast<int>(failure.code));
}

// Rank 0 is gone, and with it the writer of the results and the one voice. One survivor speaks:
// rank 1, or the first rank on another host if it is the whole host that is silent.
void RankGuard::Core::end_without_root(Peer& root, const std::string& how) {
  const std::string root_host = infos_[0].host;
  int speaker = 1;
  if (root.link.open()) {
    for (int r = 1; r < size_; ++r) {
      if (infos_[static_cast<std::size_t>(r)].host != root_host) {
        speaker = r;
        break;
      }
    }
  }
  const auto failure = describe(0, root.status, ExitCode::kRankFailure, "is lost (" + how + ")");
  const std::scoped_lock lock(mutex_);
  if (own_failure_) log_error("{}", own_failure_->message);
  if (rank_ == speaker) {
    log_error("{}; results up to the last flush are in the file; stopping", failure.message);
  }
  // If rank 0 was only stopped, or the network was, it can still save when it comes back.
  root.link.send(FrameType::kFailure, packed(failure, Spoken::kYes));
  _exit(static_cast<int>(ExitCode::kRankFailure));
}

// --- RankGuard ---------------------------------------------------------------------------------

RankGuard::RankGuard(const HostComm& world, StepBeacon& beacon, RankGuardOptions options)
    : core_(std::make_unique<Core>(world, beacon, std::move(options))) {}
RankGuard::~RankGuard() = default;
void RankGuard::begin_watch() { core_->set_watched(true); }
void RankGuard::end_watch() { core_->set_watched(false); }
void RankGuard::fail(const ErrorText& text, ExitCode code) { core_->fail(text, code); }
bool RankGuard::send_to_root(std::uint32_t kind, std::string bytes) {
  return core_->send_to_root(kind, std::move(bytes));
}
void RankGuard::goodbye() { core_->goodbye(); }

}  // namespace tandem
