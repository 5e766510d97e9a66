#include "output/result_writer.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/units.h"
#include "output/pending_rows.h"
#include "output/record_checks.h"
#include "output/result_reader.h"
#include "output/summary.h"
#include "output/table_io.h"
#include "output/target_file.h"

namespace tandem {
namespace {

// Beside twice the rows themselves: every dataset may move its last chunk once, and metadata grows.
constexpr std::int64_t kFlushAllowanceBytes = std::int64_t{4} << 20;

}  // namespace

class ResultWriter::Impl {
 public:
  explicit Impl(WriterOptions options);
  ~Impl();

  void publish();
  template <class Record>
  void submit(std::vector<Record> PendingRows::*rows, Record&& record);
  void submit_group(GroupRecord group);
  void submit_log(LogEvent event);
  bool flush_now(std::chrono::milliseconds timeout);
  void add_to_passport(const Passport& more);
  void finish(ExitCode exit_code);
  std::int64_t session() const { return session_.session; }

 private:
  // What a flush writes, taken out of the shared state in one go.
  struct Batch {
    PendingRows rows;
    std::vector<GroupRecord> groups;  // all of them, when any changed
    std::optional<Passport> passport;
    bool empty() const { return rows.empty() && groups.empty() && !passport; }
  };

  void refuse_existing() const;
  void first_file();
  void open_existing();
  void run();
  Batch take_batch();
  void put_back(Batch&& batch);
  bool try_flush();
  void flush(bool final);
  void write_batch(H5File& file, const Batch& batch);
  void write_summary(H5File& file);
  void check_step_tokens(const H5File& file) const;
  void make_room(std::unique_lock<std::mutex>& lock, std::size_t bytes);
  void before(std::string_view step) const {
    if (options_.before_step) options_.before_step(step);
  }
  void stop_thread();

  const WriterOptions options_;
  TargetFile target_;
  SessionRow session_;
  std::vector<SessionRow> sessions_;  // those before this one

  std::mutex io_mutex_;  // held for a whole flush: HDF5 by one thread at a time

  // Never held while writing or logging: the log's sink submits rows.
  mutable std::mutex mutex_;
  std::condition_variable work_;      // for the writer thread
  std::condition_variable progress_;  // for those who wait for a flush
  PendingRows pending_;
  std::size_t waiting_bytes_ = 0;  // pending and being written
  std::vector<GroupRecord> groups_;
  bool groups_changed_ = false;
  Passport passport_more_;
  bool passport_changed_ = false;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_served_ = 0;
  std::uint64_t flushes_failed_ = 0;
  std::string last_failure_;  // empty: the last flush succeeded
  bool told_about_pressure_ = false;
  bool visible_ = false;  // published: flushes may work on the file
  bool stopping_ = false;
  bool finished_ = false;
  std::thread thread_;
};

ResultWriter::Impl::Impl(WriterOptions options)
    : options_(std::move(options)), target_(options_.file, options_.before_step) {
  session_.start_utc =
      options_.passport.has("start_utc") ? options_.passport.text("start_utc") : utc_now_iso8601();
  session_.exit_status = "running";
  session_.host = options_.passport.text("host");
  session_.num_ranks = options_.facts.num_ranks;
  session_.program_version = options_.facts.program_version;
  try {
    if (options_.existing == ExistingFile::kResume) {
      open_existing();
    } else {
      first_file();
    }
    if (options_.first_file == FirstFile::kAtOnce) publish();
  } catch (const Error& error) {
    target_.discard();
    // Nothing runs yet: whatever is wrong with the target is a matter of configuration.
    if (error.code() == ExitCode::kInternal) throw Error(ExitCode::kConfiguration, error.text());
    throw;
  }
  thread_ = std::thread([this] { run(); });
}

ResultWriter::Impl::~Impl() {
  stop_thread();
  if (finished_) return;
  if (visible_) try_flush();
  target_.discard();
}

void ResultWriter::Impl::publish() {
  const std::scoped_lock io_lock(io_mutex_);
  refuse_existing();  // again: somebody may have put a file there while the weights were loaded
  target_.publish();
  const std::scoped_lock lock(mutex_);
  visible_ = true;
}

void ResultWriter::Impl::refuse_existing() const {
  if (options_.existing != ExistingFile::kRefuse || !target_.exists()) return;
  throw Error(ExitCode::kConfiguration,
              {.what = "exists already",
               .where = options_.file.string(),
               .remedy = "choose another output.file, continue it with --resume, or replace it "
                         "with --overwrite"});
}

void ResultWriter::Impl::first_file() {
  refuse_existing();
  session_.session = 1;
  target_.begin_empty(kFlushAllowanceBytes);
  before("hdf5 create");
  auto file = H5File::create(target_.temporary());
  create_layout(file);
  before("hdf5 passport");
  auto passport = options_.passport;
  passport.set("exit_status", session_.exit_status);
  passport.set("end_utc", "");
  write_passport(file, schema::kPassportGroup, passport);
  write_facts(file, options_.facts);
  replace_rows(file, schema::kSessions, std::span<const SessionRow>(&session_, 1));
  before("hdf5 close");
  file.close();
}

void ResultWriter::Impl::open_existing() {
  const auto contents = read_result(options_.file, {});
  sessions_ = contents.sessions;
  groups_ = contents.groups;
  for (const auto& earlier : sessions_) {
    session_.session = std::max(session_.session, earlier.session + 1);
  }
  target_.begin_copy(kFlushAllowanceBytes);
  before("hdf5 open");
  auto file = H5File::open_for_append(target_.temporary());
  auto passport = options_.passport;
  passport.set("exit_status", session_.exit_status);
  write_passport(file, fmt::format("{}{}", schema::kSessionPassportPrefix, session_.session),
                 passport);
  file.set_attribute(schema::kPassportGroup, "exit_status", session_.exit_status);
  file.set_attribute(schema::kPassportGroup, "end_utc", std::string());
  append_rows(file, schema::kSessions, std::span<const SessionRow>(&session_, 1));
  before("hdf5 close");
  file.close();
}

template <class Record>
void ResultWriter::Impl::submit(std::vector<Record> PendingRows::*rows, Record&& record) {
  record.session = session_.session;
  const auto bytes = bytes_of(record);
  std::unique_lock lock(mutex_);
  if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > options_.max_pending_bytes) {
    make_room(lock, bytes);
  }
  (pending_.*rows).push_back(std::move(record));
  pending_.bytes += bytes;
  waiting_bytes_ += bytes;
}

