// Norms, gates, embedding, gather, scatter, cast: operators that work on a row at a time.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/gated_rms_norm.h"
#include "kernels/ops/rms_norm.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

constexpr DType kFloatTypes[] = {DType::kF32, DType::kBF16};
constexpr int kWidths[] = {1, 15, 16, 17, 127, 256, 5120};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<double> times(const std::vector<double>& values, double factor) {
  std::vector<double> out;
  for (const double v : values) out.push_back(std::abs(v) * factor);
  return out;
}

std::vector<double> norm_reference(const std::vector<float>& x, const Array& weight, double offset,
                                   double eps) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  const double scale = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<double> y;
  for (std::size_t i = 0; i < x.size(); ++i) y.push_back(x[i] * scale * (offset + weight[i]));
  return y;
}

TEST(RmsNorm, EqualsTheFormula) {
  const auto backend = test_backend(2);
  for (const DType x_dtype : kFloatTypes) {
    for (const DType y_dtype : kFloatTypes) {
      for (const int width : kWidths) {
        const auto n = static_cast<std::size_t>(width);
        constexpr std::size_t kRows = 5, kGap = 2;
        Array x(x_dtype, random_normal(1, kRows * (n + kGap), 3.0f));
        Array w(DType::kF32, random_normal(2, n, 0.2f));
        for (const auto kind : {ops::NormWeight::kZeroCentered, ops::NormWeight::kPlain}) {
          Array y(y_dtype, kRows * n);
          ops::rms_norm(*backend, {.x = x.data(),
                                   .x_dtype = x_dtype,
                                   .x_stride = width + int{kGap},
                                   .weight = w.floats(),
                                   .weight_kind = kind,
                                   .num_rows = kRows,
                                   .width = width,
                                   .y = y.data(),
                                   .y_dtype = y_dtype,
                                   .y_stride = width});
          const double offset = kind == ops::NormWeight::kZeroCentered ? 1 : 0;
          for (std::size_t r = 0; r < kRows; ++r) {
            const auto expected = norm_reference(x.values(r * (n + kGap), n), w, offset, 1e-6);
            expect_near(y.values(r * n, n), expected, times(expected, kFp32Formula), y_dtype,
                        fmt::format("width {}", width));
          }
          y.expect_guards("y");
          x.expect_unchanged("x");
          w.expect_unchanged("weight");
        }
      }
    }
  }
}

TEST(RmsNorm, MayWriteOverItsInput) {
  const auto backend = test_backend(2);
  Array w(DType::kF32, random_normal(2, 300, 0.2f));
  Array x(DType::kBF16, random_normal(1, 7 * 300)), y(DType::kBF16, 7 * 300);
  ops::RmsNormArgs args{.x = x.data(),
                        .x_stride = 300,
                        .weight = w.floats(),
                        .num_rows = 7,
                        .width = 300,
                        .y = y.data(),
                        .y_stride = 300};
  ops::rms_norm(*backend, args);
  args.y = x.data();
  ops::rms_norm(*backend, args);
  EXPECT_EQ(first_difference(x.values(), y.values()), "");
}

TEST(RmsNorm, RowsDependOnNothingElse) {
  for (const int width : {100, 5120}) {
    const auto n = static_cast<std::size_t>(width);
    const Array pool(DType::kBF16, random_normal(3, 20 * n));
    Array w(DType::kF32, random_normal(2, n, 0.2f));
    const auto op = [&](Backend& backend, const std::vector<int>& rows) {
      const std::vector<float> picked = picked_rows(pool, n, rows);
      Array x(DType::kBF16, picked), y(DType::kF32, picked.size());
      ops::rms_norm(backend, {.x = x.data(),
                              .x_stride = width,
                              .weight = w.floats(),
                              .num_rows = static_cast<int>(rows.size()),
                              .width = width,
                              .y = y.data(),
                              .y_dtype = DType::kF32,
                              .y_stride = width});
      return y.values();
    };
    const auto backend = test_backend(2);
    EXPECT_EQ(batch_dependence(20, [&](const auto& rows) { return op(*backend, rows); }), "");
    EXPECT_EQ(machine_dependence([&](Backend& b) { return op(b, {4, 0, 19, 7, 8}); }), "");
  }
}

// A mean whose order of summation follows the number of rows, as a kernel that gives each thread a
// slice of the row would have it.
TEST(RmsNorm, ShapeDependentMutantIsCaught) {
  const std::vector<float> pool = random_normal(3, 20 * 300);
  EXPECT_NE(batch_dependence(20,
                             [&](const std::vector<int>& rows) {
                               std::vector<float> sums;
                               const std::size_t slices = rows.size() < 4 ? 4 : 1;
                               for (const int r : rows) {
                                 std::vector<float> partial(slices, 0.0f);
                                 for (std::size_t i = 0; i < 300; ++i) {
                                   const float x = pool[static_cast<std::size_t>(r) * 300 + i];
                                   partial[i % slices] += x * x;
                                 }
                                 float sum = 0;
                                 for (const float p : partial) sum += p;
                                 sums.push_back(sum);
                               }
                               return sums;
                             }),
            "");
}

TEST(ResidualRmsNorm, NormsTheRoundedSum) {
  const auto backend = test_backend(2);
  for (const DType dtype : kFloatTypes) {
    for (const int width : kWidths) {
      for (const auto update : {ops::ResidualUpdate::kAdd, ops::ResidualUpdate::kReplace}) {
        const auto n = static_cast<std::size_t>(width);
        constexpr std::size_t kRows = 3;
        Array residual(dtype, random_normal(4, kRows * n));
        const Array before = residual;
        Array delta(DType::kF32, random_normal(5, kRows * n));
        Array w(DType::kF32, random_normal(6, n, 0.2f));
        Array y(dtype, kRows * n);
        ops::residual_rms_norm(*backend, {.residual = residual.data(),
                                          .residual_dtype = dtype,
                                          .delta = delta.floats(),
                                          .update = update,
                                          .weight = w.floats(),
                                          .num_rows = kRows,
                                          .width = width,
                                          .y = y.data()});
        Array sums(dtype, kRows * n);
        for (std::size_t i = 0; i < kRows * n; ++i) {
          sums.set(i, update == ops::ResidualUpdate::kAdd ? before[i] + delta[i] : delta[i]);
        }
        EXPECT_EQ(first_difference(residual.values(), sums.values()), "");
        for (std::size_t r = 0; r < kRows; ++r) {
          const auto expected = norm_reference(sums.values(r * n, n), w, 1, 1e-6);
          expect_near(y.values(r * n, n), expected, times(expected, kFp32Formula), dtype,
                      fmt::format("width {}", width));
        }
        residual.expect_guards("residual");
        y.expect_guards("y");
        delta.expect_unchanged("delta");
      }
    }
  }
}

// [rows, width], rows of very different magnitudes.
std::vector<float> uneven_rows(std::uint64_t seed, int rows, int width) {
  std::vector<float> values =
      random_normal(seed, static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const int row = static_cast<int>(i) / width;
    // The last of several rows is zeros: its factor is eps's.
    values[i] *= row > 0 && row == rows - 1 ? 0.0f : std::ldexp(1.0f, row % 11 - 5);
  }
  return values;
}

// A residual norm's operands.
struct ResidualNorm {
  ResidualNorm(DType dtype, int num_rows, int row_width, ops::ResidualUpdate residual_update)
      : rows(num_rows),
        width(row_width),
        update(residual_update),
        residual(dtype, uneven_rows(4, rows, width)),
        delta(DType::kF32, uneven_rows(5, rows, width)),
        weight(DType::kF32, random_normal(6, static_cast<std::size_t>(width), 0.2f)),
        y(dtype, residual.size()),
        factors(DType::kF32, static_cast<std::size_t>(rows)) {}

  void run(Backend& backend, float eps, float* row_factors) {
    ops::residual_rms_norm(backend, {.residual = residual.data(),
                                     .residual_dtype = residual.dtype(),
                                     .delta = delta.floats(),
                                     .update = update,
                                     .weight = weight.floats(),
                                     .eps = eps,
                                     .num_rows = rows,
                                     .width = width,
                                     .y = y.data(),
                                     .row_factors = row_factors});
  }

  int rows, width;
  ops::ResidualUpdate update;
  Array residual, delta;  // [rows, width]
  Array weight;           // [width]
  Array y;                // [rows, width]
  Array factors;          // [rows]
};

// The root halves the error of the sum of squares (of bf16 they are more often rounded down than
// up); the mean, the root and its inverse are rounded once each.
constexpr double kFactorError = kFp32Sum / 2 + 3 * 0x1p-24;

void check_left_factors(Backend& backend, DType dtype, int rows, int width,
                        ops::ResidualUpdate update) {
  constexpr float kEps = 1e-6f;
  const auto what = fmt::format("{} rows of {}", rows, width);
  const auto n = static_cast<std::size_t>(width);
  ResidualNorm norm(dtype, rows, width, update), whole = norm;
  whole.run(backend, kEps, nullptr);
  norm.run(backend, kEps, norm.factors.floats());
  ASSERT_EQ(first_difference(norm.residual.values(), whole.residual.values()), "") << what;
  Array unscaled(dtype, norm.y.size());
  for (std::size_t i = 0; i < unscaled.size(); ++i) {
    unscaled.set(i, norm.residual[i] * (1.0f + norm.weight[i % n]));
  }
  ASSERT_EQ(first_difference(norm.y.values(), unscaled.values()), "") << what;
  std::vector<double> factors;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    double squares = 0;
    for (const float v : norm.residual.values(r * n, n)) squares += double{v} * v;
    factors.push_back(1 / std::sqrt(squares / width + double{kEps}));
  }
  expect_near(norm.factors.values(), factors, times(factors, kFactorError), DType::kF32, what);
  norm.y.expect_guards("y");
  norm.residual.expect_guards("residual");
  norm.factors.expect_guards("row_factors");
  norm.delta.expect_unchanged("delta");
  norm.weight.expect_unchanged("weight");
}

TEST(ResidualRmsNorm, LeavesTheRowsFactorsToTheirReaders) {
  const auto backend = test_backend(2);
  for (const DType dtype : kFloatTypes) {
    for (const int width : {1, 3, 4, 15, 16, 17, 128, 1028, 5120, 5121, 7000}) {
      for (const auto update : {ops::ResidualUpdate::kAdd, ops::ResidualUpdate::kReplace}) {
        for (const int rows : {1, 3, 14}) check_left_factors(*backend, dtype, rows, width, update);
      }
    }
  }
}

TEST(ResidualRmsNorm, LeftFactorsShowInTheFactorsAlone) {
  const auto backend = test_backend(2);
  for (const DType dtype : kFloatTypes) {
    for (const int width : {17, 5120}) {
      ResidualNorm small(dtype, 3, width, ops::ResidualUpdate::kAdd), large = small;
      small.run(*backend, 1e-6f, small.factors.floats());
      large.run(*backend, 10.0f, large.factors.floats());
      for (std::size_t r = 0; r < 3; ++r) EXPECT_GT(small.factors[r], large.factors[r]);
      EXPECT_EQ(first_difference(small.y.values(), large.y.values()), "") << "width " << width;
    }
  }
}

