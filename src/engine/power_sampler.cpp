#include "engine/power_sampler.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/clock.h"
#include "base/log.h"

namespace tandem {

std::optional<NetworkBytes> parse_network_bytes(std::string_view text) {
  // "  eth0: received_bytes packets errs drop fifo frame compressed multicast sent_bytes ..."
  constexpr int kSentField = 8;
  std::istringstream lines{std::string(text)};
  std::string line;
  NetworkBytes total;
  bool any = false;
  while (std::getline(lines, line)) {
    const auto colon = line.find(':');
    if (colon == std::string::npos) continue;  // the two lines of headings
    std::istringstream name_text(line.substr(0, colon)), fields(line.substr(colon + 1));
    std::string name;
    name_text >> name;
    std::int64_t received = 0, value = 0;
    fields >> received;
    for (int i = 0; i < kSentField; ++i) fields >> value;
    if (!fields) continue;
    any = true;
    if (name == "lo") continue;
    total.received += received;
    total.sent += value;
  }
  return any ? std::optional(total) : std::nullopt;
}

PowerSampler::PowerSampler(int rank, double time_zero_s,
                           std::function<void(const PowerSample&)> deliver, double period_s)
    : rank_(rank),
      time_zero_s_(time_zero_s),
      period_s_(period_s),
      deliver_(std::move(deliver)),
      thread_([this] { run(); }) {}

PowerSampler::~PowerSampler() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void PowerSampler::watch(std::unique_ptr<DeviceSensors> sensors, const std::string& why) {
  if (sensors == nullptr) log_info("no readings of power, clocks and temperature: {}", why);
  const std::scoped_lock lock(mutex_);
  sensors_ = std::move(sensors);
}

void PowerSampler::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    deliver_(sample());
    lock.lock();
    wake_.wait_for(lock, std::chrono::duration<double>(period_s_), [this] { return stop_; });
  }
}

PowerSample PowerSampler::sample() {
  PowerSample row;
  row.time_s = std::max(0.0, monotonic_s() - time_zero_s_);
  row.rank = rank_;
  read_device(row);
  std::ifstream in("/proc/net/dev");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (const auto network = parse_network_bytes(text)) {
    row.network_received_bytes = network->received;
    row.network_sent_bytes = network->sent;
  } else if (told_.insert("network").second) {
    log_info("network bytes are missing: /proc/net/dev cannot be read");
  }
  return row;
}

void PowerSampler::read_device(PowerSample& row) {
  std::shared_ptr<DeviceSensors> sensors;
  {
    const std::scoped_lock lock(mutex_);
    sensors = sensors_;
  }
  if (sensors == nullptr) return;
  const DeviceReadings r = sensors->read();
  row.gpu_utilization_percent = r.utilization_percent;
  row.power_w = r.power_w;
  row.sm_clock_hz = r.sm_clock_hz;
  row.memory_clock_hz = r.memory_clock_hz;
  row.temperature_c = r.temperature_c;
  for (const std::string& missing : r.missing) {
    if (told_.insert(missing).second) log_info("GPU reading is missing: {}", missing);
  }
}

}  // namespace tandem
