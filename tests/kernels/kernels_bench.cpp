// tandem_kernel_bench: the operators of a decode step and of prompts at the sizes of Qwen3.8-27B on
// one rank, against the bandwidth this machine reads with. results/PERFORMANCE.md derives the
// bounds.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/types.h"
#include "base/units.h"
#include "bench/gemm.h"
#include "bench/memory.h"
#include "bench/timing.h"
#include "kernels/backend.h"
#include "kernels/ops/gated_delta_rule.h"
#include "kernels/ops/paged_attention.h"
#include "tests/kernels/op_check.h"

namespace tandem {
namespace {

void print_row(const std::string& name, double bytes, double flops, double seconds,
               double read_bytes_per_s) {
  fmt::print("{:<44} {:>10} {:>9.3f} ms {:>7.1f} GB/s {:>6.0f} % {:>8.1f} GFLOP/s\n", name,
             format_bytes(static_cast<std::int64_t>(bytes)), seconds * 1e3, bytes / seconds / 1e9,
             100 * bytes / seconds / read_bytes_per_s, flops / seconds / 1e9);
}

void bench_gemm(Backend& backend, const BenchRepeats& repeats, double read_bytes_per_s) {
  const GemmBenchOptions narrow{.repeats = repeats};
  const GemmBenchOptions wide{.shapes = {{17408, 5120}}, .rows = {128}, .repeats = repeats};
  for (const GemmBenchOptions& options : {narrow, wide}) {
    for (const GemmBenchResult& r : run_gemm_bench(backend, options)) {
      const double flops = 2.0 * r.num_rows * static_cast<double>(r.shape.out_features) *
                           static_cast<double>(r.shape.in_features);
      print_row(fmt::format("linear bf16, M = {}, {} x {}{}", r.num_rows, r.shape.out_features,
                            r.shape.in_features, r.error < 1e-6 ? "" : " WRONG"),
                static_cast<double>(r.bytes), flops, r.seconds, read_bytes_per_s);
    }
  }
}

// A batch of sequences with the same number of rows each, starting at `position`.
struct Rows {
  std::vector<std::int32_t> positions, slots, pending;
  std::vector<ops::Segment> segments;
  ops::BatchView view;

