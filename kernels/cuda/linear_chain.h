// Operators of few rows that wait to be launched as one kernel: linears, the norms of the residual
// stream before them, and the gating of their outputs (linear_stream.cu). Whoever asks the backend
// for its stream, to launch something else, to synchronize or to end a capture, has them launched
// first, so it shows in nothing but the time. Results are to the bit those of the operators one by
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/cuda/linear_stream_plan.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/rms_norm.h"

namespace tandem::cuda {

class CudaBackend;

class LinearChain {
 public:
  struct Link {
    ops::LinearArgs group[ops::kMaxLinearGroup];  // of one x, format and order
    std::size_t count = 0;
    LinearOrder order;
    bool follows = false;                          // its x may be what the link before writes
    std::optional<ops::ResidualRmsNormArgs> norm;  // makes x, and leaves its rows' factors
    bool is_folded = false;                        // by the link before, whose output it takes
    std::optional<ops::SiluMulArgs> silu;          // of the first two outputs

    std::span<const ops::LinearArgs> linears() const { return {group, count}; }
  };

  // `joins`: or else every operator is launched at once, by itself.
  LinearChain(const CudaBackend& backend, bool joins) : backend_(backend), joins_(joins) {}

  // Linears that stream_serves(), of one x, format and order. `beside_last`: of the same x as those
  // that were added last, by the same call of linear_group().
  void add_linears(std::span<const ops::LinearArgs> group, const LinearOrder& order,
                   bool beside_last);
  // False if that must be launched by itself. Blocks share a norm's elements, so it must leave its
  // rows' factors to linears.
  bool add_norm(const ops::ResidualRmsNormArgs& args);
  bool add_silu(const ops::SiluMulArgs& args);

  void launch();
  void discard() noexcept;

 private:
  ChainPlan plan_links(std::size_t count) const;  // the first of links_
  void launch_links();

  const CudaBackend& backend_;
  bool joins_;
  Link links_[kChainMaxLinks];
  std::size_t count_ = 0;
  ChainPlan plan_;                                // of these
  std::optional<ops::ResidualRmsNormArgs> norm_;  // behind the last link, so far of no linear
};

}  // namespace tandem::cuda
