#include "bench/tables.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/units.h"

namespace tandem {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kWrong = "  WRONG RESULT";

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.2f} us", seconds * 1e6);
  return fmt::format("{:.3f} ms", seconds * 1e3);
}

ordered_json conditions_json(const char* benchmark, const BenchConditions& c) {
  ordered_json j = {{"benchmark", benchmark},
                    {"program", c.program},
                    {"host", c.host},
                    {"rank", c.rank},
                    {"num_ranks", c.num_ranks},
                    {"backend", c.backend},
                    {"groups", c.repeats.groups},
                    {"runs_per_group", c.repeats.runs},
                    {"statistic", kBenchStatistic}};
  if (!c.transport.empty()) j["transport"] = c.transport;
  return j;
}

std::string dump(const ordered_json& j) { return j.dump(2) + "\n"; }

}  // namespace

std::string program_text(std::string_view version, std::string_view git_revision) {
  return fmt::format("tandem {} ({})", version, git_revision);
}

std::string conditions_text(const BenchConditions& c) {
  return fmt::format("{}; {}; rank {} of {} on {}{}\nbest of {} medians of {} samples each\n\n",
                     c.program, c.backend, c.rank, c.num_ranks, c.host,
                     c.transport.empty() ? "" : "; collectives: " + c.transport, c.repeats.groups,
                     c.repeats.runs);
}

std::string memory_table(const std::vector<MemoryBenchResult>& results) {
  std::string out = fmt::format("{:<8} {:<26} {:>12} {:>12} {:>10}\n", "traffic", "method", "moved",
                                "time", "GB/s");
  for (const MemoryBenchResult& r : results) {
    out += fmt::format("{:<8} {:<26} {:>12} {:>12} {:>10.1f}{}\n", traffic_name(r.traffic),
                       r.method, format_bytes(r.bytes), time_text(r.seconds), r.bytes_per_s() / 1e9,
                       r.correct ? "" : kWrong);
  }
  out += '\n';
  for (const auto traffic : {MemoryTraffic::kRead, MemoryTraffic::kCopy}) {
    if (const auto* best = best_of(results, traffic)) {
      out += fmt::format("measured {} bandwidth: {:.1f} GB/s ({}){}\n", traffic_name(traffic),
                         best->bytes_per_s() / 1e9, best->method,
                         traffic == MemoryTraffic::kCopy ? ", read plus written" : "");
    }
  }
  return out;
}

std::string gemm_table(const std::vector<GemmBenchResult>& results, const GemmBounds& bounds) {
  std::string out =
      fmt::format("measured read bandwidth: {:.1f} GB/s\n", bounds.read_bytes_per_s / 1e9);
  out += bounds.matrix.flops_per_s > 0
             ? fmt::format("measured BF16 matrix rate: {:.1f} TFLOP/s ({})\n\n",
                           bounds.matrix.flops_per_s / 1e12, bounds.matrix.source)
             : fmt::format("BF16 matrix rate: not measured ({})\n\n", bounds.matrix.source);
  out +=
      fmt::format("{:<12} {:<26} {:>14} {:>5} {:>10} {:>12} {:>9} {:>7} {:>9} {:>7}\n", "format",
                  "linear", "N x K", "M", "moved", "time", "GB/s", "of read", "TFLOP/s", "of rate");
  for (const GemmBenchResult& r : results) {
    out += fmt::format(
        "{:<12} {:<26} {:>14} {:>5} {:>10} {:>12} {:>9.1f} {:>5.1f} % {:>9.2f} {:>7}{}\n",
        format_name(r.format), r.shape.name,
        fmt::format("{} x {}", r.shape.out_features, r.shape.in_features), r.num_rows,
        format_bytes(r.bytes), time_text(r.seconds), r.bytes_per_s() / 1e9,
        100 * r.bytes_per_s() / bounds.read_bytes_per_s, r.flops_per_s() / 1e12,
        bounds.matrix.flops_per_s > 0
            ? fmt::format("{:.1f} %", 100 * r.flops_per_s() / bounds.matrix.flops_per_s)
            : "-",
        r.correct() ? "" : kWrong);
  }
  return out;
}

std::string collective_table(const std::vector<CollectiveBenchResult>& results) {
  std::string out = fmt::format("{:<12} {:>12} {:>12} {:>10} {:>10}\n", "collective", "bytes",
                                "time", "GB/s", "bus GB/s");
  for (const CollectiveBenchResult& r : results) {
    out += fmt::format("{:<12} {:>12} {:>12} {:>10.3f} {:>10.3f}{}\n",
                       collective_name(r.collective), r.bytes, time_text(r.seconds),
                       r.bytes_per_s() / 1e9, r.bus_bytes_per_s() / 1e9, r.correct ? "" : kWrong);
  }
  return out;
}

std::string memory_json(const BenchConditions& conditions,
                        const std::vector<MemoryBenchResult>& results) {
  ordered_json j = conditions_json("memory", conditions);
  for (const auto traffic : {MemoryTraffic::kRead, MemoryTraffic::kCopy}) {
    if (const auto* best = best_of(results, traffic))
      j[fmt::format("{}_bytes_per_s", traffic_name(traffic))] = best->bytes_per_s();
  }
  for (const MemoryBenchResult& r : results) {
    j["results"].push_back({{"traffic", traffic_name(r.traffic)},
                            {"method", r.method},
                            {"bytes", r.bytes},
                            {"seconds", r.seconds},
                            {"bytes_per_s", r.bytes_per_s()},
                            {"correct", r.correct}});
  }
  return dump(j);
}

std::string gemm_json(const BenchConditions& conditions,
                      const std::vector<GemmBenchResult>& results, const GemmBounds& bounds) {
  ordered_json j = conditions_json("gemm", conditions);
  j["read_bytes_per_s"] = bounds.read_bytes_per_s;
  // A rate that was not measured is missing, not 0.
  if (bounds.matrix.flops_per_s > 0) j["matrix_flops_per_s"] = bounds.matrix.flops_per_s;
  j["matrix_rate_source"] = bounds.matrix.source;
  for (const GemmBenchResult& r : results) {
    ordered_json row = {{"format", format_name(r.format)},
                        {"linear", r.shape.name},
                        {"out_features", r.shape.out_features},
                        {"in_features", r.shape.in_features},
                        {"rows", r.num_rows},
                        {"bytes", r.bytes},
                        {"seconds", r.seconds},
                        {"bytes_per_s", r.bytes_per_s()},
                        {"share_of_read_bandwidth", r.bytes_per_s() / bounds.read_bytes_per_s},
                        {"flops_per_s", r.flops_per_s()}};
    if (bounds.matrix.flops_per_s > 0)
      row["share_of_matrix_rate"] = r.flops_per_s() / bounds.matrix.flops_per_s;
    row["correct"] = r.correct();
    j["results"].push_back(std::move(row));
  }
  return dump(j);
}

std::string collective_json(const BenchConditions& conditions,
                            const std::vector<CollectiveBenchResult>& results) {
  ordered_json j = conditions_json("collective", conditions);
  for (const CollectiveBenchResult& r : results) {
    j["results"].push_back({{"collective", collective_name(r.collective)},
                            {"bytes", r.bytes},
                            {"seconds", r.seconds},
                            {"bytes_per_s", r.bytes_per_s()},
                            {"bus_bytes_per_s", r.bus_bytes_per_s()},
                            {"correct", r.correct}});
  }
  return dump(j);
}

}  // namespace tandem
