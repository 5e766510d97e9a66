// What rounds over generated rows read and write on the device (ops/verify.h), and the host's ends
// of it: slots that join, the places of the next launch, records that come back. The device moves
// slots on by itself; the host writes one only when a sequence joins or is computed again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "kernels/ops/verify.h"
#include "layers/layer_context.h"
#include "memory/part_allocator.h"

namespace tandem {

class RoundTables {
 public:
  RoundTables(PartAllocator& allocator, const EngineShape& shape, std::int64_t num_stop_ids)
      : max_sequences_(shape.max_sequences),
        num_stop_ids_(num_stop_ids),
        host_slots_(allocator.take_array<ops::RoundSlot>(parts::kHostTables, max_sequences_)),
        host_orders_(
            allocator.take_array<std::int32_t>(parts::kHostTables, kOrders * order_length())),
        host_stop_ids_(allocator.take_array<std::int32_t>(parts::kHostTables, num_stop_ids)),
        host_records_(
            allocator.take_array<ops::RoundRecord>(parts::kHostTables, 2 * max_sequences_)),
        slots_(allocator.take_array<ops::RoundSlot>(parts::kActivations, max_sequences_)),
        order_(allocator.take_array<std::int32_t>(parts::kActivations, order_length())),
        stop_ids_(allocator.take_array<std::int32_t>(parts::kActivations, num_stop_ids)),
        records_(allocator.take_array<ops::RoundRecord>(parts::kActivations, max_sequences_)) {}
  RoundTables(const RoundTables&) = delete;
  RoundTables& operator=(const RoundTables&) = delete;

  // Before the first round.
  void clear(Backend& backend, std::span<const std::int32_t> stop_ids) {
    TANDEM_CHECK(std::ssize(stop_ids) == num_stop_ids_, "{} stop ids, {} planned", stop_ids.size(),
                 num_stop_ids_);
    backend.zero(slots_, static_cast<std::size_t>(max_sequences_) * sizeof(ops::RoundSlot));
    std::copy(stop_ids.begin(), stop_ids.end(), host_stop_ids_);
    backend.copy(stop_ids_, host_stop_ids_, stop_ids.size_bytes());
    order(backend, {}, max_sequences_, 0);
  }

  // A sequence joins the rounds enqueued from now on. Once a slot between synchronizations.
  void join(Backend& backend, int slot, const ops::RoundSlot& state) {
    host_slots_[slot] = state;
    backend.copy(slots_ + slot, host_slots_ + slot, sizeof state);
  }

  // The slots of the launches from now on, the first places first, and how many drafts they are to
  // make. At most kOrders that may not have been reached yet.
  void order(Backend& backend, std::span<const std::int32_t> slots, int num_places, int depth) {
    TANDEM_CHECK(std::ssize(slots) <= num_places && num_places <= max_sequences_,
                 "{} slots in {} of {} places", slots.size(), num_places, max_sequences_);
    std::int32_t* host = host_orders_ + next_order_ * order_length();
    next_order_ = (next_order_ + 1) % kOrders;
    host[0] = depth;
    std::fill(std::copy(slots.begin(), slots.end(), host + 1), host + 1 + num_places, ops::kNoSlot);
    backend.copy(order_, host, static_cast<std::size_t>(1 + num_places) * sizeof(std::int32_t));
  }

  ops::RoundPlaces places(int num_places, int rows) const {
    return {.num_places = num_places, .rows = rows, .slots = order_ + 1, .table = slots_};
  }
  // Everything of ops::verify that does not depend on the sampler or the drafter.
  ops::VerifyArgs verify_args(const ops::RoundPlaces& places, std::int32_t* pending_rows) const {
    ops::VerifyArgs args;
    args.places = places;
    args.stop_ids = stop_ids_;
    args.num_stop_ids = static_cast<int>(num_stop_ids_);
    args.depth = order_;
    args.pending_rows = pending_rows;
    args.records = records_;
    return args;
  }

  // Enqueues the copy of the last round's records to one of two places, so that those of the round
  // before can still be read; they are there when that point has been waited for.
  void fetch_records(Backend& backend, int num_places, int copy) {
    backend.copy(host_records_ + copy * max_sequences_, records_,
                 static_cast<std::size_t>(num_places) * sizeof(ops::RoundRecord));
  }
  const ops::RoundRecord& record(int place, int copy) const {
    return host_records_[copy * max_sequences_ + place];
  }

 private:
  // Launches of one step: what ended its prompt, what is computed again, the round. Of rounds that
  // are launched one ahead there are two.
  static constexpr int kOrders = 4;
  std::int64_t order_length() const { return 1 + max_sequences_; }  // depth, slots

  std::int64_t max_sequences_;
  std::int64_t num_stop_ids_;
  ops::RoundSlot* host_slots_;      // [max_sequences]
  std::int32_t* host_orders_;       // [kOrders, 1 + max_sequences]
  std::int32_t* host_stop_ids_;     // [num_stop_ids]
  ops::RoundRecord* host_records_;  // [2, max_sequences]
  ops::RoundSlot* slots_;           // [max_sequences]
  std::int32_t* order_;             // [1 + max_sequences] depth, then the slot of each place
  std::int32_t* stop_ids_;          // [num_stop_ids]
  ops::RoundRecord* records_;       // [max_sequences]
  int next_order_ = 0;
};

}  // namespace tandem
