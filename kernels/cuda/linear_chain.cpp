#include "kernels/cuda/linear_chain.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/rms_norm_rows.h"

namespace tandem::cuda {

ChainPlan LinearChain::plan(std::span<const Link> links) const {
  ChainLink shapes[kChainMaxLinks];
  for (std::size_t i = 0; i < links.size(); ++i) shapes[i] = {links[i].linears(), links[i].order};
  return plan_chain({shapes, links.size()}, backend_.limits().num_processors,
                    backend_.limits().shared_bytes_per_block);
}

void LinearChain::add_linears(std::span<const ops::LinearArgs> group, const LinearOrder& order,
                              bool beside_last) {
  Link link;
  std::copy(group.begin(), group.end(), link.group);
  link.count = group.size();
  link.order = order;
  if (count_ > 0) {
    // All links have as many rows, and leave the ring enough stages together.
    bool fits = count_ < kChainMaxLinks && links_[0].group[0].num_rows == group.front().num_rows;
    if (fits) {
      links_[count_] = link;
      fits = chain_streams(plan({links_, count_ + 1}));
    }
    // A norm that waits goes on waiting: it may begin a chain, too.
    if (!fits) {
      const auto norm = std::exchange(norm_, std::nullopt);
      launch();
      norm_ = norm;
    }
  }
  link.follows = count_ > 0 && !beside_last;
  link.norm = std::exchange(norm_, std::nullopt);
  if (link.norm && link.norm->num_rows != group.front().num_rows) {
    // Not the norm of this x.
    norm_ = std::exchange(link.norm, std::nullopt);
    launch();
    link.follows = false;
  }
  links_[count_++] = link;
  if (!joins_) launch();
}

bool LinearChain::add_norm(const ops::ResidualRmsNormArgs& args) {
  if (!joins_) return false;
  if (args.residual_dtype != DType::kBF16 || args.num_rows > kStreamMaxRows) return false;
  if (!has_wide_rows(args)) return false;
  if (norm_) launch();
  norm_ = args;
  return true;
}

bool LinearChain::add_silu(const ops::SiluMulArgs& args) {
  if (count_ == 0 || norm_) return false;
  Link& link = links_[count_ - 1];
  if (link.silu || link.count != 2 || args.dtype != DType::kBF16) return false;
  const auto is_output = [&](const ops::LinearArgs& linear, const void* y) {
    return linear.y == y && linear.y_dtype == DType::kBF16 && linear.y_stride == args.width &&
           linear.weight.out_features == args.width && linear.num_rows == args.num_rows;
  };
  if (!is_output(link.group[0], args.gate) || !is_output(link.group[1], args.up)) return false;
  // In place: a block gates its outputs while others still read x.
  if (args.y != args.gate && args.y != args.up) return false;
  link.silu = args;
  return true;
}

void LinearChain::launch() {
  const std::size_t count = std::exchange(count_, 0);
  const auto norm = std::exchange(norm_, std::nullopt);
  if (count > 0) {
    const std::span<const Link> links(links_, count);
    linear_stream(backend_, links, plan(links));
  }
  if (norm) residual_rms_norm_alone(backend_, *norm);
}

void LinearChain::discard() noexcept {
  count_ = 0;
  norm_.reset();
}

}  // namespace tandem::cuda
