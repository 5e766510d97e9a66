// How each weight of a checkpoint is stored. The decision comes from the tensor itself, its
// siblings, dtypes and shapes; the declaration in the JSON files only has to agree, apart from
// contradictions known from published checkpoints. The arithmetic of the formats is dequantize.h's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fault_list.h"

namespace tandem {

enum class WeightFormat {
  kBf16,
  kF32,
  kF16,
  kFp8Block,     // E4M3 codes, one scale per block_rows x block_cols
  kFp8Tensor,    // E4M3 codes, one scale (stacked experts: one per matrix)
  kFp8Channel,   // E4M3 codes, one scale per row
  kNvfp4,        // E2M1 pairs, E4M3 scale per 16 columns, one second-level scale
  kMxfp4,        // E2M1 pairs, E8M0 scale per 32 columns
  kInt8Channel,  // int8 codes, one scale per row
  kInt8Group,    // int8 codes, one scale per block_cols columns
};

std::string_view format_name(WeightFormat format);  // "fp8 block", ...
constexpr bool is_plain(WeightFormat f) {
  return f == WeightFormat::kBf16 || f == WeightFormat::kF32 || f == WeightFormat::kF16;
}

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
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t matrix_rows = 0;  // rows == num_matrices * matrix_rows
  std::int64_t block_rows = 1;   // elements that share one scale; edge blocks may be partial
  std::int64_t block_cols = 1;

  std::int64_t numel() const { return rows * cols; }
};

// What the JSON files declare. Opaque here: the rules are matched by module name.
class QuantDeclaration {
 public:
  // What is declared for one module. `format` empty: excluded from quantization.
  struct Rule {
    std::optional<WeightFormat> format;
    std::int64_t block_rows = 0;  // 0: not declared
    std::int64_t block_cols = 0;
    bool by_name = false;  // listed by its own name, not through a default or a pattern
  };

  QuantDeclaration();
  ~QuantDeclaration();
  QuantDeclaration(QuantDeclaration&&) noexcept;
  QuantDeclaration& operator=(QuantDeclaration&&) noexcept;

  // From config.json (quantization_config, also inside text_config), else hf_quant_config.json.
  // Unknown or unsupported methods and algorithms are added to `faults`.
  static QuantDeclaration read(const std::filesystem::path& directory, FaultList& faults);

  const std::string& method() const;  // "fp8", "modelopt", "compressed-tensors", ...; empty: none
  // Empty: nothing is declared about this module.
  std::optional<Rule> rule_for(const std::string& module) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

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
