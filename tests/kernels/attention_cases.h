// What the tests of attention share: pages of a few sequences in every format, batches of their
// rows, calls, and attention in double precision over what the pages hold.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "kernels/ops/paged_attention.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {

using ops::RowClass;
using ops::Segment;

struct Heads {
  int query = 0, kv = 0, dim = 0;
};

inline constexpr ops::KvFormat kKvFormats[] = {ops::KvFormat::kF32, ops::KvFormat::kBf16,
                                               ops::KvFormat::kFp8Dynamic,
                                               ops::KvFormat::kFp8Static};

// Pages of a few sequences, in shuffled order.
class Cache {
 public:
  // One plane, of keys or of values.
  struct Plane {
    Array values;  // codes, where there are scales
    Array scales;

    Plane(ops::KvFormat format, std::size_t size, std::size_t entries, int kv_heads)
        : values(ops::kv_dtype(format), size),
          scales(DType::kF32, format == ops::KvFormat::kFp8Dynamic ? entries
                              : format == ops::KvFormat::kFp8Static
                                  ? static_cast<std::size_t>(kv_heads)
                                  : 0) {}
  };

  Cache(ops::KvFormat format, const Heads& heads, int page_tokens, int sequences, int max_tokens)
      : format_(format),
        heads_(heads),
        page_tokens_(page_tokens),
        pages_per_sequence_((max_tokens + page_tokens - 1) / page_tokens),
        table_(static_cast<std::size_t>(sequences * pages_per_sequence_)),
        k_(format, plane_size(), plane_size() / static_cast<std::size_t>(heads.dim), heads.kv),
        v_(format, plane_size(), plane_size() / static_cast<std::size_t>(heads.dim), heads.kv) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
    if (format != ops::KvFormat::kFp8Static) return;
    for (int h = 0; h < heads.kv; ++h) {
      k_.scales.set(static_cast<std::size_t>(h), 0.011f * static_cast<float>(h + 1));
      v_.scales.set(static_cast<std::size_t>(h), 0.017f * static_cast<float>(h + 1));
    }
  }

  ops::KvPages pages() {
    return {.k_pages = k_.values.data(),
            .v_pages = v_.values.data(),
            .k_scales = k_.scales.size() == 0 ? nullptr : k_.scales.floats(),
            .v_scales = v_.scales.size() == 0 ? nullptr : v_.scales.floats(),
            .format = format_,
            .num_pages = static_cast<int>(table_.size()),
            .num_kv_heads = heads_.kv,
            .page_tokens = page_tokens_,
            .head_dim = heads_.dim};
  }

  std::size_t entry(int slot, int index, int kv_head) const {
    const int page =
        table_[static_cast<std::size_t>(slot * pages_per_sequence_ + index / page_tokens_)];
    return static_cast<std::size_t>(
        ((page * heads_.kv + kv_head) * page_tokens_ + index % page_tokens_) * heads_.dim);
  }

  // Fills entry `index` of every KV head with values that depend on (slot, index) only.
  void fill(int slot, int index) {
    const auto dim = static_cast<std::size_t>(heads_.dim);
    const auto seed = static_cast<std::uint64_t>(slot * 100000 + index);
    const auto values = random_normal(seed, 2 * static_cast<std::size_t>(heads_.kv) * dim);
    for (int h = 0; h < heads_.kv; ++h) {
      const float* k = values.data() + static_cast<std::size_t>(h) * dim;
      set(k_, entry(slot, index, h), h, k);
      set(v_, entry(slot, index, h), h, k + values.size() / 2);
    }
  }

  // Makes a plane's entry that begins at element `at` of the head's [head_dim] values.
  void set(Plane& plane, std::size_t at, int kv_head, const float* values) {
    const auto dim = static_cast<std::size_t>(heads_.dim);
    if (format_ == ops::KvFormat::kFp8Dynamic) {
      float largest = 0;
      for (std::size_t d = 0; d < dim; ++d) largest = std::max(largest, std::abs(values[d]));
      plane.scales.set(at / dim, ops::kv_entry_scale(largest));
    }
    const float scale = this->scale(plane, at, kv_head);
    for (std::size_t d = 0; d < dim; ++d) plane.values.set(at + d, values[d] / scale);
  }

  // What element `at` of KV head `kv_head` stands for.
  double value(const Plane& plane, std::size_t at, int kv_head) const {
    return double{plane.values[at]} * scale(plane, at, kv_head);
  }
  float scale(const Plane& plane, std::size_t at, int kv_head) const {
    switch (format_) {
      case ops::KvFormat::kFp8Dynamic:
        return plane.scales[at / static_cast<std::size_t>(heads_.dim)];
      case ops::KvFormat::kFp8Static:
        return plane.scales[static_cast<std::size_t>(kv_head)];
      default:
        return 1.0f;
    }
  }

  Plane& k() { return k_; }
  Plane& v() { return v_; }
  const Plane& k() const { return k_; }
  const Plane& v() const { return v_; }
  ops::KvFormat format() const { return format_; }
  const Heads& heads() const { return heads_; }
  int page_tokens() const { return page_tokens_; }
  int pages_per_sequence() const { return pages_per_sequence_; }
  const std::int32_t* table() const { return table_.data(); }
  void shuffle_pages(unsigned seed) {
    std::shuffle(table_.begin(), table_.end(), std::mt19937(seed));
  }

 private:
  std::size_t plane_size() const {
    return table_.size() * static_cast<std::size_t>(heads_.kv * page_tokens_ * heads_.dim);
  }

  ops::KvFormat format_;
  Heads heads_;
  int page_tokens_, pages_per_sequence_;
  Vector<std::int32_t> table_;
  Plane k_, v_;
};

