// What the benchmarks measured as rows of a result file, on their way to rank 0, and back as the
// text that the benchmark printed.
#pragma once

#include <string>
#include <vector>

#include "bench/tables.h"
#include "output/bench_records.h"
#include "parallel/host_comm.h"

namespace tandem {

// One rank's part of a file, without the passport.
BenchContents memory_contents(const BenchConditions& conditions,
                              const std::vector<MemoryBenchResult>& results);
BenchContents gemm_contents(const BenchConditions& conditions,
                            const std::vector<GemmBenchResult>& results, const GemmBounds& bounds);
// The results are those of all ranks together: only rank 0 has rows.
BenchContents collective_contents(const BenchConditions& conditions,
                                  const std::vector<CollectiveBenchResult>& results);

// Collective. The parts of all ranks in the order of the ranks, at rank 0; nothing elsewhere.
BenchContents gather_contents(const HostComm& world, const BenchContents& own);

// "bench.*", "backend" and "collectives".
void add_bench(const char* benchmark, const BenchConditions& conditions, Passport& passport);

// A file as the benchmark printed it: conditions and table of each rank.
std::string contents_text(const BenchContents& contents);

}  // namespace tandem
