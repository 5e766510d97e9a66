// tandem_cuda_bench: the operators of a decode step and of prompts at the sizes of Qwen3.8-27B on
// one GPU. Each line is a graph of many calls, timed with events; bandwidth counts the bytes that
// must be moved, weights and caches being larger than the second-level cache.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/types.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/handles.h"
#include "kernels/ops/gated_delta_mix.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/sample.h"

namespace tandem {
namespace {

// Device memory filled with random values, or a host array's copy.
class Buffer {
 public:
  Buffer(Backend& backend, std::size_t bytes)
      : backend_(backend), bytes_(bytes), data_(backend.allocate(bytes)) {}
  template <class T>
  Buffer(Backend& backend, const std::vector<T>& values)
      : Buffer(backend, values.size() * sizeof(T)) {
    backend.copy(data_, values.data(), bytes_);
    backend.synchronize();
  }
  ~Buffer() { backend_.deallocate(data_, bytes_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  template <class T = void>
  T* as() const {
    return static_cast<T*>(data_);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  Backend& backend_;
  std::size_t bytes_;
  void* data_;
};

// A period of normal values, repeated.
std::vector<float> normal_floats(std::size_t count, float scale = 1.0f) {
  std::mt19937 engine(1);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  constexpr std::size_t kPeriod = 65521;
  for (std::size_t i = 0; i < count; ++i)
    values[i] = i < kPeriod ? normal(engine) : values[i - kPeriod];
  return values;
}

std::vector<bf16> normal_bf16(std::size_t count) {
  const std::vector<float> values = normal_floats(count);
  std::vector<bf16> rounded(count);
  std::transform(values.begin(), values.end(), rounded.begin(), to_bf16);
  return rounded;
}

// Codes of values whose largest are near 448.
std::vector<e4m3> normal_codes(std::size_t count) {
  const std::vector<float> values = normal_floats(count, 100.0f);
  std::vector<e4m3> codes(count);
  std::transform(values.begin(), values.end(), codes.begin(), to_e4m3);
  return codes;
}

class Bench {
 public:
  Bench(cuda::CudaBackend& backend, std::string part) : backend_(backend), part_(std::move(part)) {}

  // Least median of five series of replays.
  double seconds(int calls, const std::function<void()>& op) {
    op();
    backend_.synchronize();
    const auto graph = backend_.capture([&] {
      for (int i = 0; i < calls; ++i) op();
    });
    graph.launch(backend_.stream());
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      cuda::Event begin, end;
      begin.record(backend_.stream());
      graph.launch(backend_.stream());
      end.record(backend_.stream());
      backend_.synchronize();
      times.push_back(end.seconds_since(begin) / calls);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }

  void line(const std::string& name, double bytes, double flops, int calls,
            const std::function<void()>& op) {
    if (!wants(name)) return;
    const double s = seconds(calls, op);
    fmt::print("{:<62} {:>9.1f} us {:>7.0f} GB/s {:>8.1f} TFLOP/s\n", name, s * 1e6,
               bytes / s / 1e9, flops / s / 1e12);
    std::fflush(stdout);  // a later failure leaves what has been measured
  }

  // Whether a line of this name was asked for; or some line whose name begins so.
  bool wants_some(const std::string& begin) const {
    return part_.empty() || (!begin.empty() && part_.starts_with(begin));
  }
  bool wants(const std::string& name) const { return name.find(part_) != std::string::npos; }
  cuda::CudaBackend& backend() { return backend_; }

 private:
  cuda::CudaBackend& backend_;
  std::string part_;
};

void bench_linear(Bench& bench, const char* format_name, ops::LinearWeight weight,
                  std::size_t weight_bytes, const std::vector<int>& rows,
                  ops::RowClass row_class = ops::RowClass::kGenerated, int leaves = 1) {
  const std::string name = fmt::format(
      "{} {} {} x {}{}", row_class == ops::RowClass::kPrompt ? "prompts, linear" : "linear",
      format_name, weight.out_features, weight.in_features,
      leaves > 1 ? fmt::format(", {} leaves", leaves) : "");
  if (!bench.wants(name)) return;
  const Buffer codes(bench.backend(), normal_bf16(weight_bytes / 2 + 1));
  // Scales that are valid in every type that a format allows: small positive numbers.
  const Buffer scales(bench.backend(), std::vector<std::uint8_t>(weight_bytes / 2, 0x38));
  weight.data = codes.as();
  weight.scales = scales.as();
  ops::prepack_weight(bench.backend(), weight);
  for (const int m : rows) {
    const auto k = static_cast<std::size_t>(weight.in_features);
    const Buffer x(bench.backend(), normal_bf16(static_cast<std::size_t>(m) * k));
    const Buffer y(bench.backend(), static_cast<std::size_t>(m * weight.out_features) * 4);
    const ops::LinearArgs args{.x = x.as(),
                               .x_stride = weight.in_features,
                               .num_rows = m,
                               .weight = weight,
                               .row_class = row_class,
                               .num_leaves = leaves,
                               .y = y.as(),
                               .y_dtype = DType::kF32,
                               .y_stride = weight.out_features};
    bench.line(fmt::format("{}, M = {}", name, m), static_cast<double>(weight_bytes),
               2.0 * m * static_cast<double>(weight.out_features * weight.in_features),
               m > 64 ? 5 : 20, [&] { ops::linear(bench.backend(), args); });
  }
}

void bench_linears(Bench& bench) {
  const auto weight = [](ops::WeightFormat format, std::int64_t outs, std::int64_t columns) {
    ops::LinearWeight w{.format = format, .out_features = outs, .in_features = columns};
    if (format == ops::WeightFormat::kFp8Block) w.block_rows = w.block_cols = 128;
    if (format == ops::WeightFormat::kNvfp4)
      w.block_rows = 1, w.block_cols = 16, w.scale_dtype = DType::kF8E4M3;
    return w;
  };
  const auto elements = [](std::int64_t outs, std::int64_t columns) {
    return static_cast<std::size_t>(outs * columns);
  };
  using ops::WeightFormat;
  for (const auto& [n, k] : {std::pair{17408, 5120}, {5120, 17408}, {5120, 6144}}) {
    bench_linear(bench, "bf16", weight(WeightFormat::kBf16, n, k), elements(n, k) * 2,
                 {1, 4, 8, 16, 32, 64}, ops::RowClass::kGenerated, k == 5120 ? 1 : 8);
  }
  constexpr auto kPrompt = ops::RowClass::kPrompt;
  bench_linear(bench, "bf16", weight(WeightFormat::kBf16, 17408, 5120), elements(17408, 5120) * 2,
               {1, 64, 128, 512, 2048}, kPrompt);
  for (const int leaves : {1, 8}) {
    bench_linear(bench, "bf16", weight(WeightFormat::kBf16, 5120, 17408), elements(5120, 17408) * 2,
                 {128, 2048}, kPrompt, leaves);
  }
  bench_linear(bench, "fp8 block", weight(WeightFormat::kFp8Block, 17408, 5120),
               elements(17408, 5120), {128, 2048}, kPrompt);
  bench_linear(bench, "nvfp4", weight(WeightFormat::kNvfp4, 17408, 5120), elements(17408, 5120) / 2,
               {128, 2048}, kPrompt);
  bench_linear(bench, "fp8 block", weight(WeightFormat::kFp8Block, 17408, 5120),
               elements(17408, 5120), {1, 8, 16, 32});
  bench_linear(bench, "fp8 block", weight(WeightFormat::kFp8Block, 5120, 17408),
               elements(17408, 5120), {1, 8, 16}, ops::RowClass::kGenerated, 8);
  bench_linear(bench, "nvfp4", weight(WeightFormat::kNvfp4, 17408, 5120), elements(17408, 5120) / 2,
               {1, 8, 16, 32});
  bench_linear(bench, "nvfp4", weight(WeightFormat::kNvfp4, 5120, 17408), elements(17408, 5120) / 2,
               {1, 8, 16}, ops::RowClass::kGenerated, 8);
  bench_linear(bench, "bf16", weight(WeightFormat::kBf16, 248320, 5120), elements(248320, 5120) * 2,
               {1, 8, 16});
}

// Sequences with the same number of rows each, the last at context - 1, in device memory.
struct Batch {
  Buffer positions, slots, segments, pending, table;
  ops::BatchView view;

  static std::vector<std::int32_t> fill(int n, const std::function<int(int)>& value) {
    std::vector<std::int32_t> values(static_cast<std::size_t>(n));
    for (int i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = value(i);
    return values;
  }
  static std::vector<ops::Segment> segments_of(int sequences, int rows, int start) {
    std::vector<ops::Segment> s;
    for (int i = 0; i < sequences; ++i)
      s.push_back({.slot = i, .first_row = i * rows, .num_rows = rows, .start_position = start});
    return s;
  }

  Batch(Backend& b, ops::RowClass row_class, int sequences, int rows, int context, int pending_rows,
        int max_context)
      : positions(b, fill(sequences * rows, [&](int i) { return context - rows + i % rows; })),
        slots(b, fill(sequences * rows, [&](int i) { return i / rows; })),
        segments(b, segments_of(sequences, rows, context - rows)),
        pending(b, fill(sequences, [&](int) { return pending_rows; })),
        table(b, fill(sequences * (max_context / 16), [](int i) { return i; })) {
    view = {.row_class = row_class,
            .num_rows = sequences * rows,
            .num_segments = sequences,
            .positions = positions.as<std::int32_t>(),
            .row_slots = slots.as<std::int32_t>(),
            .segments = segments.as<ops::Segment>(),
            .page_table = table.as<std::int32_t>(),
            .pages_per_sequence = max_context / 16,
            .page_tokens = 16,
            .pending_rows = pending.as<std::int32_t>()};
  }
};

void bench_attention(Bench& bench, ops::KvFormat format, ops::RowClass row_class, int sequences,
                     int rows, int context, int max_context) {
  constexpr int kHeads = 24, kKvHeads = 4, kDim = 256;
  const bool generated = row_class == ops::RowClass::kGenerated;
  const std::string name = fmt::format("attention{}, {} x {} {} rows at {}, table of {}",
                                       ops::is_fp8(format) ? " fp8" : "", sequences, rows,
                                       generated ? "generated" : "prompt", context, max_context);
  if (!bench.wants(name)) return;
  Backend& b = bench.backend();
  const Batch batch(b, row_class, sequences, rows, context, 0, max_context);
  const std::size_t plane =
      static_cast<std::size_t>(sequences) * static_cast<std::size_t>(max_context) * kKvHeads * kDim;
  const bool codes = ops::is_fp8(format);
  const auto values = [&] {
    return codes ? std::make_unique<Buffer>(b, normal_codes(plane))
                 : std::make_unique<Buffer>(b, normal_bf16(plane));
  };
  const auto k = values(), v = values();
  const Buffer scales(b, std::vector<float>(codes ? plane / kDim : 1, 0.01f));
  const std::size_t queries = static_cast<std::size_t>(sequences * rows) * kHeads * kDim;
  const Buffer q(b, normal_bf16(queries)), out(b, queries * 2);
  const Buffer scratch(b, generated ? ops::paged_attention_scratch_bytes(
                                          b, kHeads, kDim, sequences * rows, max_context)
                                    : 1);
  const ops::PagedAttentionArgs args{.batch = batch.view,
                                     .q = q.as(),
                                     .num_heads = kHeads,
                                     .scale = 1.0f / 16.0f,
                                     .pages = {.k_pages = k->as(),
                                               .v_pages = v->as(),
                                               .k_scales = scales.as<float>(),
                                               .v_scales = scales.as<float>(),
                                               .format = format,
                                               .num_pages = sequences * max_context / 16,
                                               .num_kv_heads = kKvHeads,
                                               .page_tokens = 16,
                                               .head_dim = kDim},
                                     .out = out.as(),
                                     .scratch = scratch.as(),
                                     .scratch_bytes = generated ? scratch.bytes() : 0};
  const double entry_bytes = codes ? kDim + 4 : 2 * kDim;
  const double bytes = 2.0 * sequences * context * kKvHeads * entry_bytes;
  const double flops = 4.0 * sequences * rows * (context - 0.5 * rows) * kHeads * kDim;
  bench.line(name, bytes, flops, generated ? 20 : 3, [&] { ops::paged_attention(b, args); });
}

void bench_delta_rule(Bench& bench, ops::RowClass row_class, int sequences, int rows, int pending) {
  const ops::GdnShape shape{.num_k_heads = 16, .num_v_heads = 48, .k_dim = 128, .v_dim = 128};
  constexpr int kMaxRound = 8;
  Backend& b = bench.backend();
  const bool generated = row_class == ops::RowClass::kGenerated;
  const Batch batch(b, row_class, sequences, rows, generated ? 1024 : rows, pending, 1024);
  const auto total = static_cast<std::size_t>(sequences * rows);
  const auto channels = static_cast<std::size_t>(shape.channels());
  const Buffer qkv(b, normal_bf16(total * channels));
  const Buffer a(b, normal_floats(total * 48)), beta(b, normal_floats(total * 48));
  const Buffer a_log(b, normal_floats(48)), dt_bias(b, normal_floats(48));
  const Buffer state(b, normal_floats(static_cast<std::size_t>(sequences) * 48 * 128 * 128, 0.01f));
  const Buffer round_qkv(b,
                         normal_bf16(static_cast<std::size_t>(sequences * kMaxRound) * channels));
  const Buffer round_gates(
      b, std::vector<float>(static_cast<std::size_t>(sequences * kMaxRound * 96), -0.5f));
  const Buffer out(b, total * 48 * 128 * 4);
  const Buffer scratch(b, ops::gated_delta_rule_scratch_bytes(b, shape, static_cast<int>(total)));
  const ops::GatedDeltaRuleArgs args{.batch = batch.view,
                                     .shape = shape,
                                     .qkv = qkv.as(),
                                     .a = a.as<float>(),
                                     .b = beta.as<float>(),
                                     .a_log = a_log.as<float>(),
                                     .dt_bias = dt_bias.as<float>(),
                                     .state = {.s = state.as<float>(),
                                               .round_qkv = round_qkv.as(),
                                               .round_gates = round_gates.as<float>(),
                                               .max_round_rows = kMaxRound},
                                     .out = out.as<float>(),
                                     .scratch = scratch.as()};
  bench.line(fmt::format("delta rule, {} x {} {} rows, {} pending", sequences, rows,
                         generated ? "generated" : "prompt", pending),
             (pending > 0 ? 2.0 : 1.0) * static_cast<double>(state.bytes()),
             static_cast<double>(total) * 48 * 128 * 128 * 7, generated ? 20 : 3,
             [&] { ops::gated_delta_rule(b, args); });
}

// Convolution, delta rule and gated norm of rounds, all rows of the round before accepted: as one
// operator and as three. Layers take turns, so that no state is in the second-level cache.
void bench_delta_mix(Bench& bench, int sequences, int rows) {
  const ops::GdnShape shape{.num_k_heads = 16, .num_v_heads = 48, .k_dim = 128, .v_dim = 128};
  constexpr int kMaxRound = 8, kTaps = 4, kLayers = 24;
  const std::string name =
      fmt::format("delta mix, {} x {} generated rows, {} pending", sequences, rows, rows);
  if (!bench.wants(name + ", one operator") && !bench.wants(name + ", three operators")) return;
  Backend& b = bench.backend();
  const Batch batch(b, ops::RowClass::kGenerated, sequences, rows, 1024, rows, 1024);
  const auto total = static_cast<std::size_t>(sequences * rows);
  const auto slots = static_cast<std::size_t>(sequences);
  const auto channels = static_cast<std::size_t>(shape.channels());
  constexpr std::size_t kHeads = 48, kValues = 48 * 128, kStateBytes = kValues * 128 * 4;
  struct Layer {
    Buffer conv_weight, window, state, round_qkv, round_gates;
  };
  std::vector<std::unique_ptr<Layer>> layers;
  for (int i = 0; i < kLayers; ++i) {
    layers.emplace_back(new Layer{{b, normal_floats(channels * kTaps)},
                                  {b, normal_bf16(slots * (kTaps - 1 + kMaxRound) * channels)},
                                  {b, slots * kStateBytes},
                                  {b, normal_bf16(slots * kMaxRound * channels)},
                                  {b, std::vector<float>(slots * kMaxRound * 2 * kHeads, -0.5f)}});
    b.zero(layers.back()->state.as(), slots * kStateBytes);
  }
  const Buffer u(b, normal_bf16(total * channels)), qkv(b, total * channels * 2);
  const Buffer a(b, normal_floats(total * kHeads)), beta(b, normal_floats(total * kHeads));
  const Buffer a_log(b, normal_floats(kHeads)), dt_bias(b, normal_floats(kHeads));
  const Buffer o(b, total * kValues * 4), z(b, normal_bf16(total * kValues));
  const Buffer y(b, total * kValues * 2), norm_weight(b, normal_floats(128));
  const Buffer scratch(b, ops::gated_delta_rule_scratch_bytes(b, shape, static_cast<int>(total)));
  int turn = 0;
  const auto next = [&] {
    const Layer& layer = *layers[static_cast<std::size_t>(turn++ % kLayers)];
    return ops::GatedDeltaMixArgs{.conv = {.batch = batch.view,
                                           .u = u.as(),
                                           .u_stride = shape.channels(),
                                           .channels = static_cast<int>(shape.channels()),
                                           .kernel = kTaps,
                                           .weight = layer.conv_weight.as<float>(),
                                           .window = layer.window.as(),
                                           .max_round_rows = kMaxRound,
                                           .y = qkv.as()},
                                  .rule = {.batch = batch.view,
                                           .shape = shape,
                                           .qkv = qkv.as(),
                                           .a = a.as<float>(),
                                           .b = beta.as<float>(),
                                           .a_log = a_log.as<float>(),
                                           .dt_bias = dt_bias.as<float>(),
                                           .state = {.s = layer.state.as<float>(),
                                                     .round_qkv = layer.round_qkv.as(),
                                                     .round_gates = layer.round_gates.as<float>(),
                                                     .max_round_rows = kMaxRound},
                                           .out = o.as<float>(),
                                           .scratch = scratch.as()},
                                  .norm = {.o = o.as<float>(),
                                           .z = z.as(),
                                           .weight = norm_weight.as<float>(),
                                           .num_rows = static_cast<int>(total),
                                           .num_heads = 48,
                                           .width = 128,
                                           .y = y.as()}};
  };
  const double bytes = 2.0 * static_cast<double>(slots * kStateBytes);
  bench.line(name + ", one operator", bytes, 0, kLayers, [&] { ops::gated_delta_mix(b, next()); });
  bench.line(name + ", three operators", bytes, 0, kLayers, [&] {
    const ops::GatedDeltaMixArgs args = next();
    ops::causal_conv(b, args.conv);
    ops::gated_delta_rule(b, args.rule);
    ops::gated_rms_norm(b, args.norm);
  });
}

void bench_rows(Bench& bench) {
  constexpr int kVocab = 248320;
  Backend& b = bench.backend();
  const Buffer x(b, normal_bf16(16 * 5120)), w(b, normal_floats(5120)), y(b, 16 * 5120 * 2);
  for (const int rows : {1, 16}) {
    bench.line(fmt::format("rms_norm, {} rows of 5120", rows), rows * 5120 * 4.0, 0, 20, [&] {
      ops::rms_norm(b, {.x = x.as(),
                        .x_stride = 5120,
                        .weight = w.as<float>(),
                        .num_rows = rows,
                        .width = 5120,
                        .y = y.as(),
                        .y_stride = 5120});
    });
  }
  const Buffer logits(b, normal_floats(std::size_t{16} * kVocab, 3.0f)), best(b, 1024);
  const Buffer scratch(b, ops::sample_scratch_bytes(b, kVocab));
  for (const int rows : {1, 16}) {
    bench.line(fmt::format("argmax, {} rows of {}", rows, kVocab), rows * 4.0 * kVocab, 0, 20, [&] {
      ops::argmax_rows(b, {.logits = logits.as<float>(),
                           .stride = kVocab,
                           .num_rows = rows,
                           .shard_rows = kVocab,
                           .valid_vocab = kVocab,
                           .out = best.as<ops::ArgmaxResult>()});
    });
    for (const auto& [name, p] :
         {std::pair{"temperature", ops::SampleParams{.temperature = 1}},
          {"top-k 20, top-p 0.95",
           ops::SampleParams{.temperature = 0.7f, .top_p = 0.95f, .top_k = 20}},
          {"top-p 0.95", ops::SampleParams{.temperature = 1, .top_p = 0.95f}}}) {
      const Buffer params(b, std::vector<ops::SampleParams>(static_cast<std::size_t>(rows), p));
      bench.line(fmt::format("sample ({}), {} rows", name, rows), rows * 4.0 * kVocab, 0, 5, [&] {
        ops::sample_rows(b, {.logits = logits.as<float>(),
                             .stride = kVocab,
                             .num_rows = rows,
                             .valid_vocab = kVocab,
                             .params = params.as<ops::SampleParams>(),
                             .want_logprob = true,
                             .out = best.as<ops::SampleResult>(),
                             .scratch = scratch.as()});
      });
    }
  }
}

void run(const std::string& part) {
  cuda::CudaBackend backend({});
  fmt::print("{}\n", backend.description());
  Bench bench(backend, part);
  using ops::RowClass;
  if (bench.wants_some("copy")) {
    const std::size_t bytes = std::size_t{1} << 30;
    const Buffer from(backend, bytes), to(backend, bytes);
    backend.zero(from.as(), bytes);
    bench.line("copy of 1 GiB, read and written", 2.0 * static_cast<double>(bytes), 0, 5,
               [&] { backend.copy(to.as(), from.as(), bytes); });
  }
  bench_linears(bench);
  for (const auto format : {ops::KvFormat::kBf16, ops::KvFormat::kFp8Dynamic}) {
    bench_attention(bench, format, RowClass::kGenerated, 1, 1, 1024, 262144);
    bench_attention(bench, format, RowClass::kGenerated, 1, 1, 32768, 32768);
    bench_attention(bench, format, RowClass::kGenerated, 1, 1, 131072, 262144);
    bench_attention(bench, format, RowClass::kGenerated, 4, 4, 1024, 32768);
    bench_attention(bench, format, RowClass::kGenerated, 8, 1, 1024, 32768);
    bench_attention(bench, format, RowClass::kGenerated, 16, 1, 1024, 32768);
    bench_attention(bench, format, RowClass::kGenerated, 1, 4, 4096, 32768);
    bench_attention(bench, format, RowClass::kGenerated, 8, 1, 4096, 32768);
    bench_attention(bench, format, RowClass::kGenerated, 8, 4, 4096, 32768);
    bench_attention(bench, format, RowClass::kPrompt, 1, 512, 512, 4096);
    bench_attention(bench, format, RowClass::kPrompt, 1, 2048, 4096, 4096);
  }
  if (bench.wants_some("delta rule")) {
    bench_delta_rule(bench, RowClass::kGenerated, 1, 1, 1);
    bench_delta_rule(bench, RowClass::kGenerated, 8, 1, 1);
    bench_delta_rule(bench, RowClass::kGenerated, 8, 4, 3);
    bench_delta_rule(bench, RowClass::kGenerated, 16, 6, 5);
    bench_delta_rule(bench, RowClass::kPrompt, 1, 512, 0);
    bench_delta_rule(bench, RowClass::kPrompt, 1, 2048, 0);
    bench_delta_rule(bench, RowClass::kPrompt, 4, 512, 0);
  }
  for (const auto& [sequences, rows] : {std::pair{1, 1}, {4, 4}, {8, 1}, {16, 1}}) {
    bench_delta_mix(bench, sequences, rows);
  }
  if (bench.wants_some("")) bench_rows(bench);
}

}  // namespace
}  // namespace tandem

// tandem_cuda_bench [PART]: only lines that contain PART.
int main(int argc, char** argv) {
  tandem::run(argc > 1 ? argv[1] : "");
  return 0;
}
