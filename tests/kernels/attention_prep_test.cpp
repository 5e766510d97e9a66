// attention_prep: norms, rotation, and what is stored in pages of every format.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/attention_prep.h"
#include "tests/kernels/attention_cases.h"

namespace tandem::testing {
namespace {

using ops::KvFormat;

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
                           const std::vector<Row>& rows, const Prep& inputs, int rope_offset) {
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
  for (const Cache::Plane* plane : {&cache.k(), &cache.v()}) {
    plane->values.expect_guards("pages");
    plane->scales.expect_guards("scales");
  }
  q.expect_unchanged("q_gate");
  k.expect_unchanged("k");
  v.expect_unchanged("v");
  return out.values();
}

std::vector<float> prepare(Backend& backend, DType dtype, Cache& cache, PrepSetup& setup,
                           const std::vector<Row>& rows, int rope_offset = 0) {
  return prepare(backend, dtype, cache, setup, rows, prep_inputs(cache.heads(), rows), rope_offset);
}

// With these values of v.
void prepare_values(Backend& backend, Cache& cache, PrepSetup& setup, const std::vector<Row>& rows,
                    const std::vector<float>& v) {
  Prep inputs = prep_inputs(cache.heads(), rows);
  inputs.v = v;
  prepare(backend, DType::kF32, cache, setup, rows, inputs, 0);
}

const std::vector<Row> kPrepRows{{1, 0}, {1, 1}, {0, 31}, {1, 29}};

// Where k or v of a row's KV head begin among the inputs.
std::size_t kv_values(const Heads& heads, std::size_t row, int kv_head) {
  return (row * static_cast<std::size_t>(heads.kv) + static_cast<std::size_t>(kv_head)) *
         static_cast<std::size_t>(heads.dim);
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

// Rows of `heads` numbers, one after the other.
std::vector<float> part_of(const std::vector<float>& values, std::size_t first, std::size_t count) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

void expect_near_norm(const std::vector<float>& actual, const std::vector<double>& y, DType type,
                      const char* what) {
  double largest = 0;
  for (const double value : y) largest = std::max(largest, std::abs(value));
  expect_near(actual, y, std::vector<double>(y.size(), kFp32Formula * largest), type, what);
}

TEST(AttentionPrep, NormsRotatesAndStores) {
  const auto backend = test_backend(2);
  for (const Heads& heads : {Heads{4, 2, 256}, Heads{3, 1, 64}, Heads{2, 2, 48}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const KvFormat format : {KvFormat::kF32, KvFormat::kBf16}) {
        for (const int offset : {0, 1}) {
          const DType page_dtype = ops::kv_dtype(format);
          const auto dim = static_cast<std::size_t>(heads.dim);
          Cache cache(format, heads, 8, 2, 32);
          PrepSetup setup(heads, heads.dim / 4);
          const auto q = prepare(*backend, dtype, cache, setup, kPrepRows, offset);
          const Prep inputs = prep_inputs(heads, kPrepRows);
          const Array in_q(dtype, inputs.q), in_k(dtype, inputs.k), in_v(dtype, inputs.v);
          for (std::size_t r = 0; r < kPrepRows.size(); ++r) {
            const int position = kPrepRows[r].position + offset;
            for (std::size_t h = 0; h < static_cast<std::size_t>(heads.query); ++h) {
              const std::size_t head = r * static_cast<std::size_t>(heads.query) + h;
              expect_near_norm(
                  part_of(q, head * dim, dim),
                  rotated_norm(in_q.values(head * 2 * dim, dim), setup.q_norm, setup, position),
                  dtype, "q");
            }
            for (int h = 0; h < heads.kv; ++h) {
              const std::size_t head = kv_values(heads, r, h);
              const std::size_t entry = cache.entry(kPrepRows[r].slot, kPrepRows[r].position, h);
              expect_near_norm(cache.k().values.values(entry, dim),
                               rotated_norm(in_k.values(head, dim), setup.k_norm, setup, position),
                               page_dtype, "k");
              Array rounded(page_dtype, in_v.values(head, dim));
              EXPECT_EQ(first_difference(cache.v().values.values(entry, dim), rounded.values()),
                        "");
            }
          }
        }
      }
    }
  }
}

// Only the rows' own entries, and with dynamic scales their own scales.
TEST(AttentionPrep, WritesNoOtherEntries) {
  const auto backend = test_backend(2);
  const Heads heads{4, 2, 64};
  for (const KvFormat format : kKvFormats) {
    Cache cache(format, heads, 8, 2, 32);
    Cache untouched = cache;
    PrepSetup setup(heads, 16);
    std::vector<Row> rows(kPrepRows.begin(), kPrepRows.end());
    rows.insert(rows.begin() + 1, {{0, ops::kNoPosition}, {1, ops::kNoPosition}});  // padding
    prepare(*backend, DType::kBF16, cache, setup, rows);
    const auto dim = static_cast<std::size_t>(heads.dim);
    std::vector<bool> written(cache.k().values.size() / dim);
    for (const Row& row : kPrepRows) {
      for (int h = 0; h < heads.kv; ++h)
        written[cache.entry(row.slot, row.position, h) / dim] = true;
    }
    const auto compare = [&](const Cache::Plane& plane, const Cache::Plane& before) {
      for (std::size_t entry = 0; entry < written.size(); ++entry) {
        if (written[entry]) continue;
        EXPECT_EQ(first_difference(plane.values.values(entry * dim, dim),
                                   before.values.values(entry * dim, dim)),
                  "")
            << "entry of another token written";
        if (format != KvFormat::kFp8Dynamic) continue;
        ASSERT_EQ(plane.scales[entry], before.scales[entry]) << "scale of another token written";
      }
      if (format != KvFormat::kFp8Static) return;
      EXPECT_EQ(first_difference(plane.scales.values(), before.scales.values()), "")
          << "given scales written";
    };
    compare(cache.k(), untouched.k());
    compare(cache.v(), untouched.v());
  }
}

// The contract's arithmetic, on values that are known exactly: those of v, which is only stored.
TEST(AttentionPrep, CodesAndScalesOfValuesAreThoseOfTheFormula) {
  const auto backend = test_backend(2);
  for (const Heads& heads : {Heads{4, 2, 256}, Heads{3, 1, 48}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const KvFormat format : {KvFormat::kFp8Dynamic, KvFormat::kFp8Static}) {
        const auto dim = static_cast<std::size_t>(heads.dim);
        Cache cache(format, heads, 8, 2, 32);
        Cache expected(format, heads, 8, 2, 32);
        PrepSetup setup(heads, 16);
        prepare(*backend, dtype, cache, setup, kPrepRows);
        const Array in_v(dtype, prep_inputs(heads, kPrepRows).v);
        for (std::size_t r = 0; r < kPrepRows.size(); ++r) {
          for (int h = 0; h < heads.kv; ++h) {
            const std::size_t entry = cache.entry(kPrepRows[r].slot, kPrepRows[r].position, h);
            const auto values = in_v.values(kv_values(heads, r, h), dim);
            expected.set(expected.v(), entry, h, values.data());
            EXPECT_EQ(first_difference(cache.v().values.values(entry, dim),
                                       expected.v().values.values(entry, dim)),
                      "");
            ASSERT_EQ(cache.scale(cache.v(), entry, h), expected.scale(expected.v(), entry, h));
          }
        }
      }
    }
  }
}

