// Vocabulary-parallel embedding lookup.
#pragma once

#include <cstdint>

#include "base/types.h"
#include "kernels/backend.h"

namespace tandem::ops {

struct EmbeddingArgs {
  const std::int32_t* token_ids = nullptr;  // [num_rows]
  int num_rows = 0;
  const void* table = nullptr;  // [shard_rows, hidden], BF16 or F32
  DType table_dtype = DType::kBF16;
  std::int64_t shard_begin = 0;  // first vocabulary id of this rank's shard
  std::int64_t shard_rows = 0;
  int hidden = 0;
  float* out = nullptr;  // [num_rows, hidden]; rows of ids outside the shard are written as +0
};

void embedding(Backend& backend, const EmbeddingArgs& args);

}  // namespace tandem::ops
