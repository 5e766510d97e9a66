#include "speculative/mtp.h"

#include <utility>

#include "kernels/ops/elementwise.h"

namespace tandem {

MtpDrafter::MtpDrafter(PartAllocator& allocator, Model& model, Sampler& sampler,
                       const EngineShape& shape, SlotTables& tables, int max_drafts)
    : model_(model),
      sampler_(sampler),
      max_drafts_(max_drafts),
      row_bytes_(model.mtp_head()->hidden_width() *
                 static_cast<std::int64_t>(dtype_bytes(shape.activations))),
      batch_(allocator, shape, tables),
      carry_(allocator.take(parts::kStates,
                            static_cast<std::size_t>(shape.max_sequences * row_bytes_))),
      snapshot_carry_(allocator.take(parts::kSnapshots,
                                     static_cast<std::size_t>(shape.num_snapshots * row_bytes_))),
      input_(allocator.take(parts::kActivations,
                            static_cast<std::size_t>(shape.max_rows * row_bytes_))),
      output_(allocator.take(parts::kActivations,
                             static_cast<std::size_t>(shape.max_rows * row_bytes_))),
      newest_(allocator.take(parts::kActivations,
                             static_cast<std::size_t>(shape.max_sequences * row_bytes_))),
      next_(allocator.take(parts::kActivations,
                           static_cast<std::size_t>(shape.max_sequences * row_bytes_))),
      logits_(allocator.take_array<float>(parts::kActivations,
                                          shape.max_sequences * model.vocab_shard().padded_rows)),
      last_rows_(allocator.take_array<std::int32_t>(parts::kActivations, shape.max_sequences)) {}

void MtpDrafter::observe_prompt(const LayerContext& context, const BatchArrays& batch,
                                const void* hidden) {
  Backend& backend = context.backend;
  for (int i = 0; i < batch.num_segments(); ++i) {
    const auto& segment = batch.segment(i);
    const auto* rows = static_cast<const std::byte*>(hidden) + segment.first_row * row_bytes_;
    backend.copy(row(input_, segment.first_row), row(carry_, segment.slot),
                 static_cast<std::size_t>(row_bytes_));
    backend.copy(row(input_, segment.first_row + 1), rows,
                 static_cast<std::size_t>((segment.num_rows - 1) * row_bytes_));
    backend.copy(row(carry_, segment.slot), rows + (segment.num_rows - 1) * row_bytes_,
                 static_cast<std::size_t>(row_bytes_));
  }
  model_.mtp_head()->forward(context, batch.view(), input_, output_);
}

void MtpDrafter::follow_round(const LayerContext& context, const ops::RoundPlaces& places,
                              int depth, const void* hidden) {
  model_.mtp_head()->forward(context, batch_.view_of_places(places.num_places, places.rows), hidden,
                             output_);
  ops::gather_rows(context.backend, {.x = output_,
                                     .rows = last_rows_,
                                     .num_rows = places.num_places,
                                     .row_bytes = row_bytes_,
                                     .y_stride_bytes = row_bytes_,
                                     .y = newest_});
  draft(context, places, depth);
}

void MtpDrafter::follow_prompt(const LayerContext& context, const ops::RoundPlaces& places,
                               int depth) {
  TANDEM_CHECK(places.rows == 1);
  ops::lay_out_round(context.backend, {.places = places, .out = batch_.device_rows()});
  ops::gather_rows(context.backend, {.x = carry_,
                                     .rows = batch_.device_rows().row_slots,
                                     .num_rows = places.num_places,
                                     .row_bytes = row_bytes_,
                                     .y_stride_bytes = row_bytes_,
                                     .y = input_});
  model_.mtp_head()->forward(context, batch_.view_of_places(places.num_places, 1), input_, newest_);
  draft(context, places, depth);
}

void MtpDrafter::draft(const LayerContext& context, const ops::RoundPlaces& places, int depth) {
  TANDEM_CHECK(depth <= max_drafts_, "{} drafts of at most {}", depth, max_drafts_);
  void* newest = newest_;
  void* next = next_;
  for (int i = 0; i < depth; ++i) {
    model_.logits(context, newest, places.num_places, logits_);
    ops::propose(context.backend,
                 {.places = places,
                  .best = sampler_.enqueue_argmax(context, logits_, places.num_places),
                  .num_ranks = context.comm.size(),
                  .index = i,
                  .next = batch_.device_rows()});
    if (i + 1 == depth) break;
    model_.mtp_head()->forward(context, batch_.view_of_places(places.num_places, 1), newest, next);
    std::swap(newest, next);
  }
}

void MtpDrafter::reset_slot(Backend& backend, int slot) {
  backend.zero(row(carry_, slot), static_cast<std::size_t>(row_bytes_));
}

void MtpDrafter::save_slot(Backend& backend, int slot, int snapshot) {
  backend.copy(row(snapshot_carry_, snapshot), row(carry_, slot),
               static_cast<std::size_t>(row_bytes_));
}

void MtpDrafter::restore_slot(Backend& backend, int slot, int snapshot) {
  backend.copy(row(carry_, slot), row(snapshot_carry_, snapshot),
               static_cast<std::size_t>(row_bytes_));
}

}  // namespace tandem
