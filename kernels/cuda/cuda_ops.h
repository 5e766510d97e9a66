// The CUDA implementations of kernels/ops/*.h, one in each cuda/<op>.cu. Arguments have been
// checked by ops/<op>.cpp. Every one only enqueues on the backend's stream, perhaps together with
// what follows (linear_chain.h), and reads no device array on the host, so a sequence of them can
// be captured in a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/ops/attention_prep.h"
#include "kernels/ops/causal_conv.h"
#include "kernels/ops/device_timer.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gated_delta_mix.h"
#include "kernels/ops/gated_delta_rule.h"
#include "kernels/ops/gated_rms_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/matrix_rate.h"
#include "kernels/ops/memory_sweep.h"
#include "kernels/ops/paged_attention.h"
#include "kernels/ops/rms_norm.h"
#include "kernels/ops/sample.h"
#include "kernels/ops/verify.h"

namespace tandem::cuda {

void attention_prep(CudaBackend& backend, const ops::AttentionPrepArgs& args);
void causal_conv(CudaBackend& backend, const ops::CausalConvArgs& args);
void silu_mul(CudaBackend& backend, const ops::SiluMulArgs& args);
void gather_rows(CudaBackend& backend, const ops::GatherRowsArgs& args);
void scatter_rows(CudaBackend& backend, const ops::ScatterRowsArgs& args);
void cast(CudaBackend& backend, const ops::CastArgs& args);
void add(CudaBackend& backend, const ops::AddArgs& args);
void embedding(CudaBackend& backend, const ops::EmbeddingArgs& args);
void gated_delta_mix(CudaBackend& backend, const ops::GatedDeltaMixArgs& args);
void gated_delta_rule(CudaBackend& backend, const ops::GatedDeltaRuleArgs& args);
std::size_t gated_delta_rule_scratch_bytes(const CudaBackend& backend, const ops::GdnShape& shape,
                                           int max_rows);
void gated_rms_norm(CudaBackend& backend, const ops::GatedRmsNormArgs& args);
bool linear_supports(ops::WeightFormat format);
void prepack_weight(CudaBackend& backend, const ops::LinearWeight& weight);
void linear(CudaBackend& backend, const ops::LinearArgs& args);
void linear_group(CudaBackend& backend, std::span<const ops::LinearArgs> group);
void paged_attention(CudaBackend& backend, const ops::PagedAttentionArgs& args);
std::size_t paged_attention_scratch_bytes(const CudaBackend& backend, int num_heads, int head_dim,
                                          int max_rows, std::int64_t max_context);
void rms_norm(CudaBackend& backend, const ops::RmsNormArgs& args);
void residual_rms_norm(CudaBackend& backend, const ops::ResidualRmsNormArgs& args);
// The same by a kernel of its own, at once.
void residual_rms_norm_alone(const CudaBackend& backend, const ops::ResidualRmsNormArgs& args);
void argmax_rows(CudaBackend& backend, const ops::ArgmaxRowsArgs& args);
void sample_rows(CudaBackend& backend, const ops::SampleRowsArgs& args);
std::size_t sample_scratch_bytes(const CudaBackend& backend, std::int64_t vocab);
void merge_argmax(CudaBackend& backend, const ops::MergeArgmaxArgs& args);
void lay_out_round(CudaBackend& backend, const ops::LayOutRoundArgs& args);
void verify(CudaBackend& backend, const ops::VerifyArgs& args);
void propose(CudaBackend& backend, const ops::ProposeArgs& args);

// Instruments: cuda/instruments.cpp, cuda/matrix_rate.cpp and cuda/memory_sweep.cu.
inline constexpr int kSweepWays = 4;
void sweep_fill(CudaBackend& backend, std::uint32_t* y, std::int64_t words);
void sweep_sum(CudaBackend& backend, const ops::SweepArgs& args);
void sweep_copy(CudaBackend& backend, const ops::SweepArgs& args);
void sweep_add(CudaBackend& backend, const ops::SweepArgs& args);
std::unique_ptr<ops::DeviceTimer> make_device_timer(CudaBackend& backend, ops::Submit submit,
                                                    int calls, std::function<void()> work);
ops::MatrixRate measure_matrix_rate(CudaBackend& backend, int n);

}  // namespace tandem::cuda