TEST(ResidualRmsNorm, RowsAndTheirFactorsDependOnNothingElse) {
  for (const int width : {100, 5120, 5121}) {
    const auto n = static_cast<std::size_t>(width);
    const Array pool(DType::kF32, random_normal(3, 20 * n));
    Array w(DType::kF32, random_normal(2, n, 0.2f));
    const auto op = [&](Backend& backend, const std::vector<int>& rows) {
      const std::vector<float> picked = picked_rows(pool, n, rows);
      Array delta(DType::kF32, picked), residual(DType::kBF16, picked);
      Array y(DType::kBF16, picked.size()), factors(DType::kF32, rows.size());
      ops::residual_rms_norm(backend, {.residual = residual.data(),
                                       .delta = delta.floats(),
                                       .weight = w.floats(),
                                       .num_rows = static_cast<int>(rows.size()),
                                       .width = width,
                                       .y = y.data(),
                                       .row_factors = factors.floats()});
      std::vector<float> results;
      for (std::size_t r = 0; r < rows.size(); ++r) {
        const auto row = y.values(r * n, n);
        results.insert(results.end(), row.begin(), row.end());
        results.push_back(factors[r]);
      }
      return results;
    };
    const auto backend = test_backend(2);
    EXPECT_EQ(batch_dependence(20, [&](const auto& rows) { return op(*backend, rows); }), "");
    EXPECT_EQ(machine_dependence([&](Backend& b) { return op(b, {4, 0, 19, 7, 8}); }), "");
  }
}

TEST(GatedRmsNorm, EqualsTheFormula) {
  const auto backend = test_backend(2);
  for (const DType dtype : kFloatTypes) {
    for (const int width : {16, 33, 128}) {
      for (const auto gate : {ops::GateActivation::kSilu, ops::GateActivation::kSigmoid}) {
        constexpr std::size_t kRows = 3, kHeads = 5;
        const auto n = static_cast<std::size_t>(width);
        Array o(DType::kF32, random_normal(7, kRows * kHeads * n));
        Array z(dtype, random_normal(8, kRows * kHeads * n, 4.0f));
        Array w(DType::kF32, random_normal(9, n));
        Array y(dtype, kRows * kHeads * n);
        ops::gated_rms_norm(*backend, {.o = o.floats(),
                                       .z = z.data(),
                                       .dtype = dtype,
                                       .weight = w.floats(),
                                       .activation = gate,
                                       .num_rows = kRows,
                                       .num_heads = kHeads,
                                       .width = width,
                                       .y = y.data()});
        for (std::size_t h = 0; h < kRows * kHeads; ++h) {
          auto expected = norm_reference(o.values(h * n, n), w, 0, 1e-6);
          for (std::size_t i = 0; i < n; ++i) {
            const double x = z[h * n + i];
            expected[i] *= gate == ops::GateActivation::kSilu ? x * sigmoid(x) : sigmoid(x);
          }
          expect_near(y.values(h * n, n), expected, times(expected, kFp32Formula), dtype, "head");
        }
        y.expect_guards("y");
        z.expect_unchanged("z");
      }
    }
  }
  EXPECT_EQ(machine_dependence([](Backend& b) {
              Array o(DType::kF32, random_normal(7, 12 * 40)), w(DType::kF32, random_normal(9, 40));
              Array z(DType::kF32, random_normal(8, 12 * 40, 30.0f)), y(DType::kF32, 12 * 40);
              ops::gated_rms_norm(b, {.o = o.floats(),
                                      .z = z.data(),
                                      .dtype = DType::kF32,
                                      .weight = w.floats(),
                                      .num_rows = 4,
                                      .num_heads = 3,
                                      .width = 40,
                                      .y = y.data()});
              return y.values();
            }),
            "");
}

TEST(SiluMul, EqualsTheFormulaAndMayAlias) {
  // Where e^-x overflows, a true value of this size comes out as zero.
  constexpr double kVanishing = 1e-36;
  const auto backend = test_backend(2);
  for (const DType dtype : kFloatTypes) {
    constexpr std::size_t kCount = 3 * 1003;
    // From far below the smallest normal sigmoid to far above saturation.
    Array gate(dtype, random_uniform(10, kCount, -120.0f, 120.0f));
    Array up(dtype, random_normal(11, kCount)), y(dtype, kCount);
    ops::SiluMulArgs args{.gate = gate.data(),
                          .up = up.data(),
                          .dtype = dtype,
                          .num_rows = 3,
                          .width = 1003,
                          .y = y.data()};
    ops::silu_mul(*backend, args);
    std::vector<double> expected, tolerance;
    for (std::size_t i = 0; i < kCount; ++i) {
      expected.push_back(double{gate[i]} * sigmoid(gate[i]) * up[i]);
      tolerance.push_back(kFp32Formula * std::abs(expected[i]) +
                          kVanishing);  // results may be subnormal
    }
    expect_near(y.values(), expected, tolerance, dtype, "silu_mul");
    y.expect_guards("y");
    args.y = up.data();
    ops::silu_mul(*backend, args);
    EXPECT_EQ(first_difference(y.values(), up.values()), "");
    up.expect_guards("up");
  }
}

