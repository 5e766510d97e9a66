#include "speculative/mtp.h"

#include <algorithm>

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
      head_input_(allocator.take(parts::kActivations,
                                 static_cast<std::size_t>(shape.max_sequences * row_bytes_))),
      logits_(allocator.take_array<float>(parts::kActivations,
                                          shape.max_sequences * model.vocab_shard().padded_rows)),
      last_rows_(allocator.take_array<std::int32_t>(parts::kHostTables, shape.max_sequences)),
      ids_(static_cast<std::size_t>(shape.max_sequences)) {
  still_.reserve(static_cast<std::size_t>(shape.max_sequences));
}

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

void MtpDrafter::draft(const LayerContext& context, std::span<const DraftRequest> requests,
                       const void* hidden) {
  if (requests.empty()) return;
  catch_up(context, requests, hidden);
  still_.clear();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    requests[i].drafts->clear();
    if (requests[i].num_drafts == 0) continue;
    const auto& segment = batch_.segment(static_cast<int>(i));
    last_rows_[still_.size()] = segment.first_row + segment.num_rows - 1;
    still_.push_back(requests[i]);
  }
  propose(context, still_);

  for (int step = 1; step < max_drafts_; ++step) {
    // Requests with enough drafts drop out; the others' outputs become the inputs of one row each.
    batch_.clear(ops::RowClass::kGenerated);
    std::size_t kept = 0;
    for (std::size_t i = 0; i < still_.size(); ++i) {
      if (still_[i].num_drafts <= step) continue;
      const DraftRequest request = still_[i];
      context.backend.copy(row(input_, static_cast<std::int64_t>(kept)),
                           row(output_, last_rows_[i]), static_cast<std::size_t>(row_bytes_));
      batch_.add_segment(request.slot, request.first_position +
                                           static_cast<int>(request.tokens.size()) - 1 + step);
      batch_.add_row(request.drafts->back());
      still_[kept++] = request;
    }
    still_.resize(kept);
    if (still_.empty()) break;
    model_.mtp_head()->forward(context, batch_.upload(context.backend), input_, output_);
    for (std::size_t i = 0; i < kept; ++i) last_rows_[i] = static_cast<std::int32_t>(i);
    propose(context, still_);
  }
}

void MtpDrafter::catch_up(const LayerContext& context, std::span<const DraftRequest> requests,
                          const void* hidden) {
  context.backend.synchronize();  // the arrays may still be read
  batch_.clear(ops::RowClass::kGenerated);
  for (const auto& request : requests) {
    const int first_row = batch_.num_rows();
    batch_.add_segment(request.slot, request.first_position);
    for (const auto token : request.tokens) batch_.add_row(token);
    const void* source = row(carry_, request.slot);
    if (request.first_hidden_row != DraftRequest::kCarriedHidden) {
      source = static_cast<const std::byte*>(hidden) + request.first_hidden_row * row_bytes_;
    } else {
      TANDEM_CHECK(request.tokens.size() == 1);
    }
    context.backend.copy(row(input_, first_row), source,
                         request.tokens.size() * static_cast<std::size_t>(row_bytes_));
  }
  model_.mtp_head()->forward(context, batch_.upload(context.backend), input_, output_);
}

void MtpDrafter::propose(const LayerContext& context, std::span<const DraftRequest> requests) {
  if (requests.empty()) return;
  const int n = static_cast<int>(requests.size());
  ops::gather_rows(context.backend, {.x = output_,
                                     .rows = last_rows_,
                                     .num_rows = n,
                                     .row_bytes = row_bytes_,
                                     .y_stride_bytes = row_bytes_,
                                     .y = head_input_});
  model_.logits(context, head_input_, n, logits_);
  sampler_.argmax(context, logits_, n, ids_);
  for (int i = 0; i < n; ++i) {
    requests[static_cast<std::size_t>(i)].drafts->push_back(ids_[static_cast<std::size_t>(i)]);
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