struct Row {
  int slot = 0, position = 0;
};

// A batch of rows; neighbours of one sequence share a segment when `joined`.
struct Batch {
  Vector<std::int32_t> slots, positions;
  Vector<Segment> segments;

  explicit Batch(const std::vector<Row>& rows, bool joined = true) {
    for (const Row& row : rows) {
      const bool follows = joined && !slots.empty() && slots.back() == row.slot &&
                           positions.back() + 1 == row.position;
      if (follows) {
        ++segments.back().num_rows;
      } else {
        segments.push_back({.slot = row.slot,
                            .first_row = static_cast<std::int32_t>(slots.size()),
                            .num_rows = 1,
                            .start_position = row.position});
      }
      slots.push_back(row.slot);
      positions.push_back(row.position);
    }
  }

  ops::BatchView view(const Cache& cache, RowClass row_class = RowClass::kPrompt) const {
    return {.row_class = row_class,
            .num_rows = static_cast<int>(slots.size()),
            .num_segments = static_cast<int>(segments.size()),
            .positions = positions.data(),
            .row_slots = slots.data(),
            .segments = segments.data(),
            .page_table = cache.table(),
            .pages_per_sequence = cache.pages_per_sequence(),
            .page_tokens = cache.page_tokens()};
  }
};

// Query and gate of a row depend on (slot, position) only: [heads, 2 * dim].
inline std::vector<float> query_and_gate(const Heads& heads, const Row& row) {
  return random_normal(static_cast<std::uint64_t>(row.slot * 100000 + row.position + 5000000),
                       static_cast<std::size_t>(heads.query * 2 * heads.dim));
}

struct Options {
  RowClass row_class = RowClass::kPrompt;
  bool gate = true;
  bool joined = true;
  double scratch = 1;  // share of what the operator asks for
  int first_index = 0;
};

// Everything that a call points to, for one or several calls.
class Call {
 public:
  Call(Backend& backend, DType dtype, Cache& cache, const std::vector<Row>& rows,
       const Options& options)
      : backend_(backend),
        dtype_(dtype),
        cache_(cache),
        options_(options),
        batch_(rows, options.joined),
        both_(dtype, queries_and_gates(cache.heads(), rows)),
        q_(dtype, both_.size() / 2),
        out_(dtype, both_.size() / 2),
        scratch_(static_cast<std::size_t>(
            options.scratch *
            static_cast<double>(ops::paged_attention_scratch_bytes(
                backend, cache.heads().query, cache.heads().dim, static_cast<int>(rows.size()),
                std::int64_t{cache.pages_per_sequence()} * cache.page_tokens())))) {
    split();
  }