TEST(SiluMul, ElementsDoNotDependOnTheirPlace) {
  const std::vector<float> values = random_normal(12, 64, 8.0f);
  const auto backend = test_backend(1);
  const auto op = [&](std::size_t first, std::size_t count, Backend& b) {
    Array gate(DType::kF32,
               std::vector<float>(values.begin() + static_cast<std::ptrdiff_t>(first),
                                  values.begin() + static_cast<std::ptrdiff_t>(first + count)));
    Array up(DType::kF32, std::vector<float>(count, 1.0f)), y(DType::kF32, count);
    ops::silu_mul(b, {.gate = gate.data(),
                      .up = up.data(),
                      .dtype = DType::kF32,
                      .num_rows = 1,
                      .width = static_cast<int>(count),
                      .y = y.data()});
    return y.values();
  };
  const std::vector<float> whole = op(0, 64, *backend);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(op(i, 1, *backend)[0], whole[i]) << "element " << i << " alone";
  }
  EXPECT_EQ(machine_dependence([&](Backend& b) { return op(0, 64, b); }), "");
}

TEST(Embedding, CopiesItsShardAndZeroesTheRest) {
  const auto backend = test_backend(2);
  for (const DType dtype : kFloatTypes) {
    Array table(dtype, random_normal(13, 10 * 37));
    const Vector<std::int32_t> ids{20, 29, 30, 19, 25, 0};
    Array out(DType::kF32, ids.size() * 37);
    ops::embedding(*backend, {.token_ids = ids.data(),
                              .num_rows = static_cast<int>(ids.size()),
                              .table = table.data(),
                              .table_dtype = dtype,
                              .shard_begin = 20,
                              .shard_rows = 10,
                              .hidden = 37,
                              .out = out.floats()});
    for (std::size_t r = 0; r < ids.size(); ++r) {
      const bool ours = ids[r] >= 20 && ids[r] < 30;
      const auto expected = ours ? table.values(static_cast<std::size_t>(ids[r] - 20) * 37, 37)
                                 : std::vector<float>(37, 0.0f);
      EXPECT_EQ(first_difference(out.values(r * 37, 37), expected), "") << "id " << ids[r];
    }
    out.expect_guards("out");
  }
}

TEST(GatherScatter, AreInverse) {
  const auto backend = test_backend(2);
  Array x(DType::kBF16, random_normal(14, 9 * 21));
  const Vector<std::int32_t> rows{8, 0, 3, 5};
  Array picked(DType::kBF16, 4 * 30);
  const Array untouched = picked;
  ops::gather_rows(*backend, {.x = x.data(),
                              .rows = rows.data(),
                              .num_rows = 4,
                              .row_bytes = 42,
                              .y_stride_bytes = 60,
                              .y = picked.data()});
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(first_difference(picked.values(i * 30, 21),
                               x.values(static_cast<std::size_t>(rows[i]) * 21, 21)),
              "");
    EXPECT_EQ(first_difference(picked.values(i * 30 + 21, 9), untouched.values(0, 9)), "");
  }
  picked.expect_guards("y");
  Array packed(DType::kBF16, 4 * 21), back = x;
  ops::gather_rows(*backend, {.x = x.data(),
                              .rows = rows.data(),
                              .num_rows = 4,
                              .row_bytes = 42,
                              .y_stride_bytes = 42,
                              .y = packed.data()});
  for (const std::int32_t r : rows) back.set(static_cast<std::size_t>(r) * 21, -1.0f);
  ops::scatter_rows(
      *backend,
      {.x = packed.data(), .rows = rows.data(), .num_rows = 4, .row_bytes = 42, .y = back.data()});
  EXPECT_EQ(first_difference(back.values(), x.values()), "");
  back.expect_guards("y");
}