// Back-pressure: the engine waits for the disk rather than filling the memory of the host.
void ResultWriter::Impl::make_room(std::unique_lock<std::mutex>& lock, std::size_t bytes) {
  if (!std::exchange(told_about_pressure_, true)) {
    lock.unlock();
    log_warning("{}: {} of results wait to be written; the engine waits for the disk",
                options_.file.string(), format_bytes(static_cast<std::int64_t>(waiting_bytes_)));
    lock.lock();
  }
  while (waiting_bytes_ > 0 && waiting_bytes_ + bytes > options_.max_pending_bytes) {
    const auto failed_before = flushes_failed_;
    const auto ticket = ++flushes_asked_;
    work_.notify_one();
    progress_.wait(lock, [&] { return flushes_served_ >= ticket; });
    if (flushes_failed_ != failed_before) {
      throw Error(ExitCode::kInternal,
                  {.what = fmt::format("results cannot be written and no more of them can be held "
                                       "({})",
                                       last_failure_),
                   .where = options_.file.string(),
                   .remedy = "free space or mend the file system, then continue with --resume"});
    }
  }
}

void ResultWriter::Impl::submit_group(GroupRecord group) {
  group.session = session_.session;
  check(group);
  const std::scoped_lock lock(mutex_);
  groups_changed_ = true;
  for (auto& known : groups_) {
    if (known.session == group.session && known.concurrency == group.concurrency &&
        known.run_index == group.run_index && known.warmup == group.warmup) {
      known = group;
      return;
    }
  }
  groups_.push_back(group);
}

// Neither waits nor logs: this is called from inside log_message().
void ResultWriter::Impl::submit_log(LogEvent event) {
  event.session = session_.session;
  const auto bytes = bytes_of(event);
  const std::scoped_lock lock(mutex_);
  pending_.log.push_back(std::move(event));
  pending_.bytes += bytes;
  waiting_bytes_ += bytes;
}

void ResultWriter::Impl::add_to_passport(const Passport& more) {
  const std::scoped_lock lock(mutex_);
  for (const auto& [key, value] : more.values()) {
    std::visit([this, &name = key](const auto& v) { passport_more_.set(name, v); }, value);
  }
  passport_changed_ = true;
}

