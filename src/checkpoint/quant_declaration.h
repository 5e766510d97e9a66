// What config.json or hf_quant_config.json declare about the quantization of each module. Only
// parsed here; whether the tensors agree is quant_format.h's to find out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

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

class QuantDeclaration {
 public:
  // What is declared for one module. `format` empty: excluded from quantization.
  struct Rule {
    std::optional<WeightFormat> format;
    std::int64_t block_rows = 0;  // 0: not declared
    std::int64_t block_cols = 0;
    bool by_name = false;  // listed by its own name, not through a default or a pattern
  };

  struct Impl;

  QuantDeclaration();
  ~QuantDeclaration();
  QuantDeclaration(QuantDeclaration&&) noexcept;
  QuantDeclaration& operator=(QuantDeclaration&&) noexcept;

  // From config.json (quantization_config, also inside text_config), else hf_quant_config.json.
  // Unknown or unsupported methods and algorithms are added to `faults`.
  static QuantDeclaration read(const std::filesystem::path& directory, FaultList& faults);

  const std::string& method() const;  // "fp8", "modelopt", "compressed-tensors", ...; empty: none
  // What the scales of the KV cache are made for: "FP8", "NVFP4", "INT8", ...; empty: not declared.
  const std::string& kv_cache() const;
  // Empty: nothing is declared about this module.
  std::optional<Rule> rule_for(const std::string& module) const;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem
