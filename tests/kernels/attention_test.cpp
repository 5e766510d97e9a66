// paged_attention over pages of every format.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "tests/kernels/attention_cases.h"

namespace tandem::testing {
namespace {

using ops::KvFormat;
using ops::RowClass;

// Those of bf16 activations.
constexpr KvFormat kNarrowFormats[] = {KvFormat::kBf16, KvFormat::kFp8Dynamic,
                                       KvFormat::kFp8Static};

TEST(PagedAttention, EqualsSoftmaxAttention) {
  const auto backend = test_backend(2);
  for (const Heads& heads :
       {Heads{2, 2, 64}, Heads{4, 2, 128}, Heads{8, 1, 256}, Heads{6, 1, 16}, Heads{7, 1, 48}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const KvFormat format : kKvFormats) {
        for (const int page_tokens : {4, 16, 64}) {
          Cache cache(format, heads, page_tokens, 2, 600);
          for (int j = 0; j < 600; ++j) cache.fill(0, j);
          for (int j = 0; j < 40; ++j) cache.fill(1, j);
          const std::vector<Row> rows{{0, 0},  {0, 1},   {1, 15},  {1, 16}, {1, 17},
                                      {0, 99}, {0, 255}, {0, 256}, {0, 599}};
          for (const Options& options :
               {Options{}, Options{.row_class = RowClass::kGenerated}, Options{.gate = false},
                Options{.first_index = 1}, Options{.first_index = 300},
                Options{.row_class = RowClass::kGenerated, .gate = false, .first_index = 300}}) {
            expect_attention(attend(*backend, dtype, cache, rows, options), dtype, cache, rows,
                             options);
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
    for (const KvFormat format : kNarrowFormats) {
      Cache cache(format, heads, 16, 2, 1040);
      for (int j = 0; j < 1040; ++j) cache.fill(0, j), cache.fill(1, j);
      std::vector<Row> rows{{0, 0},  {1, 14}, {0, 15},  {1, 16},
                            {0, 63}, {1, 64}, {0, 127}, {1, 128}};
      for (int position = 1020; position < 1027; ++position) rows.push_back({0, position});
      for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
        const Options options{.row_class = row_class};
        expect_attention(attend(*backend, DType::kBF16, cache, rows, options), DType::kBF16, cache,
                         rows, options);
      }
    }
  }
}

TEST(PagedAttention, LongContexts) {
  const auto backend = test_backend(2);
  const Heads heads{6, 1, 16};
  for (const KvFormat format : kNarrowFormats) {
    Cache cache(format, heads, 64, 1, 70000);
    const auto values = random_normal(17, 2 * 70000 * 16);
    for (int j = 0; j < 70000; ++j) {
      const float* both = values.data() + j * 32;
      cache.set(cache.k(), cache.entry(0, j, 0), 0, both);
      cache.set(cache.v(), cache.entry(0, j, 0), 0, both + 16);
    }
    const std::vector<Row> rows{{0, 4095}, {0, 4096}, {0, 32768}, {0, 69998}, {0, 69999}};
    for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
      const Options options{.row_class = row_class};
      const auto out = attend(*backend, DType::kBF16, cache, rows, options);
      expect_attention(out, DType::kBF16, cache, rows, options);
      const Options alone{.row_class = row_class, .scratch = 0};
      EXPECT_EQ(first_difference(out, attend(*backend, DType::kBF16, cache, rows, alone)), "");
    }
  }
}

// More segments than a warp has lanes.
TEST(PagedAttention, ManySegments) {
  const auto backend = test_backend(2);
  std::vector<Row> rows;
  for (int i = 0; i < 75; ++i) rows.push_back({i % 3, i * 37 % 704});
  for (const KvFormat format : kNarrowFormats) {
    Cache cache(format, {6, 1, 64}, 16, 3, 704);
    for (int slot = 0; slot < 3; ++slot) {
      for (int j = 0; j < 704; ++j) cache.fill(slot, j);
    }
    for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
      const Options options{.row_class = row_class};
      expect_attention(attend(*backend, DType::kBF16, cache, rows, options), DType::kBF16, cache,
                       rows, options);
    }
  }
}

// Memory that no one has written may hold NaN.
TEST(PagedAttention, EntriesThatNobodySeesMayHoldAnything) {
  const auto backend = test_backend(2);
  for (const KvFormat format : kNarrowFormats) {
    Cache cache(format, {6, 1, 64}, 16, 1, 320);
    const std::size_t dim = 64;
    for (int j = 0; j < 320; ++j) cache.fill(0, j);
    for (int j = 0; j < 320; ++j) {
      if (j >= 3 && j < 290) continue;
      const std::size_t entry = cache.entry(0, j, 0);
      for (Cache::Plane* plane : {&cache.k(), &cache.v()}) {
        for (std::size_t d = 0; d < dim; ++d) plane->values.set(entry + d, std::nanf(""));
        if (format == KvFormat::kFp8Dynamic) plane->scales.set(entry / dim, std::nanf(""));
      }
    }
    const std::vector<Row> rows{{0, 5}, {0, 288}, {0, 289}};
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
        const Options options{.row_class = row_class, .first_index = 3};
        expect_attention(attend(*backend, dtype, cache, rows, options), dtype, cache, rows,
                         options);
      }
    }
  }
}