bool ResultWriter::Impl::flush_now(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  if (finished_) return true;
  const auto failed_before = flushes_failed_;
  const auto ticket = ++flushes_asked_;
  work_.notify_one();
  const bool served =
      progress_.wait_for(lock, timeout, [&] { return flushes_served_ >= ticket || finished_; });
  return served && flushes_failed_ == failed_before;
}

void ResultWriter::Impl::run() {
  const std::chrono::duration<double> period(options_.flush_every_s);
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    work_.wait_for(lock, period, [this] { return stopping_ || flushes_asked_ > flushes_served_; });
    if (stopping_) break;
    const auto ticket = flushes_asked_;
    if (visible_) {
      lock.unlock();
      try_flush();
      lock.lock();
    }
    flushes_served_ = std::max(flushes_served_, ticket);
    progress_.notify_all();
  }
}

void ResultWriter::Impl::stop_thread() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  work_.notify_one();
  if (thread_.joinable()) thread_.join();
}

ResultWriter::Impl::Batch ResultWriter::Impl::take_batch() {
  const std::scoped_lock lock(mutex_);
  Batch batch;
  batch.rows = std::exchange(pending_, {});
  if (std::exchange(groups_changed_, false)) batch.groups = groups_;
  if (std::exchange(passport_changed_, false)) batch.passport = passport_more_;
  return batch;
}

void ResultWriter::Impl::put_back(Batch&& batch) {
  const std::scoped_lock lock(mutex_);
  batch.rows.append(std::move(pending_));
  pending_ = std::move(batch.rows);
  groups_changed_ = groups_changed_ || !batch.groups.empty();
  passport_changed_ = passport_changed_ || batch.passport.has_value();
}

// A flush that fails keeps its rows for the next one and says so once.
bool ResultWriter::Impl::try_flush() {
  std::string failure;
  try {
    flush(false);
  } catch (const std::exception& error) {
    failure = error.what();
  }
  bool news = false;
  {
    const std::scoped_lock lock(mutex_);
    news = last_failure_.empty() != failure.empty();
    last_failure_ = failure;
    if (!failure.empty()) ++flushes_failed_;
  }
  if (news && !failure.empty()) {
    log_warning("results could not be written and are kept in memory until the next try: {}",
                failure);
  } else if (news) {
    log_info("results are being written again: {}", options_.file.string());
  }
  return failure.empty();
}

void ResultWriter::Impl::flush(bool final) {
  const std::scoped_lock io_lock(io_mutex_);
  auto batch = take_batch();
  if (batch.empty() && !final) return;
  const auto bytes = batch.rows.bytes;
  try {
    target_.begin_copy(kFlushAllowanceBytes + 2 * static_cast<std::int64_t>(bytes));
    before("hdf5 open");
    auto file = H5File::open_for_append(target_.temporary());
    write_batch(file, batch);
    if (final) {
      before("hdf5 summary");
      write_summary(file);
    }
    before("hdf5 close");
    file.close();
    target_.publish();
  } catch (...) {
    target_.discard();
    put_back(std::move(batch));
    throw;
  }
  const std::scoped_lock lock(mutex_);
  waiting_bytes_ -= bytes;
}

void ResultWriter::Impl::write_batch(H5File& file, const Batch& batch) {
  const auto& rows = batch.rows;
  before("hdf5 requests");
  append_requests(file, rows.requests);
  before("hdf5 steps");
  append_rows(file, schema::kSteps, std::span<const StepRecord>(rows.steps));
  before("hdf5 samples");
  append_rows(file, schema::kMemory, std::span<const MemoryRow>(rows.memory));
  append_rows(file, schema::kPower, std::span<const PowerSample>(rows.power));
  append_rows(file, schema::kCanary, std::span<const CanaryRecord>(rows.canary));
  append_rows(file, schema::kLog, std::span<const LogEvent>(rows.log));
  if (!batch.groups.empty()) {
    before("hdf5 groups");
    replace_rows(file, schema::kGroups, std::span<const GroupRecord>(batch.groups));
  }
  if (batch.passport) {
    before("hdf5 passport");
    const auto group = session_.session == 1
                           ? std::string(schema::kPassportGroup)
                           : fmt::format("{}{}", schema::kSessionPassportPrefix, session_.session);
    write_passport(file, group, *batch.passport);
  }
}

