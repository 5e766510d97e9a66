// The recorded outputs of the reference implementation for the tiny checkpoints
// (tests/data/reference).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace tandem::testing {

class ReferenceTensors {
 public:
  explicit ReferenceTensors(const std::string& model);

  bool has(const std::string& name) const;
  // Any float type, widened.
  std::vector<float> floats(const std::string& name) const;
  std::vector<std::int32_t> ints(const std::string& name) const;
  TensorShape shape(const std::string& name) const;

 private:
  const TensorInfo& info(const std::string& name) const;
  std::vector<char> bytes(const TensorInfo& info) const;
  SafetensorsHeader header_;
};

// Recorded greedy speculative decoding of one task (acceptance.json).
struct ReferenceRounds {
  std::vector<std::vector<std::int32_t>> drafts;  // [rounds][K]
  std::vector<int> accepted;                      // [rounds]
  std::vector<double> acceptance_by_position;     // [K], rounded to four digits
};
ReferenceRounds reference_rounds(const std::string& model, const std::string& task);

// bf16 error of the reference implementation against its own float32 run on the last 8 positions.
double reference_bf16_error(const std::string& model, const std::string& prompt);

}  // namespace tandem::testing