// With a single entry a row is that entry's values: every code, exactly.
TEST(PagedAttention, EveryCodeIsRead) {
  const auto backend = test_backend(1);
  Cache cache(KvFormat::kFp8Dynamic, {2, 1, 256}, 16, 1, 16);
  std::vector<float> values;
  for (int code = 0; code < 256; ++code) {
    const float value = to_float(e4m3{static_cast<std::uint8_t>(code)});
    values.push_back(std::isnan(value) ? 0.0f : value);
  }
  cache.set(cache.k(), cache.entry(0, 0, 0), 0, values.data());
  cache.set(cache.v(), cache.entry(0, 0, 0), 0, values.data());
  ASSERT_EQ(cache.scale(cache.v(), cache.entry(0, 0, 0), 0), 1.0f);
  values.insert(values.end(), values.begin(), values.end());  // of both heads
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
      const Options options{.row_class = row_class, .gate = false};
      const auto out = attend(*backend, dtype, cache, {{0, 0}}, options);
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], values[i]) << "code " << i;
    }
  }
  // A scale of NaN is how an entry with a NaN in it is stored.
  cache.v().scales.set(cache.entry(0, 0, 0) / 256, std::nanf(""));
  for (const RowClass row_class : {RowClass::kPrompt, RowClass::kGenerated}) {
    for (const float o :
         attend(*backend, DType::kBF16, cache, {{0, 0}}, {.row_class = row_class})) {
      ASSERT_TRUE(std::isnan(o));
    }
  }
}

