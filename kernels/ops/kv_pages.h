// The pages that keys and values of an attention layer are kept in, and what is stored in them.
#pragma once

#include <cstdint>

#include "base/types.h"

namespace tandem::ops {

enum class KvFormat {
  kBf16,
  kF32,
  // E4M3 codes; a value is code * scale, code = to_e4m3(x / scale), all in fp32.
  kFp8Dynamic,  // a scale for each entry and KV head, made when it is written: kv_entry_scale()
  kFp8Static,   // a scale for each KV head, given
};

constexpr bool is_fp8(KvFormat format) {
  return format == KvFormat::kFp8Dynamic || format == KvFormat::kFp8Static;
}

constexpr DType kv_dtype(KvFormat format) {
  if (is_fp8(format)) return DType::kF8E4M3;
  return format == KvFormat::kF32 ? DType::kF32 : DType::kBF16;
}

// Of an entry's scale in a plane, in bytes; 0 where it has none of its own.
constexpr std::int64_t kv_scale_bytes(KvFormat format) {
  return format == KvFormat::kFp8Dynamic ? static_cast<std::int64_t>(sizeof(float)) : 0;
}

// kFp8Dynamic: maps the entry's largest magnitude to the largest code. The lower bound keeps x /
// scale defined for zeros. One division, rounded once: the bits depend on the entry's values alone.
// A NaN counts as the largest, so that all of the entry reads as NaN. (With a given scale it is
// stored as NaN, and a kernel may read that as 480 times the scale.)
constexpr float kv_entry_scale(float largest) {
  const float scale = largest / kE4m3Max;
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

// Pages of one attention layer. Two planes of the same layout; row (page, KV head, token) of a
// plane is an entry's values of one head.
struct KvPages {
  void* k_pages = nullptr;  // [num_pages, num_kv_heads, page_tokens, head_dim] of kv_dtype(format)
  void* v_pages = nullptr;  // [num_pages, num_kv_heads, page_tokens, head_dim]
  // FP8 only, planes of their own, so that codes stay aligned. kFp8Dynamic: [num_pages,
  // num_kv_heads, page_tokens], written with the codes; kFp8Static: [num_kv_heads], read only.
  float* k_scales = nullptr;
  float* v_scales = nullptr;
  KvFormat format = KvFormat::kBf16;
  int num_pages = 0;
  int num_kv_heads = 0;  // of this rank
  int page_tokens = 0;
  int head_dim = 0;
};

}  // namespace tandem::ops
