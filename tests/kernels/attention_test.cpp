// attention_prep and paged_attention, on the same pages.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "kernels/backend.h"
#include "kernels/ops/attention_prep.h"
#include "kernels/ops/paged_attention.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::RowClass;
using ops::Segment;

struct Heads {
  int query = 0, kv = 0, dim = 0;
};

// Pages of a few sequences, in shuffled order, and batches of their rows.
class Cache {
 public:
  Cache(DType dtype, const Heads& heads, int page_tokens, int sequences, int max_tokens)
      : heads_(heads),
        page_tokens_(page_tokens),
        pages_per_sequence_((max_tokens + page_tokens - 1) / page_tokens),
        table_(static_cast<std::size_t>(sequences * pages_per_sequence_)),
        k_(dtype, plane_size()),
        v_(dtype, plane_size()) {
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(7));
  }

  ops::KvPages pages() {
    return {.k_pages = k_.data(),
            .v_pages = v_.data(),
            .dtype = k_.dtype(),
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
      for (std::size_t d = 0; d < dim; ++d) {
        const std::size_t at = static_cast<std::size_t>(h) * dim + d;
        k_.set(entry(slot, index, h) + d, values[at]);
        v_.set(entry(slot, index, h) + d, values[values.size() / 2 + at]);
      }
    }
  }

  Array& k() { return k_; }
  Array& v() { return v_; }
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

  Heads heads_;
  int page_tokens_, pages_per_sequence_;
  Vector<std::int32_t> table_;
  Array k_, v_;
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
std::vector<float> query_and_gate(const Heads& heads, const Row& row) {
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

std::vector<float> attend(Backend& backend, DType dtype, Cache& cache, const std::vector<Row>& rows,
                          const Options& options = {}) {
  Call call(backend, dtype, cache, rows, options);
  call.enqueue();
  return call.result();
}

void expect_attention(const std::vector<float>& actual, DType dtype, const Cache& cache, Array& k,
                      Array& v, const std::vector<Row>& rows, const Options& options) {
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
        double dot = 0;
        for (std::size_t d = 0; d < dim; ++d) {
          dot += double{both[base + d]} * k[cache.entry(row.slot, j, kv_head) + d];
        }
        scores.push_back(dot / std::sqrt(static_cast<double>(dim)));
      }
      const double max = scores.empty() ? 0 : *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& s : scores) sum += s = std::exp(s - max);
      for (std::size_t d = 0; d < dim; ++d) {
        double o = 0, magnitude = 0;
        for (std::size_t j = 0; j < scores.size(); ++j) {
          const double value =
              v[cache.entry(row.slot, options.first_index + static_cast<int>(j), kv_head) + d];
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

TEST(PagedAttention, EqualsSoftmaxAttention) {
  const auto backend = test_backend(2);
  for (const Heads& heads :
       {Heads{2, 2, 64}, Heads{4, 2, 128}, Heads{8, 1, 256}, Heads{6, 1, 16}, Heads{7, 1, 48}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const DType page_dtype : {DType::kF32, DType::kBF16}) {
        for (const int page_tokens : {4, 16, 64}) {
          Cache cache(page_dtype, heads, page_tokens, 2, 600);
          for (int j = 0; j < 600; ++j) cache.fill(0, j);
          for (int j = 0; j < 40; ++j) cache.fill(1, j);
          const std::vector<Row> rows{{0, 0},  {0, 1},   {1, 15},  {1, 16}, {1, 17},
                                      {0, 99}, {0, 255}, {0, 256}, {0, 599}};
          for (const Options& options :
               {Options{}, Options{.row_class = RowClass::kGenerated}, Options{.gate = false},
                Options{.first_index = 1}, Options{.first_index = 300},
                Options{.row_class = RowClass::kGenerated, .gate = false, .first_index = 300}}) {
            expect_attention(attend(*backend, dtype, cache, rows, options), dtype, cache, cache.k(),
                             cache.v(), rows, options);
          }
        }
      }
    }
  }
}

// Lengths around the borders of tiles, partitions and spans; groups of six heads and of one; a
// segment of several rows, more columns than one block takes.
TEST(PagedAttention, AwkwardLengths) {
  const auto backend = test_backend(2);
  for (const Heads& heads : {Heads{12, 2, 256}, Heads{2, 2, 128}, Heads{40, 1, 64}}) {
    Cache cache(DType::kBF16, heads, 16, 2, 1040);
    for (int j = 0; j < 1040; ++j) cache.fill(0, j), cache.fill(1, j);
    std::vector<Row> rows{{0, 0}, {1, 14}, {0, 15}, {1, 16}, {0, 63}, {1, 64}, {0, 127}, {1, 128}};
    for (int position = 1020; position < 1027; ++position) rows.push_back({0, position});
    for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
      const Options options{.row_class = row_class};
      expect_attention(attend(*backend, DType::kBF16, cache, rows, options), DType::kBF16, cache,
                       cache.k(), cache.v(), rows, options);
    }
  }
}

