// Entry of paged attention: plan, kernel, and the join of spans that blocks shared.
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/cuda_ops.h"

namespace tandem::cuda {
namespace {

// One block a row and head, one thread a dimension. The same steps as inside a block that kept all
// spans to itself.
template <class T>
__global__ void join_spans_kernel(ops::PagedAttentionArgs a, int num_spans_of_table) {
  const std::int64_t row = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y);
  const int d = static_cast<int>(threadIdx.x);
  SoftmaxPart state;
  float value = 0;
  for (int s = a.first_index / kSpanTokens; s <= a.batch.positions[row] / kSpanTokens; ++s) {
    const float* span = span_at(a, num_spans_of_table, row, head, s);
    const SoftmaxPart part{span[0], span[1]};
    value = joined(join(part, state), span[2 + d], value);
  }
  write_value<T>(a, row, head, d, value, state.sum);
}

}  // namespace

std::size_t paged_attention_scratch_bytes(const CudaBackend&, int num_heads, int head_dim,
                                          int max_rows, std::int64_t max_context) {
  return sizeof(float) * static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(num_heads) *
         static_cast<std::size_t>(num_spans(max_context) * span_floats(head_dim));
}

void paged_attention(CudaBackend& backend, const ops::PagedAttentionArgs& args) {
  const ops::KvPages& pages = args.pages;
  const std::int64_t max_context =
      std::int64_t{args.batch.pages_per_sequence} * args.batch.page_tokens;
  const AttentionSize size{.path = attention_path(args.dtype, pages.dtype),
                           .num_rows = args.batch.num_rows,
                           .num_segments = args.batch.num_segments,
                           .num_kv_heads = pages.num_kv_heads,
                           .group = args.num_heads / pages.num_kv_heads,
                           .head_dim = pages.head_dim,
                           .max_context = max_context,
                           .scratch_bytes = args.scratch == nullptr ? 0 : args.scratch_bytes};
  const AttentionPlan plan = plan_attention(size, backend.limits().num_processors);
  if (size.path == AttentionPath::kTensor) {
    attention_tensor(backend, args, plan);
  } else {
    attention_plain(backend, args, plan);
  }
  if (plan.splits == 1) return;
  const dim3 grid(static_cast<unsigned>(args.batch.num_rows),
                  static_cast<unsigned>(args.num_heads));
  with_float_type(args.dtype, [&](auto type) {
    launch(backend, join_spans_kernel<decltype(type)>, grid, static_cast<unsigned>(pages.head_dim),
           0, args, static_cast<int>(num_spans(max_context)));
  });
}

}  // namespace tandem::cuda