// Keys: within half a step of the codes, whose distance is a sixteenth of a number's binade.
TEST(AttentionPrep, KeysAreRoundedToCodes) {
  const auto backend = test_backend(2);
  const Heads heads{4, 2, 128};
  const std::size_t dim = 128;
  for (const KvFormat format : {KvFormat::kFp8Dynamic, KvFormat::kFp8Static}) {
    Cache cache(format, heads, 8, 2, 32);
    PrepSetup setup(heads, 32);
    prepare(*backend, DType::kF32, cache, setup, kPrepRows);
    const Array in_k(DType::kF32, prep_inputs(heads, kPrepRows).k);
    for (std::size_t r = 0; r < kPrepRows.size(); ++r) {
      for (int h = 0; h < heads.kv; ++h) {
        const auto y = rotated_norm(in_k.values(kv_values(heads, r, h), dim), setup.k_norm, setup,
                                    kPrepRows[r].position);
        const std::size_t entry = cache.entry(kPrepRows[r].slot, kPrepRows[r].position, h);
        const double scale = cache.scale(cache.k(), entry, h);
        double largest = 0;
        for (const double value : y) largest = std::max(largest, std::abs(value));
        if (format == KvFormat::kFp8Dynamic) {
          EXPECT_NEAR(scale, largest / 448, largest / 448 * kFp32Formula);
        }
        for (std::size_t d = 0; d < dim; ++d) {
          const double cut = std::clamp(y[d], -448 * scale, 448 * scale);
          const double step = std::max(std::abs(cut) * 0x1p-4, scale * 0x1p-10);
          EXPECT_NEAR(cache.value(cache.k(), entry + d, h), cut, step + kFp32Formula * largest);
        }
      }
    }
  }
}

