#include "kernels/cuda/linear_chain.h"

#include <algorithm>
#include <utility>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/linear_kernels.h"
#include "kernels/cuda/rms_norm_rows.h"

namespace tandem::cuda {
namespace {

// Whether a linear reads what the norm writes.
bool makes_rows_of(const ops::ResidualRmsNormArgs& norm, const ops::LinearArgs& linear) {
  return linear.x == norm.y && linear.row_factors == norm.row_factors &&
         linear.num_rows == norm.num_rows && linear.weight.in_features == norm.width &&
         (linear.num_rows == 1 || linear.x_stride == norm.width);
}

}  // namespace

ChainPlan LinearChain::plan_links(std::size_t count) const {
  ChainLink shapes[kChainMaxLinks];
  for (std::size_t i = 0; i < count; ++i) {
    shapes[i] = {links_[i].linears(), links_[i].order, links_[i].norm.has_value(),
                 i > 0 && !links_[i].follows};
  }
  return plan_chain({shapes, count}, backend_.limits().num_processors,
                    backend_.limits().shared_bytes_per_block);
}

void LinearChain::add_linears(std::span<const ops::LinearArgs> group, const LinearOrder& order,
                              bool beside_last) {
  const int num_rows = group.front().num_rows;
  if (norm_ && !makes_rows_of(*norm_, group.front())) launch();
  // All links have as many rows. A norm that waits may begin the next chain, and must if the last
  // link cannot fold its output for it.
  if (count_ == kChainMaxLinks || (count_ > 0 && links_[0].group[0].num_rows != num_rows) ||
      (count_ > 0 && norm_ && !stream_folds(links_[count_ - 1].linears(), *norm_))) {
    launch_links();
  }
  Link link;
  std::copy(group.begin(), group.end(), link.group);
  link.count = group.size();
  link.order = order;
  link.follows = count_ > 0 && !beside_last;
  link.norm = std::exchange(norm_, std::nullopt);
  links_[count_] = link;
  ChainPlan plan = plan_links(count_ + 1);
  if (count_ > 0 && !chain_streams(plan)) {  // together they leave the ring too few stages
    launch_links();
    link.follows = false;
    links_[0] = link;
    plan = plan_links(1);
  }
  links_[count_].is_folded = count_ > 0 && link.norm.has_value();
  plan_ = plan;
  ++count_;
  if (!joins_) launch();
}

bool LinearChain::add_norm(const ops::ResidualRmsNormArgs& args) {
  if (!joins_ || args.row_factors == nullptr) return false;
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

void LinearChain::launch_links() {
  // Launching asks for the stream, which launches what waits: nothing may, not even the norm
  // behind.
  const auto norm = std::exchange(norm_, std::nullopt);
  const std::size_t count = std::exchange(count_, 0);
  if (count > 0) linear_stream(backend_, {links_, count}, plan_);
  norm_ = norm;
}

void LinearChain::launch() {
  launch_links();
  if (const auto norm = std::exchange(norm_, std::nullopt))
    residual_rms_norm_alone(backend_, *norm);
}

void LinearChain::discard() noexcept {
  count_ = 0;
  norm_.reset();
}

}  // namespace tandem::cuda
