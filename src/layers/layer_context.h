// What every layer needs in a forward pass: the device, the tensor-parallel group, the activations'
// type and the scratch arena. Passed by reference; owned by the engine.
#pragma once

#include "base/types.h"
#include "kernels/backend.h"
#include "kernels/ops/batch_view.h"
#include "kernels/ops/kv_pages.h"
#include "layers/scratch.h"
#include "parallel/device_comm.h"

namespace tandem {

struct LayerContext {
  Backend& backend;
  DeviceComm& comm;
  Scratch& scratch;
  DType activations = DType::kBF16;                     // BF16 (production) or F32
  ops::RowClass row_class = ops::RowClass::kGenerated;  // of the rows at work

  LayerContext of_rows(ops::RowClass rows) const {
    LayerContext context = *this;
    context.row_class = rows;
    return context;
  }
};

// Rows that a layer reads: x times its row's factor (ops/rms_norm.h).
struct LayerInput {
  const void* x = nullptr;             // [rows, width], in the activations' type
  const float* row_factors = nullptr;  // [rows]; nullptr: 1
  int rows = 0;
};

// What sizes depend on; equal on all ranks, fixed for the life of the engine.
struct EngineShape {
  int max_sequences = 0;   // slots
  int max_rows = 0;        // rows of the largest forward pass
  int max_round_rows = 0;  // generated rows of one slot in one pass
  int num_pages = 0;
  int page_tokens = 0;
  int pages_per_sequence = 0;
  int num_snapshots = 0;     // recurrent states kept for the prefix cache
  bool open_blocks = false;  // prompt chunks may end inside a block of 64
  DType activations = DType::kBF16;
  ops::KvFormat kv_format = ops::KvFormat::kBf16;
  ops::KvFormat drafter_kv_format = ops::KvFormat::kBf16;  // of a drafter's own layers
};

}  // namespace tandem
