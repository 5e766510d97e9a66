#include "bench/memory.h"

#include <fmt/format.h>

#include <functional>

#include "base/error.h"
#include "bench/bench_buffer.h"
#include "kernels/ops/memory_sweep.h"

namespace tandem {
namespace {

constexpr std::size_t kSumBytes = 256;
constexpr double kSampleSeconds = 2e-3;

// The words of two device arrays, compared through their sums: what was copied is the same, what
// was added is twice that.
class Sweeps {
 public:
  Sweeps(Backend& backend, std::int64_t bytes)
      : backend_(backend),
        bytes_(bytes / kUnit * kUnit),
        x_(backend, static_cast<std::size_t>(bytes_)),
        sum_(backend, kSumBytes) {
    ops::sweep_fill(backend_, x_.as<std::uint32_t>(), words());
    backend_.synchronize();
  }

  std::int64_t bytes() const { return bytes_; }
  std::int64_t words() const { return bytes_ / 4; }
  std::uint32_t* x() const { return x_.as<std::uint32_t>(); }
  std::uint32_t* sum() const { return sum_.as<std::uint32_t>(); }

  std::uint32_t sum_of(const std::uint32_t* data, int way) const {
    backend_.zero(sum(), kSumBytes);
    ops::sweep_sum(backend_, {.x = data, .y = sum(), .words = words(), .way = way});
    std::uint32_t total = 0;
    backend_.copy(&total, sum(), sizeof total);
    backend_.synchronize();
    return total;
  }

  MemoryBenchResult time(const BenchRepeats& repeats, MemoryTraffic traffic, std::string method,
                         int arrays, ops::Submit submit, const std::function<void()>& work) const {
    MemoryBenchResult result{
        .traffic = traffic, .method = std::move(method), .bytes = arrays * bytes_};
    const int calls = calls_for_sample(backend_, kSampleSeconds, work);
    result.seconds = device_seconds(backend_, repeats, {.submit = submit, .calls = calls}, work);
    return result;
  }

 private:
  // Whole pages of every size that a CPU's threads are handed.
  static constexpr std::int64_t kUnit = 4096;

  Backend& backend_;
  std::int64_t bytes_;
  BenchBuffer x_, sum_;
};

std::vector<MemoryBenchResult> time_readers(Backend& backend, const Sweeps& sweeps,
                                            const BenchRepeats& repeats) {
  std::vector<MemoryBenchResult> results;
  for (int way = 0; way < ops::num_sweep_ways(backend); ++way) {
    const ops::SweepArgs args{
        .x = sweeps.x(), .y = sweeps.sum(), .words = sweeps.words(), .way = way};
    results.push_back(sweeps.time(repeats, MemoryTraffic::kRead, fmt::format("sweep {}", way), 1,
                                  ops::Submit::kOneByOne, [&] { ops::sweep_sum(backend, args); }));
    results.back().correct = sweeps.sum_of(sweeps.x(), way) == ops::sweep_total(sweeps.words());
  }
  return results;
}

}  // namespace

std::string_view traffic_name(MemoryTraffic traffic) {
  switch (traffic) {
    case MemoryTraffic::kRead:
      return "read";
    case MemoryTraffic::kWrite:
      return "write";
    case MemoryTraffic::kCopy:
      return "copy";
    case MemoryTraffic::kAdd:
      return "add";
  }
  return "";
}

MemoryTraffic traffic_named(std::string_view name) {
  for (const auto traffic :
       {MemoryTraffic::kRead, MemoryTraffic::kWrite, MemoryTraffic::kCopy, MemoryTraffic::kAdd}) {
    if (traffic_name(traffic) == name) return traffic;
  }
  TANDEM_CHECK(false, "traffic '{}'", name);
}

std::int64_t default_sweep_bytes(const Backend& backend) {
  // Many times a cache; on a GPU also many times what it reads while a kernel starts.
  return backend.kind() == BackendKind::kCuda ? std::int64_t{2} << 30 : std::int64_t{256} << 20;
}

std::vector<MemoryBenchResult> run_memory_bench(Backend& backend,
                                                const MemoryBenchOptions& options) {
  const Sweeps sweeps(backend, options.bytes > 0 ? options.bytes : default_sweep_bytes(backend));
  const auto size = static_cast<std::size_t>(sweeps.bytes());
  const BenchBuffer second(backend, size), third(backend, size);
  auto* y = second.as<std::uint32_t>();
  auto* z = third.as<std::uint32_t>();
  const std::uint32_t total = ops::sweep_total(sweeps.words());

  std::vector<MemoryBenchResult> results = time_readers(backend, sweeps, options.repeats);
  const auto add = [&](MemoryTraffic traffic, std::string method, int arrays, ops::Submit submit,
                       std::uint32_t expected, const std::function<void()>& work) {
    // An earlier method may have left the very result there.
    if (expected == 0) {
      ops::sweep_fill(backend, y, sweeps.words());
    } else {
      backend.zero(y, size);
    }
    results.push_back(
        sweeps.time(options.repeats, traffic, std::move(method), arrays, submit, work));
    results.back().correct = sweeps.sum_of(y, 0) == expected;
  };
  using ops::Submit;
  add(MemoryTraffic::kWrite, "backend zero", 1, Submit::kOneByOne, 0,
      [&] { backend.zero(y, size); });
  for (int way = 0; way < ops::num_sweep_ways(backend); ++way) {
    add(MemoryTraffic::kCopy, fmt::format("sweep {}", way), 2, Submit::kOneByOne, total, [&, way] {
      ops::sweep_copy(backend, {.x = sweeps.x(), .y = y, .words = sweeps.words(), .way = way});
    });
  }
  add(MemoryTraffic::kCopy, "backend copy", 2, Submit::kOneByOne, total,
      [&] { backend.copy(y, sweeps.x(), size); });
  // A driver may give a copy inside a graph to a copy engine, which is slower than a kernel.
  if (backend.kind() == BackendKind::kCuda) {
    add(MemoryTraffic::kCopy, "backend copy in a graph", 2, Submit::kCaptured, total,
        [&] { backend.copy(y, sweeps.x(), size); });
  }
  backend.copy(z, sweeps.x(), size);
  for (int way = 0; way < ops::num_sweep_ways(backend); ++way) {
    add(MemoryTraffic::kAdd, fmt::format("sweep {}", way), 3, Submit::kOneByOne, 2 * total,
        [&, way] {
          ops::sweep_add(backend,
                         {.x = sweeps.x(), .z = z, .y = y, .words = sweeps.words(), .way = way});
        });
  }
  return results;
}

const MemoryBenchResult* best_of(const std::vector<MemoryBenchResult>& results,
                                 MemoryTraffic traffic) {
  const MemoryBenchResult* best = nullptr;
  for (const MemoryBenchResult& r : results) {
    if (r.traffic != traffic || !r.correct) continue;
    if (best == nullptr || r.bytes_per_s() > best->bytes_per_s()) best = &r;
  }
  return best;
}

double measure_read_bandwidth(Backend& backend, std::int64_t bytes, const BenchRepeats& repeats) {
  const Sweeps sweeps(backend, bytes);
  const auto results = time_readers(backend, sweeps, repeats);
  const MemoryBenchResult* best = best_of(results, MemoryTraffic::kRead);
  TANDEM_CHECK(best != nullptr, "no sweep over {} bytes read every word once", bytes);
  return best->bytes_per_s();
}

}  // namespace tandem