TEST(PagedAttention, LongContexts) {
  const auto backend = test_backend(2);
  const Heads heads{6, 1, 16};
  Cache cache(DType::kBF16, heads, 64, 1, 70000);
  const auto values = random_normal(17, 2 * cache.k().size());
  for (std::size_t i = 0; i < cache.k().size(); ++i) {
    cache.k().set(i, values[2 * i]);
    cache.v().set(i, values[2 * i + 1]);
  }
  const std::vector<Row> rows{{0, 4095}, {0, 4096}, {0, 32768}, {0, 69998}, {0, 69999}};
  for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
    const Options options{.row_class = row_class};
    const auto out = attend(*backend, DType::kBF16, cache, rows, options);
    expect_attention(out, DType::kBF16, cache, cache.k(), cache.v(), rows, options);
    const Options alone{.row_class = row_class, .scratch = 0};
    EXPECT_EQ(first_difference(out, attend(*backend, DType::kBF16, cache, rows, alone)), "");
  }
}

// More segments than a warp has lanes.
TEST(PagedAttention, ManySegments) {
  const auto backend = test_backend(2);
  Cache cache(DType::kBF16, {6, 1, 64}, 16, 3, 704);
  for (int slot = 0; slot < 3; ++slot) {
    for (int j = 0; j < 704; ++j) cache.fill(slot, j);
  }
  std::vector<Row> rows;
  for (int i = 0; i < 75; ++i) rows.push_back({i % 3, i * 37 % 704});
  for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
    const Options options{.row_class = row_class};
    expect_attention(attend(*backend, DType::kBF16, cache, rows, options), DType::kBF16, cache,
                     cache.k(), cache.v(), rows, options);
  }
}

// Memory that no one has written may hold NaN.
TEST(PagedAttention, EntriesThatNobodySeesMayHoldAnything) {
  const auto backend = test_backend(2);
  Cache cache(DType::kBF16, {6, 1, 64}, 16, 1, 320);
  const auto dim = static_cast<std::size_t>(cache.heads().dim);
  for (int j = 0; j < 320; ++j) cache.fill(0, j);
  for (int j = 0; j < 320; ++j) {
    if (j >= 3 && j < 290) continue;
    for (std::size_t d = 0; d < dim; ++d) {
      cache.k().set(cache.entry(0, j, 0) + d, std::nanf(""));
      cache.v().set(cache.entry(0, j, 0) + d, std::nanf(""));
    }
  }
  const std::vector<Row> rows{{0, 5}, {0, 288}, {0, 289}};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
      const Options options{.row_class = row_class, .first_index = 3};
      expect_attention(attend(*backend, dtype, cache, rows, options), dtype, cache, cache.k(),
                       cache.v(), rows, options);
    }
  }
}

