#include "bench/collective.h"

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "bench/bench_buffer.h"

namespace tandem {
namespace {

constexpr std::int64_t kLeastBytes = 8;
constexpr std::int64_t kPieceBytes = std::int64_t{1} << 22;

// Small whole numbers: their sums over any number of ranks are exact in fp32, in any order.
float value_of(int rank, std::int64_t i) { return static_cast<float>((rank + 1) * (i % 1021 + 1)); }

float sum_of(int num_ranks, std::int64_t i) {
  return static_cast<float>(num_ranks * (num_ranks + 1) / 2 * (i % 1021 + 1));
}

class CollectiveBench {
 public:
  CollectiveBench(const HostComm& world, Backend& backend, DeviceComm& comm,
                  const CollectiveBenchOptions& options, std::int64_t max_bytes)
      : world_(world),
        backend_(backend),
        comm_(comm),
        options_(options),
        buffer_(backend, static_cast<std::size_t>(max_bytes)) {}

  CollectiveBenchResult measure(Collective collective, std::int64_t bytes) {
    CollectiveBenchResult result{
        .collective = collective, .bytes = bytes, .num_ranks = world_.size()};
    result.correct = check(collective, bytes);
    // Zeros stay zeros however often they are added.
    backend_.zero(buffer_.as(), static_cast<std::size_t>(bytes));
    const auto work = [&] { run(collective, bytes); };
    world_.barrier();
    // As the engine has it: inside a graph where the collectives can be captured.
    DeviceCalls calls{
        .submit = comm_.capturable() ? ops::Submit::kCaptured : ops::Submit::kOneByOne,
        .calls = calls_for_sample(backend_, options_.sample_s, work)};
    world_.bcast(calls);
    const double seconds = device_seconds(backend_, options_.repeats, calls, work);
    const auto all = world_.all_gather(seconds);
    result.seconds = *std::max_element(all.begin(), all.end());
    return result;
  }

 private:
  std::int64_t part_bytes(std::int64_t bytes) const { return bytes / world_.size(); }

  void run(Collective collective, std::int64_t bytes) {
    if (collective == Collective::kAllReduce) {
      comm_.all_reduce_tree_f32(buffer_.as<float>(), bytes / std::int64_t{sizeof(float)});
    } else {
      const std::int64_t part = part_bytes(bytes);
      comm_.all_gather(buffer_.at(static_cast<std::size_t>(part * world_.rank())), buffer_.as(),
                       part);
    }
  }

  // Pieces of the vector at its start, middle and end: all of it up to 12 MiB.
  static std::vector<std::int64_t> checked_pieces(std::int64_t bytes) {
    if (bytes <= 3 * kPieceBytes) {
      std::vector<std::int64_t> all;
      for (std::int64_t at = 0; at < bytes; at += kPieceBytes) all.push_back(at);
      return all;
    }
    return {0, bytes / 2 / 4 * 4, bytes - kPieceBytes};
  }

  // This rank's values to bytes [begin, end) of the buffer.
  void write(std::int64_t begin, std::int64_t end) {
    std::vector<float> values;
    for (std::int64_t at = begin; at < end; at += kPieceBytes) {
      const std::int64_t length = std::min(kPieceBytes, end - at);
      values.resize(static_cast<std::size_t>(length / std::int64_t{sizeof(float)}));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = value_of(world_.rank(), at / 4 + static_cast<std::int64_t>(i));
      backend_.copy(buffer_.at(static_cast<std::size_t>(at)), values.data(),
                    values.size() * sizeof(float));
      backend_.synchronize();
    }
  }

  float expected(Collective collective, std::int64_t bytes, std::int64_t i) const {
    if (collective == Collective::kAllReduce) return sum_of(world_.size(), i);
    return value_of(static_cast<int>(i * 4 / part_bytes(bytes)), i);
  }

  bool check(Collective collective, std::int64_t bytes) {
    backend_.zero(buffer_.as(), static_cast<std::size_t>(bytes));
    const bool sum = collective == Collective::kAllReduce;
    const std::int64_t part = part_bytes(bytes);
    write(sum ? 0 : part * world_.rank(), sum ? bytes : part * (world_.rank() + 1));
    run(collective, bytes);
    bool equal = true;
    std::vector<float> values;
    for (const std::int64_t at : checked_pieces(bytes)) {
      values.resize(static_cast<std::size_t>(std::min(kPieceBytes, bytes - at)) / sizeof(float));
      backend_.copy(values.data(), buffer_.at(static_cast<std::size_t>(at)),
                    values.size() * sizeof(float));
      backend_.synchronize();
      for (std::size_t i = 0; i < values.size(); ++i)
        equal = equal &&
                values[i] == expected(collective, bytes, at / 4 + static_cast<std::int64_t>(i));
    }
    const auto all = world_.all_gather(static_cast<char>(equal));
    return std::all_of(all.begin(), all.end(), [](char c) { return c != 0; });
  }

  const HostComm& world_;
  Backend& backend_;
  DeviceComm& comm_;
  const CollectiveBenchOptions& options_;
  BenchBuffer buffer_;
};

}  // namespace

std::string_view collective_name(Collective collective) {
  return collective == Collective::kAllReduce ? "all-reduce" : "all-gather";
}

Collective collective_named(std::string_view name) {
  for (const auto collective : {Collective::kAllReduce, Collective::kAllGather}) {
    if (collective_name(collective) == name) return collective;
  }
  TANDEM_CHECK(false, "collective '{}'", name);
}

double CollectiveBenchResult::bus_bytes_per_s() const {
  const double others = static_cast<double>(num_ranks - 1) / num_ranks;
  return bytes_per_s() * others * (collective == Collective::kAllReduce ? 2 : 1);
}

std::vector<std::int64_t> collective_sizes(std::int64_t max_bytes) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = kLeastBytes; bytes < max_bytes; bytes *= 4) sizes.push_back(bytes);
  sizes.push_back(max_bytes);
  return sizes;
}

std::vector<CollectiveBenchResult> run_collective_bench(const HostComm& world, Backend& backend,
                                                        DeviceComm& comm,
                                                        const CollectiveBenchOptions& options) {
  TANDEM_CHECK(comm.size() == world.size(), "{} ranks of {}", comm.size(), world.size());
  std::int64_t max_bytes = options.max_bytes;
  if (max_bytes <= 0)
    max_bytes = std::int64_t{1} << (backend.kind() == BackendKind::kCuda ? 30 : 26);
  // Whole floats for every rank's part.
  const std::int64_t unit = std::int64_t{sizeof(float)} * world.size();
  max_bytes = std::max(max_bytes, kLeastBytes);
  const auto whole = [unit](std::int64_t bytes) { return (bytes + unit - 1) / unit * unit; };

  auto bench = world.together([&] {
    return std::make_unique<CollectiveBench>(world, backend, comm, options, whole(max_bytes));
  });
  std::vector<CollectiveBenchResult> results;
  for (const auto collective : {Collective::kAllReduce, Collective::kAllGather}) {
    for (const std::int64_t bytes : collective_sizes(max_bytes))
      results.push_back(bench->measure(collective, whole(bytes)));
  }
  return results;
}

}  // namespace tandem
