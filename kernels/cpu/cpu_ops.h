// The CPU implementations of kernels/ops/*.h, one in each cpu/<op>.cpp. Arguments have been checked
// by ops/<op>.cpp; what depends on the contents of device arrays is checked here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/cpu/cpu_backend.h"
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

namespace tandem::cpu {

void attention_prep(CpuBackend& backend, const ops::AttentionPrepArgs& args);
void causal_conv(CpuBackend& backend, const ops::CausalConvArgs& args);
void silu_mul(CpuBackend& backend, const ops::SiluMulArgs& args);
void gather_rows(CpuBackend& backend, const ops::GatherRowsArgs& args);
void scatter_rows(CpuBackend& backend, const ops::ScatterRowsArgs& args);
void cast(CpuBackend& backend, const ops::CastArgs& args);
void add(CpuBackend& backend, const ops::AddArgs& args);
void embedding(CpuBackend& backend, const ops::EmbeddingArgs& args);
void gated_delta_mix(CpuBackend& backend, const ops::GatedDeltaMixArgs& args);
void gated_delta_rule(CpuBackend& backend, const ops::GatedDeltaRuleArgs& args);
std::size_t gated_delta_rule_scratch_bytes(const CpuBackend& backend, const ops::GdnShape& shape,
                                           int max_rows);
void gated_rms_norm(CpuBackend& backend, const ops::GatedRmsNormArgs& args);
bool linear_supports(ops::WeightFormat format);
void prepack_weight(CpuBackend& backend, const ops::LinearWeight& weight);
void linear(CpuBackend& backend, const ops::LinearArgs& args);
void linear_group(CpuBackend& backend, std::span<const ops::LinearArgs> group);
void paged_attention(CpuBackend& backend, const ops::PagedAttentionArgs& args);
inline std::size_t paged_attention_scratch_bytes(const CpuBackend&, int, int, int, std::int64_t) {
  return 0;  // the backend's own shared scratch serves
}
void rms_norm(CpuBackend& backend, const ops::RmsNormArgs& args);
void residual_rms_norm(CpuBackend& backend, const ops::ResidualRmsNormArgs& args);
void argmax_rows(CpuBackend& backend, const ops::ArgmaxRowsArgs& args);
void sample_rows(CpuBackend& backend, const ops::SampleRowsArgs& args);
std::size_t sample_scratch_bytes(const CpuBackend& backend, std::int64_t vocab);
void merge_argmax(CpuBackend& backend, const ops::MergeArgmaxArgs& args);
void lay_out_round(CpuBackend& backend, const ops::LayOutRoundArgs& args);
void verify(CpuBackend& backend, const ops::VerifyArgs& args);
void propose(CpuBackend& backend, const ops::ProposeArgs& args);

// Instruments: cpu/instruments.cpp and cpu/memory_sweep.cpp.
inline constexpr int kSweepWays = 1;
void sweep_fill(CpuBackend& backend, std::uint32_t* y, std::int64_t words);
void sweep_sum(CpuBackend& backend, const ops::SweepArgs& args);
void sweep_copy(CpuBackend& backend, const ops::SweepArgs& args);
void sweep_add(CpuBackend& backend, const ops::SweepArgs& args);
std::unique_ptr<ops::DeviceTimer> make_device_timer(CpuBackend& backend, ops::Submit submit,
                                                    int calls, std::function<void()> work);
ops::MatrixRate measure_matrix_rate(CpuBackend& backend, int n);

}  // namespace tandem::cpu
