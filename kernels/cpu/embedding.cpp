// Embedding lookup: a copy with conversion; nothing is summed. Threads take rows.
#include "base/types.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/parallel.h"

namespace tandem::cpu {
namespace {

template <class T>
void lookup(const ops::EmbeddingArgs& a, std::int64_t row) {
  float* out = a.out + row * a.hidden;
  const std::int64_t local = a.token_ids[row] - a.shard_begin;
  if (local < 0 || local >= a.shard_rows) {
    std::fill_n(out, a.hidden, 0.0f);
    return;
  }
  const T* source = static_cast<const T*>(a.table) + local * a.hidden;
  for (int i = 0; i < a.hidden; ++i) out[i] = to_float(source[i]);
}

}  // namespace

void embedding(CpuBackend& backend, const ops::EmbeddingArgs& args) {
  const auto row = args.table_dtype == DType::kF32 ? lookup<float> : lookup<bf16>;
  parallel_ranges(backend, args.num_rows, rows_of_work(args.hidden),
                  [&](std::int64_t first, std::int64_t last, int) {
                    for (std::int64_t r = first; r < last; ++r) row(args, r);
                  });
}

}  // namespace tandem::cpu
