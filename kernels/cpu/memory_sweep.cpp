// Sweeps over memory with all threads. Copies and sums count what the program asks for: a processor
// may read a line before it overwrites it, which is not counted.
#include <atomic>
#include <cstring>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"

namespace tandem::cpu {
namespace {

// Small pieces handed out as threads become free: a core that others use costs its share only.
constexpr std::int64_t kPieceWords = std::int64_t{1} << 18;

}  // namespace

void sweep_fill(CpuBackend& backend, std::uint32_t* y, std::int64_t words) {
  parallel_ranges(backend, words, kPieceWords, [&](std::int64_t first, std::int64_t last, int) {
    for (std::int64_t i = first; i < last; ++i) y[i] = ops::sweep_word(i);
  });
}

void sweep_sum(CpuBackend& backend, const ops::SweepArgs& args) {
  // Lines are asked for 4 KiB ahead: the hardware's prefetch alone reads a tenth less.
  constexpr std::int64_t kLineWords = 16, kWordsAhead = 1024;
  parallel_ranges(backend, args.words, kPieceWords,
                  [&](std::int64_t first, std::int64_t last, int) {
                    std::uint32_t total = 0;
                    std::int64_t i = first;
                    for (; i + kLineWords <= last; i += kLineWords) {
                      __builtin_prefetch(args.x + i + kWordsAhead);
                      for (std::int64_t j = 0; j < kLineWords; ++j) total += args.x[i + j];
                    }
                    for (; i < last; ++i) total += args.x[i];
                    std::atomic_ref<std::uint32_t>(*args.y).fetch_add(total);
                  });
}

void sweep_copy(CpuBackend& backend, const ops::SweepArgs& args) {
  parallel_ranges(backend, args.words, kPieceWords,
                  [&](std::int64_t first, std::int64_t last, int) {
                    std::memcpy(args.y + first, args.x + first,
                                static_cast<std::size_t>(last - first) * sizeof(std::uint32_t));
                  });
}

void sweep_add(CpuBackend& backend, const ops::SweepArgs& args) {
  parallel_ranges(backend, args.words, kPieceWords,
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t i = first; i < last; ++i) args.y[i] = args.x[i] + args.z[i];
                  });
}

}  // namespace tandem::cpu