void ResultWriter::Impl::write_summary(H5File& file) {
  const auto rows = read_rows(file, schema::kRequests);
  const auto offsets = read_offsets(file, schema::kCompletionOffsets, schema::kCompletionIds);
  const auto times = read_flat<double>(file, schema::kTokenTime);
  const auto groups = read_rows(file, schema::kGroups);
  const auto steps = read_flat<std::int64_t>(file, schema::kTokenStep);
  const auto summary =
      summarize(rows, groups, {.offsets = offsets, .times = times, .steps = steps});
  replace_rows(file, schema::kSummary, std::span<const SummaryRow>(summary));

  auto sessions = sessions_;
  sessions.push_back(session_);
  replace_rows(file, schema::kSessions, std::span<const SessionRow>(sessions));
  file.set_attribute(schema::kPassportGroup, "exit_status", session_.exit_status);
  file.set_attribute(schema::kPassportGroup, "end_utc", session_.end_utc);
}

void ResultWriter::Impl::check_step_tokens(const H5File& file) const {
  std::int64_t in_steps = 0;
  bool any = false;
  for (const auto& step : read_rows(file, schema::kSteps)) {
    if (step.session != session_.session || step.rank % options_.ranks_per_replica != 0) continue;
    any = true;
    in_steps += step.output_tokens;
  }
  std::int64_t in_rows = 0;
  for (const auto& row : read_rows(file, schema::kRequests)) {
    if (row.session == session_.session) in_rows += row.completion_tokens;
  }
  TANDEM_CHECK(!any || in_steps == in_rows,
               "{}: the steps of session {} made {} tokens, its requests hold {}",
               options_.file.string(), session_.session, in_steps, in_rows);
}

void ResultWriter::Impl::finish(ExitCode exit_code) {
  stop_thread();
  if (finished_) return;
  TANDEM_CHECK(visible_, "{} was never published", options_.file.string());
  session_.end_utc = utc_now_iso8601();
  session_.exit_status = exit_status_text(exit_code);
  session_.exit_code = static_cast<std::int64_t>(exit_code);
  try {
    flush(true);
  } catch (const Error& error) {
    auto text = error.text();
    text.what = "the last results could not be written: " + text.what;
    if (text.remedy.empty()) text.remedy = "mend the file system";
    text.remedy += ", then continue with --resume";
    throw Error(ExitCode::kInternal, text);
  }
  {
    const std::scoped_lock lock(mutex_);
    finished_ = true;
  }
  progress_.notify_all();
  // An interrupted session made tokens for requests that have no row.
  if (exit_code == ExitCode::kDone || exit_code == ExitCode::kSomeFailed) {
    const std::scoped_lock io_lock(io_mutex_);
    check_step_tokens(H5File::open_for_reading(options_.file));
  }
}

ResultWriter::ResultWriter(WriterOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
ResultWriter::~ResultWriter() = default;

void ResultWriter::publish() { impl_->publish(); }
void ResultWriter::submit(RequestRecord&& record) {
  complete_and_check(record);
  impl_->submit(&PendingRows::requests, std::move(record));
}
void ResultWriter::submit(const StepRecord& record) {
  check(record);
  impl_->submit(&PendingRows::steps, StepRecord(record));
}
void ResultWriter::submit(const MemoryRow& sample) {
  check(sample);
  impl_->submit(&PendingRows::memory, MemoryRow(sample));
}
void ResultWriter::submit(const PowerSample& sample) {
  check(sample);
  impl_->submit(&PendingRows::power, PowerSample(sample));
}
void ResultWriter::submit(const CanaryRecord& record) {
  check(record);
  impl_->submit(&PendingRows::canary, CanaryRecord(record));
}
void ResultWriter::submit(const LogEvent& event) { impl_->submit_log(event); }
void ResultWriter::submit(const GroupRecord& group) { impl_->submit_group(group); }
bool ResultWriter::flush_now(std::chrono::milliseconds timeout) {
  return impl_->flush_now(timeout);
}
void ResultWriter::add_to_passport(const Passport& more) { impl_->add_to_passport(more); }
void ResultWriter::finish(ExitCode exit_code) { impl_->finish(exit_code); }
std::int64_t ResultWriter::session() const { return impl_->session(); }

}  // namespace tandem