TEST(PagedAttention, ARowThatSeesNothingGivesZeros) {
  const auto backend = test_backend(2);
  Cache cache(DType::kBF16, {4, 2, 64}, 16, 1, 32);
  for (int j = 0; j < 32; ++j) cache.fill(0, j);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
      const auto out = attend(*backend, dtype, cache, {{0, 0}, {0, 1}},
                              {.row_class = row_class, .first_index = 1});
      for (std::size_t i = 0; i < out.size() / 2; ++i) ASSERT_EQ(out[i], 0.0f);
      EXPECT_NE(out.back(), 0.0f);
    }
  }
}

// Sequence lengths around the borders of partitions, in every company.
const std::vector<Row> kPool{{0, 0},   {0, 1},   {0, 2},   {1, 254}, {1, 255}, {1, 256},
                             {1, 257}, {2, 700}, {2, 701}, {2, 702}, {2, 703}};

Cache filled_cache(int page_tokens, const Heads& heads = {4, 2, 64}) {
  Cache cache(DType::kBF16, heads, page_tokens, 3, 704);
  for (int slot = 0; slot < 3; ++slot) {
    for (int j = 0; j < 704; ++j) cache.fill(slot, j);
  }
  return cache;
}

// Types and classes that a device may have kernels of its own for.
struct Kind {
  DType dtype = DType::kF32;
  RowClass row_class = RowClass::kPrompt;
};
const Kind kKinds[] = {{}, {DType::kBF16, RowClass::kPrompt}, {DType::kBF16, RowClass::kGenerated}};

TEST(PagedAttention, RowsDoNotDependOnTheirBatch) {
  Cache cache = filled_cache(16);
  for (const int threads : {1, 3}) {
    const auto backend = test_backend(threads);
    for (const Kind& kind : kKinds) {
      const Options joined{.row_class = kind.row_class};
      const Options apart{.row_class = kind.row_class, .joined = false};
      EXPECT_EQ(batch_dependence(static_cast<int>(kPool.size()),
                                 [&](const std::vector<int>& rows) {
                                   std::vector<Row> picked;
                                   for (const int r : rows) {
                                     picked.push_back(kPool[static_cast<std::size_t>(r)]);
                                   }
                                   return attend(*backend, kind.dtype, cache, picked, joined);
                                 }),
                "");
      EXPECT_EQ(first_difference(attend(*backend, kind.dtype, cache, kPool, joined),
                                 attend(*backend, kind.dtype, cache, kPool, apart)),
                "")
          << "segments change a value";
    }
  }
}

