#include "engine/telemetry.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/units.h"

namespace tandem {
namespace {

using nlohmann::json;

template <typename T>
void put(json& j, const char* name, const std::optional<T>& value) {
  if (value) j[name] = *value;
}

template <typename T>
void get(const json& j, const char* name, std::optional<T>& value) {
  if (j.contains(name)) value = j.at(name).get<T>();
}

// The optional columns, named once for both directions.
template <typename Row, typename F>
void for_each_optional(Row& row, F&& f) {
  f("mem_available", row.mem_available_bytes);
  f("page_cache", row.page_cache_bytes);
  f("swap_used", row.swap_used_bytes);
  f("rss", row.rss_bytes);
  f("major_faults", row.major_faults);
  f("disk_read", row.disk_read_bytes);
  f("psi_some", row.psi_some_avg10_percent);
  f("device", row.device_in_use_bytes);
}

std::optional<std::int64_t> difference(const Reading& a, const Reading& b) {
  if (!a || !b) return std::nullopt;
  return *a - *b;
}

}  // namespace

std::string serialize(const MemoryRow& row) {
  json j = {{"time", row.time_s}, {"rank", row.rank}, {"phase", row.phase}};
  for_each_optional(row, [&](const char* name, const auto& value) { put(j, name, value); });
  std::string out;
  json::to_cbor(j, out);
  return out;
}

MemoryRow deserialize_memory_row(const std::string& bytes) {
  const json j = json::from_cbor(bytes);
  MemoryRow row;
  row.time_s = j.at("time");
  row.rank = j.at("rank");
  row.phase = j.at("phase");
  for_each_optional(row, [&](const char* name, auto& value) { get(j, name, value); });
  return row;
}

Telemetry::Telemetry(int rank, std::int64_t reserve_bytes, double time_zero_s,
                     std::function<void(const MemoryRow&)> deliver)
    : rank_(rank), time_zero_s_(time_zero_s), deliver_(std::move(deliver)) {
  const auto on_sample = [this](const MemorySample& sample) {
    MemoryRow row;
    row.time_s = std::max(0.0, sample.time_s - time_zero_s_);
    row.rank = rank_;
    {
      const std::scoped_lock lock(mutex_);
      row.phase = phase_;
    }
    row.mem_available_bytes = sample.host.available.value;
    row.page_cache_bytes = sample.host.cached.value;
    row.swap_used_bytes = difference(sample.host.swap_total, sample.host.swap_free);
    row.rss_bytes = sample.process.rss_bytes.value;
    row.major_faults = sample.process.major_faults.value;
    row.disk_read_bytes = sample.process.disk_read_bytes.value;
    if (device_bytes_ > 0) row.device_in_use_bytes = device_bytes_.load();
    deliver_(row);
  };
  watchdog_ = std::make_unique<MemoryWatchdog>(
      WatchdogLimits::for_reserve(reserve_bytes),
      [sampler = MemorySampler()] { return sampler.sample(); },
      WatchdogCallbacks{
          .on_warn = [](const std::string& reason) { log_warning("memory: {}", reason); },
          .on_stop =
              [this](const std::string& reason) {
                log_error("memory: {}; stopping with the results saved", reason);
                stop_ = true;
              },
          .on_sample = on_sample});
}

void Telemetry::enter_phase(const std::string& phase) {
  {
    const std::scoped_lock lock(mutex_);
    phase_ = phase;
  }
  watchdog_->enter_phase(phase);
}

std::string Telemetry::lows_text() const {
  std::string out;
  for (const auto& low : watchdog_->lows()) {
    const auto text = [](const Reading& r) { return r ? format_bytes(*r) : "unknown"; };
    out += fmt::format("{}{}: lowest available {}, peak resident {}", out.empty() ? "" : "; ",
                       low.phase, text(low.available_bytes), text(low.peak_rss_bytes));
  }
  return out;
}

}  // namespace tandem
