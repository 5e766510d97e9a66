#include "parallel/group_check.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"

namespace tandem {
namespace {

constexpr std::int64_t kFloatBytes = sizeof(float);

class DeviceBuffer {
 public:
  DeviceBuffer(Backend& backend, std::int64_t bytes)
      : backend_(backend),
        bytes_(static_cast<std::size_t>(bytes)),
        data_(static_cast<char*>(backend.allocate(bytes_))) {}
  ~DeviceBuffer() { backend_.deallocate(data_, bytes_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  char* data() { return data_; }
  float* floats() { return reinterpret_cast<float*>(data_); }

 private:
  Backend& backend_;
  std::size_t bytes_;
  char* data_;
};

class GroupCheck {
 public:
  GroupCheck(const HostComm& group, DeviceComm& comm, Backend& backend,
             const GroupCheckOptions& options)
      : group_(group),
        comm_(comm),
        backend_(backend),
        options_(options),
        small_(options.small_bytes / kFloatBytes),
        large_(options.large_bytes / kFloatBytes),
        host_(static_cast<std::size_t>(large_)) {
    // An allocation that fails on one rank alone must not leave the others in a collective.
    buffer_ = group.together(
        [&] { return std::make_unique<DeviceBuffer>(backend, large_ * kFloatBytes); });
  }

  GroupCheckResult run() {
    // A sum that is right before the clock runs and one afterwards: the second meets buffers and
    // connections that have been used.
    for (const std::int64_t n : {std::int64_t{1}, small_, large_}) check_sum(n);
    check_gather();
    backend_.zero(buffer_->data(), static_cast<std::size_t>(large_ * kFloatBytes));
    GroupCheckResult result;
    result.small_s = median_s(small_, options_.small_calls);
    result.large_s = median_s(large_, 1);
    check_sum(large_);
    return result;
  }

 private:
  // Every rank comes to the verdict, so that all leave with the same error.
  void agree_on(std::int64_t wrong_at, double got, double expected, const char* what) {
    group_.together([&] {
      if (wrong_at < 0) return;
      throw Error(ExitCode::kTransport,
                  {.what = fmt::format("{} of the start-up test is wrong: element {} is {}, not {}",
                                       what, wrong_at, got, expected),
                   .where = comm_.transport(),
                   .expected = "sums that are exact",
                   .remedy = "run tandem doctor; do not trust earlier results of these hosts"});
    });
  }

  void check_sum(std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) host_[index(i)] = group_check_value(comm_.rank(), i);
    send(n);
    comm_.all_reduce_tree_f32(buffer_->floats(), n);
    receive(n);
    std::int64_t wrong = -1;
    for (std::int64_t i = 0; i < n && wrong < 0; ++i) {
      if (host_[index(i)] != sum_at(i)) wrong = i;
    }
    agree_on(wrong, wrong < 0 ? 0 : host_[index(wrong)], sum_at(std::max<std::int64_t>(wrong, 0)),
             "the sum");
  }

  // In place: this rank's part lies where it belongs.
  void check_gather() {
    const std::int64_t part = large_ / comm_.size();
    std::fill(host_.begin(), host_.end(), -1.0f);
    for (std::int64_t i = 0; i < part; ++i) {
      host_[index(comm_.rank() * part + i)] = group_check_value(comm_.rank(), i);
    }
    send(large_);
    comm_.all_gather(buffer_->floats() + comm_.rank() * part, buffer_->data(), part * kFloatBytes);
    receive(large_);
    const auto expected = [&](std::int64_t i) {
      return i < part * comm_.size() ? group_check_value(static_cast<int>(i / part), i % part)
                                     : -1.0f;
    };
    std::int64_t wrong = -1;
    for (std::int64_t i = 0; i < large_ && wrong < 0; ++i) {
      if (host_[index(i)] != expected(i)) wrong = i;
    }
    agree_on(wrong, wrong < 0 ? 0 : host_[index(wrong)], expected(std::max<std::int64_t>(wrong, 0)),
             "the gathered vector");
  }

  double median_s(std::int64_t n, int calls) {
    std::vector<double> times;
    for (int i = 0; i <= options_.repeats; ++i) {
      backend_.synchronize();
      group_.barrier();
      const double start_s = monotonic_s();
      for (int call = 0; call < calls; ++call) comm_.all_reduce_tree_f32(buffer_->floats(), n);
      backend_.synchronize();
      if (i > 0) times.push_back((monotonic_s() - start_s) / calls);  // the first one warms up
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::nth_element(times.begin(), middle, times.end());
    return *middle;
  }

  float sum_at(std::int64_t i) const {
    return static_cast<float>(comm_.size() * (comm_.size() + 1) / 2) *
           static_cast<float>(i % 251 + 1);
  }
  void send(std::int64_t n) {
    backend_.copy(buffer_->data(), host_.data(), static_cast<std::size_t>(n * kFloatBytes));
    backend_.synchronize();
  }
  void receive(std::int64_t n) {
    backend_.copy(host_.data(), buffer_->data(), static_cast<std::size_t>(n * kFloatBytes));
    backend_.synchronize();
  }
  static std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

  const HostComm& group_;
  DeviceComm& comm_;
  Backend& backend_;
  const GroupCheckOptions& options_;
  std::int64_t small_;       // floats
  std::int64_t large_;       // floats
  std::vector<float> host_;  // [large_]
  std::unique_ptr<DeviceBuffer> buffer_;
};

}  // namespace

GroupCheckOptions default_group_check(const DeviceComm& comm) {
  GroupCheckOptions options;
  if (!comm.capturable()) {
    options.large_bytes = 4 << 20;
    options.repeats = 3;
  }
  return options;
}

GroupCheckResult check_group(const HostComm& group, DeviceComm& comm, Backend& backend,
                             const GroupCheckOptions& options) {
  if (comm.size() == 1) return {};
  TANDEM_CHECK(options.small_bytes >= kFloatBytes && options.large_bytes >= options.small_bytes &&
                   options.repeats > 0 && options.small_calls > 0 &&
                   options.large_bytes / kFloatBytes >= comm.size(),
               "start-up test of {} and {} bytes", options.small_bytes, options.large_bytes);
  return GroupCheck(group, comm, backend, options).run();
}

}  // namespace tandem
