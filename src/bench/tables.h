// Results of the micro-benchmarks for people (tables) and for programs (JSON, one object a call).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "bench/collective.h"
#include "bench/gemm.h"
#include "bench/memory.h"
#include "kernels/ops/matrix_rate.h"

namespace tandem {

// What the numbers were measured on and with.
struct BenchConditions {
  std::string program;  // version and revision
  std::string host;
  int rank = 0;
  int num_ranks = 1;
  std::string backend;    // Backend::description()
  std::string transport;  // of the collectives; empty for the others
  BenchRepeats repeats;
};

// What linears are compared with.
struct GemmBounds {
  double read_bytes_per_s = 0;
  ops::MatrixRate matrix;
};

// How a time follows from its samples.
inline constexpr std::string_view kBenchStatistic = "least of the groups' medians";

std::string program_text(std::string_view version, std::string_view git_revision);
std::string conditions_text(const BenchConditions& conditions);

std::string memory_table(const std::vector<MemoryBenchResult>& results);
std::string gemm_table(const std::vector<GemmBenchResult>& results, const GemmBounds& bounds);
std::string collective_table(const std::vector<CollectiveBenchResult>& results);

std::string memory_json(const BenchConditions& conditions,
                        const std::vector<MemoryBenchResult>& results);
std::string gemm_json(const BenchConditions& conditions,
                      const std::vector<GemmBenchResult>& results, const GemmBounds& bounds);
std::string collective_json(const BenchConditions& conditions,
                            const std::vector<CollectiveBenchResult>& results);

}  // namespace tandem
