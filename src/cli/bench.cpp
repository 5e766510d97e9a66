// `tandem bench`: the micro-benchmarks on this rank's device, one rank after the other on stdout,
// and all ranks in one file where that is asked for. Ranks measure at the same time, as they would
// work at the same time.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <memory>
#include <optional>

#include "base/build_info.h"
#include "base/error.h"
#include "base/log.h"
#include "bench/bench_rows.h"
#include "bench/collective.h"
#include "bench/gemm.h"
#include "bench/memory.h"
#include "bench/tables.h"
#include "cli/commands.h"
#include "cli/in_mpi.h"
#include "engine/job_passport.h"
#include "engine/rank_engine.h"
#include "kernels/device_sensors.h"
#include "kernels/ops/matrix_rate.h"
#include "output/bench_file.h"
#include "parallel/make_device_comm.h"
#include "parallel/mpi_env.h"
#include "parallel/rank_layout.h"

namespace tandem {
namespace {

// Of one rank: text for stdout, rows for the file, and whether every result was right.
struct BenchReport {
  BenchConditions conditions;
  std::string text;
  BenchContents contents;
  bool correct = true;
};

BackendKind backend_kind(const std::string& name) {
  if (name == "cpu") return BackendKind::kCpu;
  return name == "cuda" ? BackendKind::kCuda : default_backend();
}

BenchConditions conditions_of(const RankLayout& layout, const Backend& backend,
                              const BenchRepeats& repeats) {
  return {.program = program_text(build_info().version, build_info().git_revision),
          .host = layout.place().host,
          .rank = layout.rank,
          .num_ranks = layout.size,
          .backend = backend.description(),
          .transport = "",
          .repeats = repeats};
}

template <class Results, class Correct>
BenchReport report(const BenchConditions& conditions, std::string text, BenchContents contents,
                   const Results& results, const Correct& correct) {
  return {conditions, std::move(text), std::move(contents),
          std::all_of(results.begin(), results.end(), correct)};
}

BenchReport bench_memory(const BenchOptions& options, const RankLayout& layout, Backend& backend) {
  const MemoryBenchOptions memory{.bytes = options.bytes.value_or(0)};
  const auto results = run_memory_bench(backend, memory);
  const auto conditions = conditions_of(layout, backend, memory.repeats);
  return report(conditions,
                options.json ? memory_json(conditions, results)
                             : conditions_text(conditions) + memory_table(results),
                memory_contents(conditions, results), results,
                [](const MemoryBenchResult& r) { return r.correct; });
}

[[noreturn]] void refuse(const std::string& what, const std::string& expected) {
  throw Error(ExitCode::kConfiguration,
              {.what = what, .where = "tandem bench gemm", .expected = expected});
}

GemmShape parse_shape(const std::string& text) {
  GemmShape shape{.name = "given"};
  const char* end = text.data() + text.size();
  const auto outs = std::from_chars(text.data(), end, shape.out_features);
  const bool x = outs.ec == std::errc{} && outs.ptr != end && *outs.ptr == 'x';
  const auto ins = x ? std::from_chars(outs.ptr + 1, end, shape.in_features) : outs;
  // 32: a block of MXFP4; 2^20: no model's.
  if (!x || ins.ec != std::errc{} || ins.ptr != end || shape.out_features <= 0 ||
      shape.in_features <= 0 || shape.in_features % 32 != 0 || shape.out_features > 1 << 20 ||
      shape.in_features > 1 << 20) {
    refuse(fmt::format("shape '{}'", text),
           "outputs x inputs like 17408x5120, inputs a multiple of 32, both at most 1048576");
  }
  return shape;
}

std::vector<ops::WeightFormat> parse_formats(const std::vector<std::string>& names,
                                             const Backend& backend) {
  const auto supported = supported_formats(backend);
  std::vector<ops::WeightFormat> formats;
  std::string known;
  for (const auto format : supported)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", format_name(format));
  for (const std::string& name : names) {
    if (name == "all") return supported;
    const auto found = std::find_if(supported.begin(), supported.end(),
                                    [&](auto format) { return format_name(format) == name; });
    if (found == supported.end())
      refuse(fmt::format("weight format '{}'", name), "all, or some of " + known);
    formats.push_back(*found);
  }
  return formats;
}

GemmBenchOptions gemm_options(const BenchOptions& options, const Backend& backend) {
  const bool gpu = backend.kind() == BackendKind::kCuda;
  GemmBenchOptions gemm;
  if (gpu) gemm.shapes = model_shapes();
  if (!options.shapes.empty()) gemm.shapes.clear();
  for (const std::string& text : options.shapes) gemm.shapes.push_back(parse_shape(text));
  gemm.formats = options.formats.empty()
                     ? std::vector{ops::WeightFormat::kBf16, ops::WeightFormat::kFp8Block,
                                   ops::WeightFormat::kNvfp4}
                     : parse_formats(options.formats, backend);
  gemm.rows = options.rows;
  if (gemm.rows.empty()) {
    gemm.rows = {1, 2, 4, 8, 16, 32, 64};
    if (gpu) gemm.rows.push_back(2048);
  }
  gemm.repeats = {.groups = 3, .runs = 5};
  return gemm;
}

BenchReport bench_gemm(const BenchOptions& options, const RankLayout& layout, Backend& backend) {
  // Large enough that a library's product reaches its full rate.
  constexpr int kMatrixRows = 8192;
  const GemmBenchOptions gemm = gemm_options(options, backend);
  const GemmBounds bounds{.read_bytes_per_s = measure_read_bandwidth(
                              backend, default_sweep_bytes(backend), gemm.repeats),
                          .matrix = ops::measure_matrix_rate(backend, kMatrixRows)};
  const auto results = run_gemm_bench(backend, gemm);
  const auto conditions = conditions_of(layout, backend, gemm.repeats);
  return report(conditions,
                options.json ? gemm_json(conditions, results, bounds)
                             : conditions_text(conditions) + gemm_table(results, bounds),
                gemm_contents(conditions, results, bounds), results,
                [](const GemmBenchResult& r) { return r.correct(); });
}

BenchReport bench_collective(const BenchOptions& options, const HostComm& world,
                             const RankLayout& layout, Backend& backend) {
  const CollectiveBenchOptions collective{.max_bytes = options.bytes.value_or(0)};
  const auto comm = make_device_comm(world, backend, {});
  const auto results = run_collective_bench(world, backend, *comm, collective);
  auto conditions = conditions_of(layout, backend, collective.repeats);
  conditions.transport = comm->transport();
  auto out = report(conditions,
                    options.json ? collective_json(conditions, results)
                                 : conditions_text(conditions) + collective_table(results),
                    collective_contents(conditions, results), results,
                    [](const CollectiveBenchResult& r) { return r.correct; });
  if (world.rank() != 0) out.text.clear();  // the same on every rank
  return out;
}

const char* bench_name(BenchKind kind) {
  switch (kind) {
    case BenchKind::kMemory:
      return "memory";
    case BenchKind::kGemm:
      return "gemm";
    case BenchKind::kCollective:
      return "collective";
  }
  return "";
}

// What is known before anything is measured; the start time is that of this call.
Passport start_passport(const RankLayout& layout) {
  Passport passport = ranks_passport(layout);
  passport.set("bench.command_line", command_line());
  return passport;
}

void write_file(BenchFile& file, const BenchOptions& options, const BenchReport& result,
                BenchContents contents, Backend& backend, ExitCode code) {
  add_bench(bench_name(options.kind), result.conditions, contents.passport);
  std::string why;
  if (const auto sensors = make_device_sensors(backend, why)) {
    const std::string driver = sensors->driver_version();
    if (!driver.empty()) contents.passport.set("gpu.driver_version", driver);
  }
  file.write(contents, code);
  fmt::print(stderr, "tandem: results in {}\n", *options.output);
}

int run_bench(const BenchOptions& options) {
  const HostComm world = HostComm::world();
  const RankLayout layout = agree_rank_layout(world, {});
  std::unique_ptr<BenchFile> file;  // rank 0
  Passport passport;
  world.together([&] {
    if (!options.output || world.rank() != 0) return;
    passport = start_passport(layout);
    file = std::make_unique<BenchFile>(*options.output, options.overwrite);
  });
  const auto backend = world.together([&] {
    return make_backend(
        backend_kind(options.backend),
        {.num_threads = options.threads > 0 ? options.threads : threads_per_rank(layout.place()),
         .device = layout.place().local_rank});
  });
  BenchReport result;
  if (options.kind == BenchKind::kCollective) {
    result = bench_collective(options, world, layout, *backend);
  } else {
    world.barrier();
    result = world.together([&] {
      return options.kind == BenchKind::kMemory ? bench_memory(options, layout, *backend)
                                                : bench_gemm(options, layout, *backend);
    });
  }
  for (const std::string& text : world.gather(result.text)) std::fputs(text.c_str(), stdout);
  const auto all = world.all_gather(static_cast<char>(result.correct));
  const bool correct = std::all_of(all.begin(), all.end(), [](char c) { return c != 0; });
  const ExitCode code = correct ? ExitCode::kDone : ExitCode::kInternal;
  if (options.output) {
    std::fflush(stdout);
    BenchContents contents = gather_contents(world, result.contents);
    contents.passport = std::move(passport);
    world.together([&] {
      if (file) write_file(*file, options, result, std::move(contents), *backend, code);
    });
  }
  return static_cast<int>(code);
}

}  // namespace

int bench_command(const BenchOptions& options) {
  return in_mpi(false, [&](MpiEnv&) { return run_bench(options); });
}

}  // namespace tandem
