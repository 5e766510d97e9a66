// Instruments: plain sweeps over memory, from which the bandwidth of a device is measured. Nothing
// of a model uses them. A device may know several ways of sweeping (sizes of a request, requests in
// flight); which of them is fastest is what is to be found out, so they are numbered and the
// results are the same. Arrays are aligned to kSweepUnitBytes, whole multiples of it, and do not
// overlap.
#pragma once

#include <cstdint>

#include "kernels/backend.h"

namespace tandem::ops {

inline constexpr std::int64_t kSweepUnitBytes = 16;

int num_sweep_ways(const Backend& backend);

// What sweep_fill() writes to word i. Odd, so that the words are all different and a word that is
// read twice, or not at all, shows in the sum.
constexpr std::uint32_t sweep_word(std::int64_t i) {
  return static_cast<std::uint32_t>(i) * 2654435761u;
}
// The sum of the first `words` of them.
constexpr std::uint32_t sweep_total(std::int64_t words) {
  const auto n = static_cast<std::uint64_t>(words);
  return static_cast<std::uint32_t>(n % 2 == 0 ? n / 2 * (n - 1) : (n - 1) / 2 * n) * 2654435761u;
}

struct SweepArgs {
  const std::uint32_t* x = nullptr;  // [words]
  const std::uint32_t* z = nullptr;  // [words], sweep_add() only
  std::uint32_t* y = nullptr;        // [words]; sweep_sum(): [1], added to
  std::int64_t words = 0;            // a multiple of four
  int way = 0;                       // below num_sweep_ways()
};

void sweep_fill(Backend& backend, std::uint32_t* y, std::int64_t words);
// Modulo 2^32: the order of additions does not matter.
void sweep_sum(Backend& backend, const SweepArgs& args);   // y[0] += sum of x; only reads
void sweep_copy(Backend& backend, const SweepArgs& args);  // y = x
void sweep_add(Backend& backend, const SweepArgs& args);   // y = x + z

}  // namespace tandem::ops
