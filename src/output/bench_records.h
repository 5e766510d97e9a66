// What `tandem bench` hands to its result file: one struct a table, one member a column. Names,
// units and descriptions of the columns are in bench_schema.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "output/passport.h"

namespace tandem {

// /bench/ranks: a rank, and what the rows of its measurements are compared with.
struct BenchRankRow {
  std::int64_t rank = 0;
  std::string host = {};
  std::string backend = {};
  std::optional<double> read_bytes_per_s = {};
  std::optional<double> copy_bytes_per_s = {};
  std::optional<double> matrix_flops_per_s = {};
  std::string matrix_rate_source = {};
};

// /bench/memory
struct BenchMemoryRow {
  std::int64_t rank = 0;
  std::string traffic = {};
  std::string method = {};
  std::int64_t bytes = 0;
  double seconds = 0;
  double bytes_per_s = 0;
  bool correct = false;
};

// /bench/gemm
struct BenchGemmRow {
  std::int64_t rank = 0;
  std::string format = {};
  std::string linear = {};
  std::int64_t out_features = 0;
  std::int64_t in_features = 0;
  std::int64_t rows = 0;
  std::int64_t bytes = 0;
  double seconds = 0;
  double bytes_per_s = 0;
  double share_of_read_bandwidth = 0;
  double flops_per_s = 0;
  std::optional<double> share_of_matrix_rate = {};
  std::optional<double> error = {};
  bool correct = false;
};

// /bench/collective
struct BenchCollectiveRow {
  std::string collective = {};
  std::int64_t bytes = 0;
  std::int64_t num_ranks = 0;
  double seconds = 0;
  double bytes_per_s = 0;
  double bus_bytes_per_s = 0;
  bool correct = false;
};

// A whole file: one kind of benchmark, all ranks.
struct BenchContents {
  Passport passport = {};
  std::vector<BenchRankRow> ranks;
  std::variant<std::vector<BenchMemoryRow>, std::vector<BenchGemmRow>,
               std::vector<BenchCollectiveRow>>
      rows;
};

}  // namespace tandem