// Zeros, numbers whose largest has no normal scale, and a NaN.
TEST(AttentionPrep, UnusualValuesHaveCodes) {
  const auto backend = test_backend(1);
  const Heads heads{1, 1, 16};
  const auto store = [&](float first, float others) {
    Cache cache(KvFormat::kFp8Dynamic, heads, 8, 1, 8);
    PrepSetup setup(heads, 0);
    std::vector<float> v(16, others);
    v[0] = first;
    prepare_values(*backend, cache, setup, {{0, 0}}, v);
    return cache;
  };
  const Cache zeros = store(0.0f, 0.0f);
  EXPECT_EQ(zeros.scale(zeros.v(), 0, 0), 0x1p-126f);
  const Cache tiny = store(0x1p-130f, 0x1p-140f);
  EXPECT_EQ(tiny.scale(tiny.v(), 0, 0), 0x1p-126f);
  EXPECT_EQ(tiny.value(tiny.v(), 0, 0), 0x1p-130);
  EXPECT_EQ(zeros.value(zeros.v(), 0, 0), 0.0);
  const Cache nan = store(std::nanf(""), 1.0f);
  for (std::size_t d = 0; d < 16; ++d) EXPECT_TRUE(std::isnan(nan.value(nan.v(), d, 0)));
}

TEST(AttentionPrep, SameBitsInAnyBatchAndOnAnyMachine) {
  const Heads heads{4, 2, 64};
  const std::vector<Row> pool{{0, 3}, {0, 4}, {1, 5}, {1, 30}, {0, 17}, {1, 0}};
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kFp8Dynamic}) {
    const auto op = [&](Backend& backend, const std::vector<int>& rows) {
      Cache cache(format, heads, 8, 2, 32);
      PrepSetup setup(heads, 16);
      std::vector<Row> picked;
      for (const int r : rows) picked.push_back(pool[static_cast<std::size_t>(r)]);
      const auto q = prepare(backend, DType::kF32, cache, setup, picked);
      std::vector<float> values;
      for (std::size_t r = 0; r < picked.size(); ++r) {  // of each row its query, keys and scales
        const std::size_t width = q.size() / picked.size();
        const auto query = part_of(q, r * width, width);
        values.insert(values.end(), query.begin(), query.end());
        for (int h = 0; h < heads.kv; ++h) {
          const std::size_t entry = cache.entry(picked[r].slot, picked[r].position, h);
          const auto k = cache.k().values.values(entry, 64);
          values.insert(values.end(), k.begin(), k.end());
          values.push_back(cache.scale(cache.k(), entry, h));
        }
      }
      return values;
    };
    const auto backend = test_backend(2);
    EXPECT_EQ(batch_dependence(6, [&](const std::vector<int>& rows) { return op(*backend, rows); }),
              "");
    EXPECT_EQ(machine_dependence([&](Backend& b) { return op(b, {0, 1, 2, 3, 4, 5}); }), "");
  }
}

}  // namespace
}  // namespace tandem::testing