  void enqueue() {
    const Heads& heads = cache_.heads();
    ops::paged_attention(
        backend_, {.batch = batch_.view(cache_, options_.row_class),
                   .q = q_.data(),
                   .gate = options_.gate ? both_.at(static_cast<std::size_t>(heads.dim)) : nullptr,
                   .gate_head_stride = 2 * heads.dim,
                   .dtype = dtype_,
                   .num_heads = heads.query,
                   .scale = 1.0f / std::sqrt(static_cast<float>(heads.dim)),
                   .first_index = options_.first_index,
                   .pages = cache_.pages(),
                   .out = out_.data(),
                   .scratch = scratch_.empty() ? nullptr : scratch_.data(),
                   .scratch_bytes = scratch_.size()});
  }

  // Other rows, as many and in as many segments, in the same memory.
  void change(const std::vector<Row>& rows) {
    const Batch other(rows, options_.joined);
    ASSERT_EQ(other.slots.size(), batch_.slots.size());
    ASSERT_EQ(other.segments.size(), batch_.segments.size());
    std::copy(other.slots.begin(), other.slots.end(), batch_.slots.begin());
    std::copy(other.positions.begin(), other.positions.end(), batch_.positions.begin());
    std::copy(other.segments.begin(), other.segments.end(), batch_.segments.begin());
    const auto values = queries_and_gates(cache_.heads(), rows);
    for (std::size_t i = 0; i < values.size(); ++i) both_.set(i, values[i]);
    split();
  }

  std::vector<float> result() const {
    out_.expect_guards("out");
    return out_.values();
  }

 private:
  static std::vector<float> queries_and_gates(const Heads& heads, const std::vector<Row>& rows) {
    std::vector<float> both;
    for (const Row& row : rows) {
      const auto values = query_and_gate(heads, row);
      both.insert(both.end(), values.begin(), values.end());
    }
    return both;
  }

  void split() {
    const auto dim = static_cast<std::size_t>(cache_.heads().dim);
    for (std::size_t i = 0; i < q_.size(); ++i) q_.set(i, both_[i / dim * 2 * dim + i % dim]);
  }

  Backend& backend_;
  DType dtype_;
  Cache& cache_;
  Options options_;
  Batch batch_;
  Array both_, q_, out_;
  Vector<std::byte> scratch_;
};

inline std::vector<float> attend(Backend& backend, DType dtype, Cache& cache,
                                 const std::vector<Row>& rows, const Options& options = {}) {
  Call call(backend, dtype, cache, rows, options);
  call.enqueue();
  return call.result();
}

inline void expect_attention(const std::vector<float>& actual, DType dtype, const Cache& cache,
                             const std::vector<Row>& rows, const Options& options) {
  const Heads& heads = cache.heads();
  const auto dim = static_cast<std::size_t>(heads.dim);
  std::vector<double> expected, tolerance;
  for (const Row& row : rows) {
    Array both(dtype, query_and_gate(heads, row));
    for (int h = 0; h < heads.query; ++h) {
      const std::size_t base = static_cast<std::size_t>(h) * 2 * dim;
      const int kv_head = h / (heads.query / heads.kv);
      std::vector<double> scores;
      for (int j = options.first_index; j <= row.position; ++j) {
        const std::size_t entry = cache.entry(row.slot, j, kv_head);
        double dot = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          dot += double{both[base + d]} * cache.value(cache.k(), entry + d, kv_head);
        }
        scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
      }
      const double max = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& s : scores) sum += s = std::exp(s - max);
      for (std::size_t d = 0; d < dim; ++d) {
        double o = 0, magnitude = 0;
        for (std::size_t j = 0; j < scores.size(); ++j) {
          const int index = options.first_index + static_cast<int>(j);
          const double value =
              cache.value(cache.v(), cache.entry(row.slot, index, kv_head) + d, kv_head);
          o += scores[j] / sum * value;
          magnitude += scores[j] / sum * std::abs(value);
        }
        const double gate = options.gate ? 1 / (1 + std::exp(-double{both[base + dim + d]})) : 1;
        expected.push_back(o * gate);
        tolerance.push_back(2 * kFp32Formula * magnitude);
      }
    }
  }
  expect_near(actual, expected, tolerance, dtype,
              fmt::format("{} heads on {} of {}", heads.query, heads.kv, heads.dim));
}

}  // namespace tandem::testing
