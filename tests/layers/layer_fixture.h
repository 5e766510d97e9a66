// What tests of layers need in place of an engine: memory that shows what was never written, and
// weights that are a function of their name, handed to each rank as the loader would.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/loader.h"
#include "layers/weight_source.h"
#include "memory/part_allocator.h"

namespace tandem::testing {

// Every array filled with 0xff: NaN in all float types, -1 in integers.
class HeapAllocator final : public PartAllocator {
 public:
  void* take(std::string_view part, std::size_t bytes) override {
    const std::size_t size = align_up(bytes == 0 ? 1 : bytes);
    blocks_.emplace_back(static_cast<std::byte*>(std::aligned_alloc(kPartAlignment, size)));
    std::memset(blocks_.back().get(), 0xff, size);
    bytes_by_part_[std::string(part)] += bytes;
    return blocks_.back().get();
  }
  std::size_t bytes(std::string_view part) const {
    const auto it = bytes_by_part_.find(std::string(part));
    return it == bytes_by_part_.end() ? 0 : it->second;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
  std::map<std::string, std::size_t> bytes_by_part_;
};

// Every weight stored in the same way; nullopt: none is there.
class StoredAs final : public WeightSource {
 public:
  explicit StoredAs(std::optional<StoredFormat> format) : format_(format) {}
  explicit StoredAs(WeightFormat format) : StoredAs(StoredFormat{.format = format}) {}

  std::optional<StoredFormat> find(const std::string&) const override { return format_; }
  float factor(const std::string&, std::int64_t) const override { return kFactor; }
  static constexpr float kFactor = 0.125f;
  std::vector<KvScales> kv_scales(const std::vector<std::string>& prefixes, std::int64_t heads,
                                  UnitScales) const override {
    const std::vector<float> scales(static_cast<std::size_t>(heads), kFactor);
    return std::vector<KvScales>(prefixes.size(), {.k = scales, .v = scales});
  }

 private:
  std::optional<StoredFormat> format_;
};

// Element `index` of the whole tensor `name`, about uniform in (-1, 1) * scale, exact in BF16.
float weight_value(const std::string& name, std::int64_t index, float scale);
// The whole tensor.
std::vector<float> whole_weight(const std::string& name, std::int64_t count, float scale);
// Writes every requested slice of those tensors to its destination.
void fill_weights(const std::vector<TensorRequest>& requests, float scale);

}  // namespace tandem::testing