  Rows(ops::RowClass row_class, int sequences, int rows, int position, int pending_rows) {
    for (int s = 0; s < sequences; ++s) {
      segments.push_back({.slot = s,
                          .first_row = s * rows,
                          .num_rows = rows,
                          .start_position = position,
                          .ends_prompt = 0});
      pending.push_back(pending_rows);
      for (int r = 0; r < rows; ++r) {
        positions.push_back(position + r);
        slots.push_back(s);
      }
    }
    view = {.row_class = row_class,
            .num_rows = sequences * rows,
            .num_segments = sequences,
            .positions = positions.data(),
            .row_slots = slots.data(),
            .segments = segments.data(),
            .pending_rows = pending.data()};
  }
};

void bench_attention(Backend& backend, const BenchRepeats& repeats, const std::string& name,
                     ops::KvFormat format, ops::RowClass row_class, int sequences, int rows,
                     int context, double read_bytes_per_s) {
  constexpr int kHeads = 24, kKvHeads = 4, kDim = 256, kPage = 16;
  const int pages = (context + kPage - 1) / kPage;
  std::vector<std::int32_t> table(static_cast<std::size_t>(sequences * pages));
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = static_cast<std::int32_t>(i);
  const std::size_t plane = table.size() * std::size_t{kPage} * kKvHeads * kDim;
  const std::size_t queries = static_cast<std::size_t>(sequences * rows) * kHeads * kDim;
  testing::Array period(DType::kBF16, testing::random_normal(1, 1 << 16));
  testing::Array k(ops::kv_dtype(format), plane);
  std::vector<bf16> q(queries), out(queries);
  const auto* source = static_cast<const bf16*>(period.data());
  for (std::size_t i = 0; i < plane; ++i) k.set(i, to_float(source[i & 0xffff]));
  for (std::size_t i = 0; i < queries; ++i) q[i] = source[(i * 7) & 0xffff];
  testing::Array v = k;
  std::vector<float> scales(plane / kDim, 1.0f);
  Rows batch(row_class, sequences, rows, context - rows, 0);
  batch.view.page_table = table.data();
  batch.view.pages_per_sequence = pages;
  batch.view.page_tokens = kPage;
  const ops::PagedAttentionArgs args{.batch = batch.view,
                                     .q = q.data(),
                                     .num_heads = kHeads,
                                     .scale = 1.0f / 16.0f,
                                     .pages = {.k_pages = k.data(),
                                               .v_pages = v.data(),
                                               .k_scales = scales.data(),
                                               .v_scales = scales.data(),
                                               .format = format,
                                               .num_pages = sequences * pages,
                                               .num_kv_heads = kKvHeads,
                                               .page_tokens = kPage,
                                               .head_dim = kDim},
                                     .out = out.data()};
  const double seconds = least_median_s(repeats, [&] { ops::paged_attention(backend, args); });
  double pairs = 0;
  for (const std::int32_t position : batch.positions) pairs += position + 1;
  const std::int64_t entry_bytes =
      kDim * static_cast<std::int64_t>(dtype_bytes(ops::kv_dtype(format))) +
      ops::kv_scale_bytes(format);
  print_row(name, 2.0 * static_cast<double>(scales.size()) * static_cast<double>(entry_bytes),
            pairs * kHeads * kDim * 4, seconds, read_bytes_per_s);
}

void bench_delta_rule(Backend& backend, const BenchRepeats& repeats, const std::string& name,
                      ops::RowClass row_class, int sequences, int rows, int pending,
                      double read_bytes_per_s) {
  const ops::GdnShape shape{.num_k_heads = 16, .num_v_heads = 48, .k_dim = 128, .v_dim = 128};
  constexpr int kMaxRound = 8;
  const std::int64_t total = std::int64_t{sequences} * rows;
  const auto normal = [](std::uint64_t seed, std::int64_t count) {
    return testing::random_normal(seed, static_cast<std::size_t>(count));
  };
  testing::Array qkv(DType::kBF16, normal(1, total * shape.channels()));
  testing::Array a(DType::kF32, normal(2, total * 48)), b(DType::kF32, normal(3, total * 48));
  testing::Array a_log(DType::kF32, normal(4, 48)), dt_bias(DType::kF32, normal(5, 48));
  const std::size_t state_floats = static_cast<std::size_t>(sequences) * 48 * 128 * 128;
  auto* state = static_cast<float*>(backend.allocate(state_floats * sizeof(float)));
  backend.zero(state, state_floats * sizeof(float));
  testing::Array round_qkv(DType::kBF16, normal(6, sequences * kMaxRound * shape.channels()));
  testing::Array round_gates(
      DType::kF32, std::vector<float>(static_cast<std::size_t>(sequences * kMaxRound * 96), -0.5f));
  testing::Array out(DType::kF32, static_cast<std::size_t>(total * 48 * 128));
  std::vector<std::byte> scratch(
      ops::gated_delta_rule_scratch_bytes(backend, shape, static_cast<int>(total)));
  Rows batch(row_class, sequences, rows, 0, pending);
  const ops::GatedDeltaRuleArgs args{.batch = batch.view,
                                     .shape = shape,
                                     .qkv = qkv.data(),
                                     .a = a.floats(),
                                     .b = b.floats(),
                                     .a_log = a_log.floats(),
                                     .dt_bias = dt_bias.floats(),
                                     .state = {.s = state,
                                               .round_qkv = round_qkv.data(),
                                               .round_gates = round_gates.floats(),
                                               .max_round_rows = kMaxRound},
                                     .out = out.floats(),
                                     .scratch = scratch.data()};
  const double seconds = least_median_s(repeats, [&] { ops::gated_delta_rule(backend, args); });
  backend.deallocate(state, state_floats * sizeof(float));
  // Per row and head: decay and read, update and output; the blocks' products are of that order
  // too.
  const double flops = static_cast<double>(total) * 48 * 128 * 128 * 7;
  const double state_bytes = static_cast<double>(state_floats) * sizeof(float);
  print_row(name, (pending > 0 ? 2 : 1) * state_bytes, flops, seconds, read_bytes_per_s);
}

int run(const BackendOptions& options, const BenchRepeats& repeats) {
  const auto backend = make_backend(BackendKind::kCpu, options);
  fmt::print("{}, {} time\n", backend->description(),
             repeats.clock == BenchClock::kWall ? "wall" : "processor");
  const double read = measure_read_bandwidth(*backend, std::int64_t{1} << 29, repeats);
  fmt::print("read bandwidth {:.1f} GB/s (sum over 512 MiB; best of {} medians of {})\n\n",
             read / 1e9, repeats.groups, repeats.runs);
  bench_gemm(*backend, repeats, read);
  using ops::RowClass;
  for (const auto& [format, cache] :
       {std::pair{ops::KvFormat::kBf16, "bf16"}, {ops::KvFormat::kFp8Dynamic, "fp8"}}) {
    const auto bench = [&, format = format, cache = cache](const char* what, RowClass row_class,
                                                           int sequences, int rows, int context) {
      bench_attention(*backend, repeats, fmt::format("attention {}, {}", cache, what), format,
                      row_class, sequences, rows, context, read);
    };
    bench("1 row, 32768 tokens", RowClass::kGenerated, 1, 1, 32768);
    bench("8 x 4 rows, 4096 tokens", RowClass::kGenerated, 8, 4, 4096);
    bench("prompt of 512 rows", RowClass::kPrompt, 1, 512, 512);
  }
  bench_delta_rule(*backend, repeats, "delta rule, 8 x 1 rows, 1 pending", RowClass::kGenerated, 8,
                   1, 1, read);
  bench_delta_rule(*backend, repeats, "delta rule, 8 x 4 rows, 3 pending", RowClass::kGenerated, 8,
                   4, 3, read);
  bench_delta_rule(*backend, repeats, "delta rule, prompt of 512 rows", RowClass::kPrompt, 1, 512,
                   0, read);
  return 0;
}

}  // namespace
}  // namespace tandem

// tandem_kernel_bench [threads]     wall time; threads 0 or none: all cores
// tandem_kernel_bench processor     one thread, by the time it ran: for machines that are shared
int main(int argc, char** argv) {
  using tandem::BenchClock;
  if (argc > 1 && std::string(argv[1]) == "processor") {
    return tandem::run({.num_threads = 1}, {.clock = BenchClock::kProcessor});
  }
  return tandem::run({.num_threads = argc > 1 ? std::atoi(argv[1]) : 0}, {});
}
