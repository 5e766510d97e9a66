// How each weight of a checkpoint is stored. The decision comes from the tensor itself, its
// siblings, dtypes and shapes; the declaration in the JSON files only has to agree, apart from
// contradictions known from published checkpoints. The arithmetic of the formats is dequantize.h's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/quant_declaration.h"

namespace tandem {

// compressed-tensors stores the reciprocal of ModelOpt's second-level scale.
enum class GlobalScale { kNone, kMultiply, kReciprocal };

// One weight: what its values are and which tensors hold them. Logical shape [rows, cols]; leading
// dimensions of stacked experts are flattened into rows, matrix_rows being those of one matrix.
struct WeightLayout {
  WeightFormat format = WeightFormat::kBf16;
  std::string module;  // "model.layers.0.mlp.down_proj"; the tensor's name if it has no module
  std::string weight;  // tensor with the codes or the plain values
  std::string scale;   // tensor with the scales; empty for plain formats
  std::string global_scale;  // NVFP4's second level; empty otherwise
  std::string input_scale;   // static activation scale if stored; weight-only kernels ignore it
  GlobalScale global_scale_use = GlobalScale::kNone;
  DType scale_dtype = DType::kF32;  // of the values: MXFP4 scales stored as U8 are E8M0
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t matrix_rows = 0;  // rows == num_matrices * matrix_rows
  std::int64_t block_rows = 1;   // elements that share one scale; edge blocks may be partial
  std::int64_t block_cols = 1;

  std::int64_t numel() const { return rows * cols; }
};

// Name under which a model asks for the weight: "….weight", also where the file packs the codes as
// "….weight_packed".
std::string request_name(const WeightLayout& layout);

struct CheckpointFormats {
  std::string declared_method;         // empty: none
  std::vector<WeightLayout> weights;   // by tensor name
  std::vector<std::string> kv_scales;  // tensors with scales of the KV cache
  std::vector<std::string> others;     // integer tables and the like: no weights
  std::vector<std::string> notices;    // tolerated disagreements with the declaration
};

// Classifies every tensor. Contradictions are added to `faults`, naming tensor and file.
CheckpointFormats classify_weights(const Checkpoint& checkpoint, const QuantDeclaration& declared,
                                   FaultList& faults);
// Reads the declaration and classifies; throws Error{kConfiguration} that lists all faults.
CheckpointFormats read_weight_formats(const Checkpoint& checkpoint);

}  // namespace tandem