TEST(Cast, RoundsLikeToBf16) {
  const auto backend = test_backend(2);
  std::vector<float> values = random_normal(15, 1000, 100.0f);
  values.insert(values.end(),
                {1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, 0x1.fffffep127f, 1e-42f, -0.0f,
                 std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                 std::numeric_limits<float>::quiet_NaN()});
  for (int i = 0; i < 20; ++i) values.push_back(values[1000 + static_cast<std::size_t>(i % 8)]);
  Array x(DType::kF32, values), y(DType::kBF16, values.size()), same(DType::kF32, values.size());
  const auto count = static_cast<std::int64_t>(values.size());
  ops::cast(*backend, {.x = x.floats(), .count = count, .y = y.data()});
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bf16 rounded = static_cast<const bf16*>(y.data())[i];
    if (std::isnan(values[i])) {
      EXPECT_TRUE(std::isnan(to_float(rounded)));  // with any payload
    } else {
      EXPECT_EQ(rounded.bits, to_bf16(values[i]).bits) << values[i];
    }
  }
  y.expect_guards("y");
  ops::cast(*backend, {.x = x.floats(), .count = count, .y = same.data(), .y_dtype = DType::kF32});
  EXPECT_EQ(first_difference(same.values(), values), "");
}

TEST(Rowwise, RefuseArgumentsThatCannotBeRight) {
  const auto backend = test_backend(1);
  Array x(DType::kF32, 16), y(DType::kF32, 16);
  EXPECT_THROW(ops::rms_norm(*backend, {.x = x.data(),
                                        .x_dtype = DType::kF32,
                                        .x_stride = 8,
                                        .weight = x.floats(),
                                        .num_rows = 2,
                                        .width = 8,
                                        .y = y.data(),
                                        .y_stride = 7}),
               Error);
  EXPECT_THROW(
      ops::silu_mul(*backend,
                    {.gate = x.data(), .up = nullptr, .num_rows = 1, .width = 4, .y = y.data()}),
      Error);
  EXPECT_THROW(
      ops::cast(*backend, {.x = x.floats(), .count = 4, .y = y.data(), .y_dtype = DType::kF16}),
      Error);
  Array residual(DType::kBF16, 8), normed(DType::kBF16, 8), weight(DType::kF32, 8);
  Array delta(DType::kF32, random_normal(1, 8)), factors(DType::kF32, 2);
  const auto norm = [&](float* row_factors) {
    ops::residual_rms_norm(*backend, {.residual = residual.data(),
                                      .delta = delta.floats(),
                                      .update = ops::ResidualUpdate::kReplace,
                                      .weight = weight.floats(),
                                      .num_rows = 2,
                                      .width = 4,
                                      .y = normed.data(),
                                      .row_factors = row_factors});
  };
  EXPECT_NO_THROW(norm(factors.floats()));
  for (Array* other : {&residual, &delta, &weight, &normed}) {
    EXPECT_THROW(norm(other->floats()), Error);
  }
  const std::int32_t row = 0;
  EXPECT_THROW(ops::gather_rows(*backend, {.x = x.data(),
                                           .rows = &row,
                                           .num_rows = 1,
                                           .row_bytes = 8,
                                           .y_stride_bytes = 4,
                                           .y = y.data()}),
               Error);
}

TEST(Add, AddsInPlace) {
  const auto backend = make_backend(BackendKind::kCpu, {});
  for (const int n : {1, 15, 1000, 100001}) {
    std::vector<float> x(static_cast<std::size_t>(n));
    std::vector<float> y(x.size());
    std::vector<float> expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i) * 0.37f;
      y[i] = static_cast<float>(i % 13) - 3.1f;
      expected[i] = y[i] + x[i];
    }
    ops::add(*backend, {.x = x.data(), .count = n, .y = y.data()});
    EXPECT_EQ(y, expected);
  }
}

}  // namespace
}  // namespace tandem::testing
