// Random weights in any storage format, on the host: packed as a kernel reads them, and as numbers
// for the check of its result. Block sizes and scale types are those of published checkpoints.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops/linear.h"

namespace tandem {

struct GemmShape {
  std::int64_t out_features = 0;  // N
  std::int64_t in_features = 0;   // K
  std::string name = {};          // "mlp gate, up"
  int most_rows = 1 << 20;        // more are not asked of it: logits are wanted for few rows
};

class BenchWeights {
 public:
  BenchWeights(ops::WeightFormat format, const GemmShape& shape);

  // The argument of ops::linear(), without pointers.
  const ops::LinearWeight& layout() const { return layout_; }
  const std::vector<std::byte>& codes() const { return codes_; }
  const std::vector<std::byte>& scales() const { return scales_; }  // empty for plain formats
  std::int64_t bytes() const { return static_cast<std::int64_t>(codes_.size() + scales_.size()); }
  // W[n, k] as the format defines it.
  double value(std::int64_t n, std::int64_t k) const;

 private:
  double scale(std::int64_t n, std::int64_t k) const;

  ops::LinearWeight layout_;
  std::vector<std::byte> codes_;
  std::vector<std::byte> scales_;
};

std::string_view format_name(ops::WeightFormat format);  // "bf16", "fp8_block", ...
ops::WeightFormat format_named(std::string_view name);   // its reverse
// Every format that the backend runs.
std::vector<ops::WeightFormat> supported_formats(const Backend& backend);

}  // namespace tandem
