// What the multiplying warps of a block of linear_stream.cu do together, between links.
#pragma once

#include "kernels/cuda/device/grid_gate.cuh"
#include "kernels/cuda/linear_stream_ring.cuh"

namespace tandem::cuda::stream {

static_assert(kNormWarps <= kStreamWarps && kNormWarps <= kStreamCodeWarps);

// The warps that multiply, all of them.
class Team {
 public:
  __device__ explicit Team(const Args& args)
      : args_(args), threads_(args.ring.warps * kWarp), is_first_(threadIdx.x == 0) {}

  // What the kernels before have written can be seen by the first thread from here.
  __device__ __forceinline__ void begin(const Ring& ring) const {
    if (!is_first_) return;
    wait_for_previous_kernel();
    // Nobody finds a factor before all blocks have come to the input gate of a norm.
    *ring.factor_ticket = read_gate(args_.factor_gate);
  }

  __device__ __forceinline__ void sync() const {
    asm volatile("bar.sync 1, %0;" ::"r"(threads_) : "memory");
  }

  // What they have written can be read by the block, and by whoever learns of it from here.
  __device__ __forceinline__ void finish_writing() const {
    publish_to_copies();
    sync();
  }

  // y of the rows that the block has the gates of.
  __device__ __forceinline__ void silu_own_outputs(const Link& link) const {
    const int outs = link.plan.sweeps * link.plan.box_rows[0];
    const int first = (static_cast<int>(blockIdx.x) - link.plan.first_block) * outs;
    const int count = min(outs, link.silu.width - first);
    for (int i = static_cast<int>(threadIdx.x); i < count * args_.num_rows; i += threads_) {
      const int row = i / count;
      const std::int64_t at = std::int64_t{row} * link.silu.width + first + (i - row * count);
      const float gate = load_float(static_cast<const bf16*>(link.silu.gate) + at);
      const float up = load_float(static_cast<const bf16*>(link.silu.up) + at);
      store_float(silu(gate) * up, static_cast<bf16*>(link.silu.y) + at);
    }
  }

  // Makes the link's x if nobody has, comes to the gate behind it and leaves the producers to pass
  // it; the team may go ahead.
  __device__ __forceinline__ void make_inputs(const Link& link, int number,
                                              const Ring& ring) const {
    Barrier& inputs = ring.inputs[number];
    if (link.has_norm && !link.is_folded) {
      fold_share(link.norm);
      finish_writing();
    }
    if (is_first_) {
      ring.input_tickets[number] = arrive_at_gate(args_.input_gate);
      ring.arrived[number].arrive();
      // Without stages to wait for it would come to the next gate before this one has opened.
      if (!link.works()) inputs.wait(0);
    }
    if (link.has_norm) find_factors(link.norm, ring, inputs);
  }

 private:
  // A block those of a row. Of the last blocks, because they have the fewest outputs (the very last
  // one none, choose_blocks()).
  __device__ __forceinline__ void find_factors(const ops::ResidualRmsNormArgs& a, const Ring& ring,
                                               Barrier& inputs) const {
    const int first_row = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    if (first_row >= a.num_rows || threadIdx.x >= kNormThreads) return;
    const auto sync = [] { asm volatile("bar.sync 2, %0;" ::"n"(kNormThreads) : "memory"); };
    inputs.wait(0);
    for (int row = first_row; row < a.num_rows; row += static_cast<int>(gridDim.x)) {
      const bf16* residual = static_cast<const bf16*>(a.residual) + std::int64_t{row} * a.width;
      const auto read = [&](int i) { return RowAccess<true>::load(residual, i, a.width); };
      HeldGroups held;
#pragma unroll
      for (int n = 0; n < kNormHeld; ++n) held.of[n] = read(held_element(n));
      const float factor = row_factor(held, a.width, a.eps, read, ring.norm_sums, sync);
      if (is_first_) a.row_factors[row] = factor;
      if (row + static_cast<int>(gridDim.x) < a.num_rows) sync();  // the sums have been read
    }
    if (is_first_) {
      const int blocks = min(a.num_rows, static_cast<int>(gridDim.x));
      arrive_at_gate(args_.factor_gate, first_row == 0, blocks);
    }
  }

  // This block's share of the elements, by the last threads: the first one has other things to do.
  // Of a chain's first link, since others have been folded.
  __device__ __forceinline__ void fold_share(const ops::ResidualRmsNormArgs& a) const {
    using Access = RowAccess<true>;
    const int row_groups = a.width / kNormGroup, groups = a.num_rows * row_groups;
    const int share = (groups + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
    const int first = static_cast<int>(blockIdx.x) * share, end = min(first + share, groups);
    const int thread = threads_ - 1 - static_cast<int>(threadIdx.x);
    for (int n = first + thread; n < end; n += threads_) {
      const std::int64_t row_begin = std::int64_t{n / row_groups} * a.width;
      const int i = n % row_groups * kNormGroup;
      const Four weight = Access::load(a.weight, i, a.width);
      wait_for_previous_kernel();
      bf16* residual = static_cast<bf16*>(a.residual) + row_begin;
      Four v = Access::load(a.delta + row_begin, i, a.width);
      if (a.update == ops::ResidualUpdate::kAdd) {
        const Four old = Access::load(residual, i, a.width);
#pragma unroll
        for (int j = 0; j < kNormGroup; ++j) v.of[j] = old.of[j] + v.of[j];
      }
      v = Access::store(v, residual, i, a.width);
#pragma unroll
      for (int j = 0; j < kNormGroup; ++j) v.of[j] = v.of[j] * (1.0f + weight.of[j]);
      Access::store(v, static_cast<bf16*>(a.y) + row_begin, i, a.width);
    }
  }

  const Args& args_;
  int threads_;
  bool is_first_;
};

}  // namespace tandem::cuda::stream