// Rows of a segment share its keys: as many as there are, they are the rows that each is alone.
// Groups of six heads, whose columns fill no tile of eight.
TEST(PagedAttention, RowsOfASegmentAreThoseOfEachAlone) {
  const auto backend = test_backend(2);
  for (const int dim : {64, 256}) {
    Cache cache = filled_cache(16, {6, 1, dim});
    for (const Kind& kind : kKinds) {
      const Options options{.row_class = kind.row_class};
      std::vector<float> alone;
      for (int position = 252; position < 258; ++position) {
        const auto row = attend(*backend, kind.dtype, cache, {{1, position}}, options);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      for (int count = 2; count <= 6; ++count) {
        std::vector<Row> rows;
        for (int i = 0; i < count; ++i) rows.push_back({1, 252 + i});
        const std::size_t size = alone.size() / 6 * rows.size();
        const std::vector<float> expected(alone.begin(),
                                          alone.begin() + static_cast<std::ptrdiff_t>(size));
        EXPECT_EQ(first_difference(expected, attend(*backend, kind.dtype, cache, rows, options)),
                  "")
            << count << " rows of " << dim;
      }
    }
  }
}

TEST(PagedAttention, PageSizeDoesNotMatter) {
  const auto backend = test_backend(2);
  Cache reference = filled_cache(64);
  for (const Kind& kind : kKinds) {
    const Options options{.row_class = kind.row_class};
    const auto expected = attend(*backend, kind.dtype, reference, kPool, options);
    for (const int page_tokens : {1, 4, 8, 16, 32, 256, 704}) {
      Cache cache = filled_cache(page_tokens);
      EXPECT_EQ(first_difference(expected, attend(*backend, kind.dtype, cache, kPool, options)), "")
          << "pages of " << page_tokens;
    }
  }
}

// What is enqueued depends on how many rows and segments there are and on what a page table spans;
// where the rows stand and lie is looked up when it runs.
TEST(PagedAttention, RecordedCallsFollowTheirTables) {
  const auto backend = test_backend(1);
  if (!backend->can_record()) GTEST_SKIP() << "nothing is recorded";
  const std::vector<std::vector<Row>> batches{
      {{0, 3}, {0, 4}, {1, 9}, {2, 17}},
      {{2, 701}, {2, 702}, {0, 640}, {1, 130}},
      {{1, 127}, {2, 5}, {2, 6}, {0, 255}},  // the segment of two rows is another one
  };
  for (const Kind& kind : kKinds) {
    Cache cache = filled_cache(16, {12, 2, 256});
    const Options options{.row_class = kind.row_class};
    Call call(*backend, kind.dtype, cache, batches[0], options);
    call.enqueue();
    backend->synchronize();
    const auto recorded = backend->record([&] { call.enqueue(); });
    for (const auto& rows : batches) {
      call.change(rows);
      recorded->replay();
      backend->synchronize();
      EXPECT_EQ(first_difference(call.result(), attend(*backend, kind.dtype, cache, rows, options)),
                "");
    }
    // Other pages under the same addresses.
    cache.shuffle_pages(8);
    for (int slot = 0; slot < 3; ++slot) {
      for (int j = 0; j < 704; ++j) cache.fill(slot, j);
    }
    const auto before = call.result();
    recorded->replay();
    backend->synchronize();
    EXPECT_EQ(first_difference(before, call.result()), "");
  }
}

// One long row is split over the threads by partitions, many rows by blocks: same bits.
TEST(PagedAttention, SameBitsOnEveryTargetAndThreadCount) {
  Cache cache = filled_cache(16, {3, 1, 48});
  EXPECT_EQ(machine_dependence([&](Backend& b) {
              return attend(b, DType::kF32, cache, {{2, 703}});
            }),
            "");
  EXPECT_EQ(machine_dependence([&](Backend& b) { return attend(b, DType::kF32, cache, kPool); }),
            "");
}

// Whether a row's context is shared among processors, which takes scratch memory, is no one's
// business, nor whether there is enough for some of the rows only. Long enough for several spans of
// a GPU's blocks.
TEST(PagedAttention, ScratchMemoryChangesNoBit) {
  const auto backend = test_backend(3);
  const Heads heads{6, 1, 64};
  for (const Kind& kind : kKinds) {
    Cache cache(kind.dtype, heads, 16, 2, 5000);
    for (int j = 0; j < 5000; ++j) cache.fill(0, j);
    for (int j = 0; j < 40; ++j) cache.fill(1, j);
    const std::vector<Row> rows{{0, 4998}, {0, 4999}, {1, 39}, {0, 1023}, {0, 1024}, {0, 2047}};
    const Options whole{.row_class = kind.row_class};
    const auto with = attend(*backend, kind.dtype, cache, rows, whole);
    for (const double share : {0.0, 0.2, 0.5}) {
      const Options options{.row_class = kind.row_class, .scratch = share};
      EXPECT_EQ(first_difference(with, attend(*backend, kind.dtype, cache, rows, options)), "")
          << share;
    }
    expect_attention(with, kind.dtype, cache, cache.k(), cache.v(), rows, whole);
  }
}

TEST(PagedAttention, RefusesRowsWithoutPages) {
  if (on_gpu()) GTEST_SKIP() << "tables are not looked into";
  const auto backend = test_backend(1);
  Cache cache(DType::kBF16, {4, 2, 64}, 16, 1, 32);
  EXPECT_THROW(attend(*backend, DType::kF32, cache, {{0, 32}}), Error);
  EXPECT_THROW(attend(*backend, DType::kF32, cache, {{0, -1}}), Error);
}

struct Prep {
  std::vector<float> q, k, v;
};

// Inputs of a row depend on (slot, position) only.
Prep prep_inputs(const Heads& heads, const std::vector<Row>& rows) {
  Prep inputs;
  for (const Row& row : rows) {
    const auto seed = static_cast<std::uint64_t>(row.slot * 100000 + row.position);
    const auto add = [&](std::vector<float>& to, std::uint64_t stream, int count) {
      const auto values = random_normal(seed + stream * 77777777, static_cast<std::size_t>(count));
      to.insert(to.end(), values.begin(), values.end());
    };
    add(inputs.q, 1, heads.query * 2 * heads.dim);
    add(inputs.k, 2, heads.kv * heads.dim);
    add(inputs.v, 3, heads.kv * heads.dim);
  }
  return inputs;
}

struct PrepSetup {
  Array q_norm, k_norm;
  Vector<float> inv_freq;
  int rotary_dim;

  PrepSetup(const Heads& heads, int rotary)
      : q_norm(DType::kF32, random_normal(21, static_cast<std::size_t>(heads.dim), 0.2f)),
        k_norm(DType::kF32, random_normal(22, static_cast<std::size_t>(heads.dim), 0.2f)),
        rotary_dim(rotary) {
    for (int j = 0; j < rotary / 2; ++j) {
      inv_freq.push_back(static_cast<float>(std::pow(1e7, -2.0 * j / rotary)));
    }
  }
};

// Returns q_out of the rows; k and v go to the cache.
std::vector<float> prepare(Backend& backend, DType dtype, Cache& cache, PrepSetup& setup,
                           const std::vector<Row>& rows, int rope_offset = 0) {
  const Prep inputs = prep_inputs(cache.heads(), rows);
  Array q(dtype, inputs.q), k(dtype, inputs.k), v(dtype, inputs.v), out(dtype, inputs.q.size() / 2);
  const Batch batch(rows);
  ops::attention_prep(backend, {.batch = batch.view(cache),
                                .q_gate = q.data(),
                                .k = k.data(),
                                .v = v.data(),
                                .dtype = dtype,
                                .q_norm = setup.q_norm.floats(),
                                .k_norm = setup.k_norm.floats(),
                                .inv_freq = setup.inv_freq.data(),
                                .rotary_dim = setup.rotary_dim,
                                .rope_offset = rope_offset,
                                .num_heads = cache.heads().query,
                                .q_out = out.data(),
                                .pages = cache.pages()});
  out.expect_guards("q_out");
  cache.k().expect_guards("k_pages");
  cache.v().expect_guards("v_pages");
  q.expect_unchanged("q_gate");
  k.expect_unchanged("k");
  v.expect_unchanged("v");
  return out.values();
}

std::vector<double> rotated_norm(const std::vector<float>& x, const Array& norm,
                                 const PrepSetup& setup, int position) {
  double squares = 0;
  for (const float value : x) squares += double{value} * value;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * (1 + double{norm[i]}));
  const auto half = static_cast<std::size_t>(setup.rotary_dim / 2);
  for (std::size_t j = 0; j < half; ++j) {
    // The contract's angle is the fp32 product.
    const double angle = static_cast<float>(position) * setup.inv_freq[j];
    const double a = y[j], b = y[j + half];
    y[j] = a * std::cos(angle) - b * std::sin(angle);
    y[j + half] = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

TEST(AttentionPrep, NormsRotatesAndStores) {
  const auto backend = test_backend(2);
  for (const Heads& heads : {Heads{4, 2, 256}, Heads{3, 1, 64}, Heads{2, 2, 48}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const DType page_dtype : {DType::kF32, DType::kBF16}) {
        for (const int offset : {0, 1}) {
          const auto dim = static_cast<std::size_t>(heads.dim);
          const std::vector<Row> rows{{1, 0}, {1, 1}, {0, 31}, {1, 29}};
          Cache cache(page_dtype, heads, 8, 2, 32);
          Cache untouched = cache;
          PrepSetup setup(heads, heads.dim / 4);
          const auto q = prepare(*backend, dtype, cache, setup, rows, offset);
          const Prep inputs = prep_inputs(heads, rows);
          const Array in_q(dtype, inputs.q), in_k(dtype, inputs.k), in_v(dtype, inputs.v);
          const auto near = [&](const std::vector<float>& actual, const std::vector<double>& y,
                                DType type, const char* what) {
            double largest = 0;
            for (const double value : y) largest = std::max(largest, std::abs(value));
            expect_near(actual, y, std::vector<double>(y.size(), kFp32Formula * largest), type,
                        what);
          };
          std::vector<bool> written(cache.k().size());
          for (std::size_t r = 0; r < rows.size(); ++r) {
            const int position = rows[r].position + offset;
            for (std::size_t h = 0; h < static_cast<std::size_t>(heads.query); ++h) {
              const std::size_t head = r * static_cast<std::size_t>(heads.query) + h;
              near(std::vector<float>(q.begin() + static_cast<std::ptrdiff_t>(head * dim),
                                      q.begin() + static_cast<std::ptrdiff_t>((head + 1) * dim)),
                   rotated_norm(in_q.values(head * 2 * dim, dim), setup.q_norm, setup, position),
                   dtype, "q");
            }
            for (int h = 0; h < heads.kv; ++h) {
              const std::size_t head =
                  (r * static_cast<std::size_t>(heads.kv) + static_cast<std::size_t>(h)) * dim;
              const std::size_t entry = cache.entry(rows[r].slot, rows[r].position, h);
              near(cache.k().values(entry, dim),
                   rotated_norm(in_k.values(head, dim), setup.k_norm, setup, position), page_dtype,
                   "k");
              Array rounded(page_dtype, in_v.values(head, dim));
              EXPECT_EQ(first_difference(cache.v().values(entry, dim), rounded.values()), "");
              std::fill_n(written.begin() + static_cast<std::ptrdiff_t>(entry), dim, true);
            }
          }
          for (std::size_t i = 0; i < written.size(); ++i) {
            if (written[i]) continue;
            ASSERT_EQ(cache.k()[i], untouched.k()[i]) << "k entry of another token written";
            ASSERT_EQ(cache.v()[i], untouched.v()[i]) << "v entry of another token written";
          }
        }
      }
    }
  }
}

TEST(AttentionPrep, SameBitsInAnyBatchAndOnAnyMachine) {
  const Heads heads{4, 2, 64};
  const std::vector<Row> pool{{0, 3}, {0, 4}, {1, 5}, {1, 30}, {0, 17}, {1, 0}};
  const auto op = [&](Backend& backend, const std::vector<int>& rows) {
    Cache cache(DType::kF32, heads, 8, 2, 32);
    PrepSetup setup(heads, 16);
    std::vector<Row> picked;
    for (const int r : rows) picked.push_back(pool[static_cast<std::size_t>(r)]);
    const auto q = prepare(backend, DType::kF32, cache, setup, picked);
    std::vector<float> values;
    for (std::size_t r = 0; r < picked.size(); ++r) {  // of each row its query and its keys
      const std::size_t width = q.size() / picked.size();
      values.insert(values.end(), q.begin() + static_cast<std::ptrdiff_t>(r * width),
                    q.begin() + static_cast<std::ptrdiff_t>((r + 1) * width));
      for (int h = 0; h < heads.kv; ++h) {
        const auto k = cache.k().values(cache.entry(picked[r].slot, picked[r].position, h), 64);
        values.insert(values.end(), k.begin(), k.end());
      }
    }
    return values;
  };
  const auto backend = test_backend(2);
  EXPECT_EQ(batch_dependence(6, [&](const std::vector<int>& rows) { return op(*backend, rows); }),
            "");
  EXPECT_EQ(machine_dependence([&](Backend& b) { return op(b, {0, 1, 2, 3, 4, 5}); }), "");
}

}  // namespace
}  // namespace tandem::testing
