// The layout of a file of `tandem bench`: /passport, /bench/ranks and the table of the one
// benchmark. The groups lie under /bench because /memory of a run's file is something else. Rules
// as in result_schema.h.
#pragma once

#include "output/bench_records.h"
#include "output/result_schema.h"

namespace tandem::schema {

inline constexpr std::string_view kBenchGroup = "/bench";

inline constexpr Column<BenchRankRow> kBenchRankColumns[] = {
    {"rank", "1", "MPI rank", &BenchRankRow::rank, kNoLimit, 2},
    {"host", "1", "host of the rank", &BenchRankRow::host, kNoLimit, 2},
    {"backend", "1", "the device measured", &BenchRankRow::backend, kNoLimit, 2},
    {"read_bytes_per_s", "bytes/s",
     "fastest correct sweep that only reads: the measured limit; missing for collectives",
     &BenchRankRow::read_bytes_per_s, kNoLimit, 2},
    {"copy_bytes_per_s", "bytes/s",
     "fastest correct copy, read plus written; missing unless memory was measured",
     &BenchRankRow::copy_bytes_per_s, kNoLimit, 2},
    {"matrix_flops_per_s", "FLOP/s",
     "BF16 products by the vendor's library; missing where there is none, and unless linears were "
     "measured",
     &BenchRankRow::matrix_flops_per_s, kNoLimit, 2},
    {"matrix_rate_source", "1", "the library and its sizes, or why there is no rate",
     &BenchRankRow::matrix_rate_source, kNoLimit, 2},
};

inline constexpr Column<BenchMemoryRow> kBenchMemoryColumns[] = {
    {"rank", "1", "MPI rank", &BenchMemoryRow::rank, kNoLimit, 2},
    {"traffic", "1", "read, write, copy or add", &BenchMemoryRow::traffic, kNoLimit, 2},
    {"method", "1", "how it was done", &BenchMemoryRow::method, kNoLimit, 2},
    {"bytes", "bytes", "read plus written by one call", &BenchMemoryRow::bytes, kNoLimit, 2},
    {"seconds", "s", "time of one call: least of the groups' medians", &BenchMemoryRow::seconds,
     kNoLimit, 2},
    {"bytes_per_s", "bytes/s", "bytes / seconds", &BenchMemoryRow::bytes_per_s, kNoLimit, 2},
    {"correct", "1", "every word was read or written as it should be", &BenchMemoryRow::correct,
     kNoLimit, 2},
};

inline constexpr Column<BenchGemmRow> kBenchGemmColumns[] = {
    {"rank", "1", "MPI rank", &BenchGemmRow::rank, kNoLimit, 2},
    {"format", "1", "format of the weight", &BenchGemmRow::format, kNoLimit, 2},
    {"linear", "1", "where a model has this shape", &BenchGemmRow::linear, kNoLimit, 2},
    {"out_features", "1", "N, rows of the weight", &BenchGemmRow::out_features, kNoLimit, 2},
    {"in_features", "1", "K, columns of the weight", &BenchGemmRow::in_features, kNoLimit, 2},
    {"rows", "1", "M, rows of x", &BenchGemmRow::rows, kNoLimit, 2},
    {"bytes", "bytes", "weights and scales, x and y, each once", &BenchGemmRow::bytes, kNoLimit, 2},
    {"seconds", "s", "time of one call: least of the groups' medians", &BenchGemmRow::seconds,
     kNoLimit, 2},
    {"bytes_per_s", "bytes/s", "bytes / seconds", &BenchGemmRow::bytes_per_s, kNoLimit, 2},
    {"share_of_read_bandwidth", "1", "bytes_per_s / read_bytes_per_s of the rank",
     &BenchGemmRow::share_of_read_bandwidth, kNoLimit, 2},
    {"flops_per_s", "FLOP/s", "2 M N K / seconds", &BenchGemmRow::flops_per_s, kNoLimit, 2},
    {"share_of_matrix_rate", "1",
     "flops_per_s / matrix_flops_per_s of the rank; missing without that rate",
     &BenchGemmRow::share_of_matrix_rate, kNoLimit, 2},
    {"error", "1",
     "largest error of the outputs checked, relative to the sum of their terms' magnitudes; "
     "missing "
     "when an output was not a number",
     &BenchGemmRow::error, kNoLimit, 2},
    {"correct", "1", "the error is small enough for sums in fp32", &BenchGemmRow::correct, kNoLimit,
     2},
};

inline constexpr Column<BenchCollectiveRow> kBenchCollectiveColumns[] = {
    {"collective", "1", "all-reduce or all-gather", &BenchCollectiveRow::collective, kNoLimit, 2},
    {"bytes", "bytes", "all-reduce: of the vector; all-gather: of all ranks' parts together",
     &BenchCollectiveRow::bytes, kNoLimit, 2},
    {"num_ranks", "ranks", "MPI ranks", &BenchCollectiveRow::num_ranks, kNoLimit, 2},
    {"seconds", "s", "of the slowest rank: least of the groups' medians",
     &BenchCollectiveRow::seconds, kNoLimit, 2},
    {"bytes_per_s", "bytes/s", "bytes / seconds", &BenchCollectiveRow::bytes_per_s, kNoLimit, 2},
    {"bus_bytes_per_s", "bytes/s",
     "what each rank must at least send, and receive, in a second: 2 (n - 1) / n of bytes_per_s "
     "for a sum, (n - 1) / n for a gather",
     &BenchCollectiveRow::bus_bytes_per_s, kNoLimit, 2},
    {"correct", "1", "the values checked were right on every rank", &BenchCollectiveRow::correct,
     kNoLimit, 2},
};

inline constexpr Table<BenchRankRow> kBenchRanks{
    "/bench/ranks", "the ranks, and what their measurements are compared with", kBenchRankColumns};
inline constexpr Table<BenchMemoryRow> kBenchMemory{
    "/bench/memory", "one row per rank and method of moving memory", kBenchMemoryColumns};
inline constexpr Table<BenchGemmRow> kBenchGemm{
    "/bench/gemm", "one row per rank, weight format, shape and number of rows", kBenchGemmColumns};
inline constexpr Table<BenchCollectiveRow> kBenchCollective{
    "/bench/collective", "one row per collective and size", kBenchCollectiveColumns};

constexpr const Table<BenchMemoryRow>& bench_table(const std::vector<BenchMemoryRow>& /*rows*/) {
  return kBenchMemory;
}
constexpr const Table<BenchGemmRow>& bench_table(const std::vector<BenchGemmRow>& /*rows*/) {
  return kBenchGemm;
}
constexpr const Table<BenchCollectiveRow>& bench_table(
    const std::vector<BenchCollectiveRow>& /*rows*/) {
  return kBenchCollective;
}

// Those of all kinds of benchmark; a file has /bench/ranks and the table of its own kind.
std::vector<DatasetInfo> all_bench_datasets();

}  // namespace tandem::schema