TEST(PagedAttention, ARowThatSeesNothingGivesZeros) {
  const auto backend = test_backend(2);
  for (const KvFormat format : kNarrowFormats) {
    Cache cache(format, {4, 2, 64}, 16, 1, 32);
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
}

// Sequence lengths around the borders of partitions, in every company.
const std::vector<Row> kPool{{0, 0},   {0, 1},   {0, 2},   {1, 254}, {1, 255}, {1, 256},
                             {1, 257}, {2, 700}, {2, 701}, {2, 702}, {2, 703}};

Cache filled_cache(KvFormat format, int page_tokens, const Heads& heads = {4, 2, 64}) {
  Cache cache(format, heads, page_tokens, 3, 704);
  for (int slot = 0; slot < 3; ++slot) {
    for (int j = 0; j < 704; ++j) cache.fill(slot, j);
  }
  return cache;
}

// Types and classes that a device may have kernels of its own for.
struct Kind {
  DType dtype = DType::kF32;
  KvFormat format = KvFormat::kBf16;
  RowClass row_class = RowClass::kPrompt;
};
const Kind kKinds[] = {{},
                       {DType::kBF16, KvFormat::kBf16, RowClass::kPrompt},
                       {DType::kBF16, KvFormat::kBf16, RowClass::kGenerated},
                       {DType::kF32, KvFormat::kFp8Dynamic, RowClass::kPrompt},
                       {DType::kBF16, KvFormat::kFp8Dynamic, RowClass::kPrompt},
                       {DType::kBF16, KvFormat::kFp8Dynamic, RowClass::kGenerated},
                       {DType::kBF16, KvFormat::kFp8Static, RowClass::kGenerated}};

TEST(PagedAttention, RowsDoNotDependOnTheirBatch) {
  for (const int threads : {1, 3}) {
    const auto backend = test_backend(threads);
    for (const Kind& kind : kKinds) {
      Cache cache = filled_cache(kind.format, 16);
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
// Groups whose columns fill no tile of eight, and some that fill up to four; first rows just before
// borders of steps, of rounds of steps, and of spans.
TEST(PagedAttention, RowsOfASegmentAreThoseOfEachAlone) {
  const auto backend = test_backend(2);
  for (const Heads& heads :
       {Heads{6, 1, 64}, Heads{6, 1, 256}, Heads{8, 1, 128}, Heads{5, 1, 256}}) {
    for (const Kind& kind : kKinds) {
      Cache cache = filled_cache(kind.format, 16, heads);
      const Options options{.row_class = kind.row_class};
      for (const int first : {13, 60, 125, 252}) {
        std::vector<float> alone;
        for (int i = 0; i < 6; ++i) {
          const auto row = attend(*backend, kind.dtype, cache, {{1, first + i}}, options);
          alone.insert(alone.end(), row.begin(), row.end());
        }
        for (int count = 2; count <= 6; ++count) {
          std::vector<Row> rows;
          for (int i = 0; i < count; ++i) rows.push_back({1, first + i});
          const std::size_t size = alone.size() / 6 * rows.size();
          const std::vector<float> expected(alone.begin(),
                                            alone.begin() + static_cast<std::ptrdiff_t>(size));
          EXPECT_EQ(first_difference(expected, attend(*backend, kind.dtype, cache, rows, options)),
                    "")
              << count << " rows from " << first << ", " << heads.query << " heads of "
              << heads.dim;
        }
      }
    }
  }
}

// Contexts that end at, just before and just behind borders of steps, of rounds of steps among the
// warps of a block, and of spans; the first entry there too.
TEST(PagedAttention, BordersOfSteps) {
  const auto backend = test_backend(2);
  for (const Heads& heads : {Heads{6, 1, 256}, Heads{3, 1, 128}}) {
    for (const KvFormat format : kNarrowFormats) {
      Cache cache = filled_cache(format, 16, heads);
      std::vector<Row> rows;
      for (const int border : {16, 32, 48, 64, 128, 192, 256, 384, 512, 640}) {
        for (int position = border - 2; position <= border; ++position) {
          rows.push_back({rows.size() % 2 == 0 ? 0 : 1, position});
        }
      }
      for (const int first_index : {0, 15, 16, 127, 128, 130}) {
        const Options options{.row_class = RowClass::kGenerated, .first_index = first_index};
        expect_attention(attend(*backend, DType::kBF16, cache, rows, options), DType::kBF16, cache,
                         rows, options);
      }
    }
  }
}

TEST(PagedAttention, PageSizeDoesNotMatter) {
  const auto backend = test_backend(2);
  for (const Kind& kind : kKinds) {
    Cache reference = filled_cache(kind.format, 64);
    const Options options{.row_class = kind.row_class};
    const auto expected = attend(*backend, kind.dtype, reference, kPool, options);
    for (const int page_tokens : {1, 4, 8, 16, 32, 256, 704}) {
      Cache cache = filled_cache(kind.format, page_tokens);
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
    Cache cache = filled_cache(kind.format, 16, {12, 2, 256});
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
  for (const KvFormat format : {KvFormat::kBf16, KvFormat::kFp8Dynamic}) {
    Cache cache = filled_cache(format, 16, {3, 1, 48});
    EXPECT_EQ(machine_dependence([&](Backend& b) {
                return attend(b, DType::kF32, cache, {{2, 703}});
              }),
              "");
    EXPECT_EQ(machine_dependence([&](Backend& b) { return attend(b, DType::kF32, cache, kPool); }),
              "");
  }
}

// Whether a row's context is shared among processors, which takes scratch memory, is no one's
// business, nor whether there is enough for some of the rows only. Long enough for several spans of
// a GPU's blocks.
TEST(PagedAttention, ScratchMemoryChangesNoBit) {
  const auto backend = test_backend(3);
  const Heads heads{6, 1, 64};
  for (const Kind& kind : kKinds) {
    Cache cache(kind.format, heads, 16, 2, 5000);
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
    expect_attention(with, kind.dtype, cache, rows, whole);
  }
}

TEST(PagedAttention, RefusesRowsWithoutPages) {
  if (on_gpu()) GTEST_SKIP() << "tables are not looked into";
  const auto backend = test_backend(1);
  Cache cache(KvFormat::kBf16, {4, 2, 64}, 16, 1, 32);
  EXPECT_THROW(attend(*backend, DType::kF32, cache, {{0, 32}}), Error);
  EXPECT_THROW(attend(*backend, DType::kF32, cache, {{0, ops::kNoPosition - 1}}), Error);
}

}  // namespace
}  // namespace tandem::testing
