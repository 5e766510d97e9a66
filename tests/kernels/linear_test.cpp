#include "kernels/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "tests/kernels/op_check.h"
#include "tests/kernels/quantized_weight.h"

namespace tandem::testing {
namespace {

using ops::LinearArgs;
using ops::WeightFormat;

struct Shape {
  int rows, outs, columns;
};

struct Types {
  DType x, w, y;
};

constexpr Types kTypes[] = {{DType::kF32, DType::kF32, DType::kF32},
                            {DType::kBF16, DType::kBF16, DType::kBF16},
                            {DType::kBF16, DType::kBF16, DType::kF32},
                            {DType::kF32, DType::kBF16, DType::kF32}};

WeightFormat plain_format(DType dtype) {
  return dtype == DType::kF32 ? WeightFormat::kF32 : WeightFormat::kBf16;
}

// Rows lie `gap` elements apart, so that a row's end is not the next row's beginning.
LinearArgs make_args(const Shape& shape, Array& x, int gap, const void* w, WeightFormat format,
                     int leaves, Array& y) {
  return {.x = x.data(),
          .x_dtype = x.dtype(),
          .x_stride = shape.columns + gap,
          .num_rows = shape.rows,
          .weight = {.format = format,
                     .out_features = shape.outs,
                     .in_features = shape.columns,
                     .data = w},
          .num_leaves = leaves,
          .y = y.data(),
          .y_dtype = y.dtype(),
          .y_stride = shape.outs + gap};
}

void check_product(Backend& backend, const Shape& shape, const Types& types, int leaves) {
  constexpr std::size_t kGap = 3;
  const auto rows = static_cast<std::size_t>(shape.rows);
  const auto outs = static_cast<std::size_t>(shape.outs);
  const auto columns = static_cast<std::size_t>(shape.columns);
  Array x(types.x, random_normal(1, rows * (columns + kGap)));
  Array w(types.w, random_normal(2, outs * columns));
  Array y(types.y, rows * (outs + kGap));
  const Array untouched = y;
  ops::linear(backend, make_args(shape, x, kGap, w.data(), plain_format(types.w), leaves, y));
  std::vector<float> actual;
  std::vector<double> expected, tolerance;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t n = 0; n < outs; ++n) {
      double sum = 0, magnitude = 0;
      for (std::size_t k = 0; k < columns; ++k) {
        const double term = double{x[r * (columns + kGap) + k]} * w[n * columns + k];
        sum += term;
        magnitude += std::abs(term);
      }
      actual.push_back(y[r * (outs + kGap) + n]);
      expected.push_back(sum);
      tolerance.push_back(kFp32Sum * magnitude);
    }
    EXPECT_EQ(first_difference(y.values(r * (outs + kGap) + outs, kGap),
                               untouched.values(r * (outs + kGap) + outs, kGap)),
              "");
  }
  expect_near(
      actual, expected, tolerance, types.y,
      fmt::format("{} x {} x {}, {} leaves", shape.rows, shape.outs, shape.columns, leaves));
  y.expect_guards("y");
  x.expect_unchanged("x");
  w.expect_unchanged("w");
}

TEST(Linear, EqualsTheProductForAwkwardSizes) {
  const auto backend = test_backend(2);
  for (const Types& types : kTypes) {
    for (const int columns : {1, 3, 15, 16, 17, 127}) {
      for (const int rows : {1, 2, 3, 4, 5, 15, 16, 17, 33}) {
        for (const int outs : {1, 3, 8, 71})
          check_product(*backend, {rows, outs, columns}, types, 1);
      }
    }
    check_product(*backend, {1, 130, 5000}, types, 8);
    check_product(*backend, {19, 33, 5000}, types, 4);
    check_product(*backend, {70, 140, 5120}, types, 8);
    check_product(*backend, {1, 9, 40000}, types, 1);  // longer than one chunk of x
  }
}

// The pool's rows, as batch_dependence() wants them.
auto rows_of(Backend& backend, const Array& pool, const Array& w, int outs, int columns,
             const std::function<int(int rows)>& leaves) {
  return [&backend, &pool, &w, outs, columns, leaves](const std::vector<int>& rows) {
    Array x(pool.dtype(), picked_rows(pool, static_cast<std::size_t>(columns), rows));
    Array y(DType::kF32, rows.size() * static_cast<std::size_t>(outs));
    const int num_rows = static_cast<int>(rows.size());
    ops::linear(backend, make_args({num_rows, outs, columns}, x, 0, w.data(),
                                   plain_format(w.dtype()), leaves(num_rows), y));
    return y.values();
  };
}

TEST(Linear, RowsDoNotDependOnTheirBatch) {
  const auto backend = test_backend(2);
  for (const Types& types : kTypes) {
    for (const int columns : {33, 384, 2500}) {
      const Array pool(types.x, random_normal(3, static_cast<std::size_t>(37 * columns)));
      const Array w(types.w, random_normal(4, static_cast<std::size_t>(70 * columns)));
      EXPECT_EQ(
          batch_dependence(37, rows_of(*backend, pool, w, 70, columns, [](int) { return 1; })), "");
    }
  }
}

// Prompts have hundreds of rows, and kernels of their own where that pays.
TEST(Linear, ManyRowsEqualEachAlone) {
  const auto backend = test_backend(2);
  constexpr int kRows = 150, kOuts = 200;
  for (const auto& [columns, leaves] : {std::pair{2176, 1}, {2176, 8}, {1536, 2}, {40, 1}}) {
    const auto width = static_cast<std::size_t>(columns);
    Array x(DType::kBF16, random_normal(10, kRows * width));
    const Array w(DType::kBF16, random_normal(11, kOuts * width));
    Array y(DType::kF32, kRows * kOuts);
    ops::linear(*backend,
                make_args({kRows, kOuts, columns}, x, 0, w.data(), WeightFormat::kBf16, leaves, y));
    for (std::size_t r = 0; r < kRows; r += r < 20 ? 1 : 13) {
      Array row(DType::kBF16, x.values(r * width, width)), alone(DType::kF32, kOuts);
      ops::linear(*backend, make_args({1, kOuts, columns}, row, 0, w.data(), WeightFormat::kBf16,
                                      leaves, alone));
      ASSERT_EQ(first_difference(y.values(r * kOuts, kOuts), alone.values()), "")
          << columns << " columns, " << leaves << " leaves, row " << r;
    }
  }
}

// The checker must be able to fail: an operator whose order of summation changes with the number of
// rows is what it is there to catch.
TEST(Linear, ShapeDependentMutantIsCaught) {
  const auto backend = test_backend(2);
  const Array pool(DType::kBF16, random_normal(3, 37 * 384));
  const Array w(DType::kBF16, random_normal(4, 70 * 384));
  EXPECT_NE(batch_dependence(37, rows_of(*backend, pool, w, 70, 384,
                                         [](int rows) { return rows >= 8 ? 2 : 1; })),
            "");
}

TEST(Linear, SameBitsOnEveryTargetAndThreadCount) {
  for (const int rows : {1, 3, 8, 21}) {
    const Shape shape{rows, 75, 1237};
    EXPECT_EQ(machine_dependence([&](Backend& backend) {
                Array x(DType::kBF16, random_normal(5, static_cast<std::size_t>(rows * 1237)));
                Array w(DType::kBF16, random_normal(6, 75 * 1237));
                Array y(DType::kF32, static_cast<std::size_t>(rows * 75));
                ops::linear(backend, make_args(shape, x, 0, w.data(), WeightFormat::kBf16, 1, y));
                return y.values();
              }),
              "");
  }
}

// The ranks of a tensor-parallel group own subtrees of the leaves: what they add up to in the same
// tree must be what one rank computes.
TEST(Linear, LeavesFormOneTreeOverAnyNumberOfRanks) {
  const auto backend = test_backend(2);
  constexpr int kColumns = 8 * 136, kOuts = 37, kRows = 5, kLeaves = 8;
  const Array x(DType::kBF16, random_normal(7, kRows * kColumns));
  const Array w(DType::kBF16, random_normal(8, kOuts * kColumns));
  const auto part = [&](int begin, int columns, int leaves) {
    std::vector<float> xs, ws;
    for (std::size_t r = 0; r < kRows; ++r) {
      for (int k = 0; k < columns; ++k)
        xs.push_back(x[r * kColumns + static_cast<std::size_t>(begin + k)]);
    }
    for (std::size_t n = 0; n < kOuts; ++n) {
      for (int k = 0; k < columns; ++k)
        ws.push_back(w[n * kColumns + static_cast<std::size_t>(begin + k)]);
    }
    Array part_x(DType::kBF16, xs), part_w(DType::kBF16, ws);
    Array y(DType::kF32, kRows * kOuts);
    ops::linear(*backend, make_args({kRows, kOuts, columns}, part_x, 0, part_w.data(),
                                    WeightFormat::kBf16, leaves, y));
    return y.values();
  };
  const std::vector<float> whole = part(0, kColumns, kLeaves);
  for (int ranks = 2; ranks <= kLeaves; ranks *= 2) {
    std::vector<std::vector<float>> sums;
    const int columns = kColumns / ranks;
    for (int r = 0; r < ranks; ++r) sums.push_back(part(r * columns, columns, kLeaves / ranks));
    while (sums.size() > 1) {
      std::vector<std::vector<float>> next;
      for (std::size_t i = 0; i < sums.size(); i += 2) {
        next.push_back(sums[i]);
        for (std::size_t j = 0; j < next.back().size(); ++j) next.back()[j] += sums[i + 1][j];
      }
      sums = std::move(next);
    }
    EXPECT_EQ(first_difference(whole, sums[0]), "") << ranks << " ranks";
  }
  EXPECT_NE(first_difference(whole, part(0, kColumns, 1)), "") << "the leaves make no difference";
}

TEST(Linear, QuantizedFormatsMultiplyTheirDequantizedValues) {
  struct Case {
    WeightFormat format;
    DType scale_dtype;
    int block_rows, block_cols;
    float scale_2;
  };
  const Case cases[] = {{WeightFormat::kFp8Block, DType::kBF16, 128, 128, 1.0f},
                        {WeightFormat::kFp8Block, DType::kF32, 128, 128, 1.0f},
                        {WeightFormat::kFp8Block, DType::kF8E8M0, 128, 128, 1.0f},
                        {WeightFormat::kFp8Tensor, DType::kF32, 0, 0, 0.37f},
                        {WeightFormat::kFp8Channel, DType::kF32, 1, 0, 1.0f},
                        {WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 0.021f},
                        {WeightFormat::kMxfp4, DType::kF8E8M0, 1, 32, 1.0f},
                        {WeightFormat::kInt8Channel, DType::kF32, 1, 0, 1.0f},
                        {WeightFormat::kInt8Group, DType::kF16, 1, 32, 1.0f},
                        {WeightFormat::kInt8Group, DType::kF32, 1, 64, 1.0f}};
  const auto backend = test_backend(2);
  constexpr int kOuts = 137, kColumns = 448;  // partial blocks of 128 at both edges
  for (const Case& c : cases) {
    ASSERT_TRUE(ops::linear_supports(backend->kind(), c.format));
    Quantized q = quantize_at_random(c.format, c.scale_dtype, kOuts, kColumns, c.block_rows,
                                     c.block_cols, c.scale_2);
    q.weight.data = q.codes.data();
    q.weight.scales = q.scales.data();
    ops::prepack_weight(*backend, q.weight);
    for (const auto& [rows, leaves] : {std::pair{1, 4}, {5, 4}, {1, 1}, {5, 1}, {40, 1}}) {
      Array x(DType::kBF16, random_normal(9, static_cast<std::size_t>(rows * kColumns)));
      Array y(DType::kF32, static_cast<std::size_t>(rows * kOuts));
      LinearArgs args = make_args({rows, kOuts, kColumns}, x, 0, nullptr, c.format, leaves, y);
      args.weight = q.weight;
      ops::linear(*backend, args);
      std::vector<double> expected, tolerance;
      for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
        for (std::size_t n = 0; n < kOuts; ++n) {
          double sum = 0, magnitude = 0;
          for (std::size_t k = 0; k < kColumns; ++k) {
            const double term = x[r * kColumns + k] * q.values[n * kColumns + k];
            sum += term;
            magnitude += std::abs(term);
          }
          expected.push_back(sum);
          tolerance.push_back(kFp32Sum * magnitude);
        }
      }
      expect_near(y.values(), expected, tolerance, DType::kF32,
                  fmt::format("format {}", static_cast<int>(c.format)));
      y.expect_guards("y");
      // The first row alone.
      Array alone(DType::kF32, kOuts);
      args.num_rows = 1;
      args.y = alone.data();
      ops::linear(*backend, args);
      EXPECT_EQ(first_difference(y.values(0, kOuts), alone.values()), "");
    }
  }
}

// So many outputs that a GPU's blocks have several tiles, or take their share in several sweeps,
// and formats whose rows are fetched by different means depending on their number.
TEST(Linear, ManyOutputsOfFewRows) {
  const auto backend = test_backend(2);
  constexpr int kRows = 20;
  struct Case {
    WeightFormat format;
    DType scale_dtype;
    int block_rows, block_cols;
    int outs, columns, leaves;
  };
  const Case cases[] = {{WeightFormat::kFp8Block, DType::kBF16, 128, 128, 6000, 1280, 2},
                        {WeightFormat::kFp8Block, DType::kF32, 128, 128, 20000, 256, 1},
                        {WeightFormat::kFp8Channel, DType::kF32, 1, 0, 3000, 2752, 1},
                        {WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 6000, 3072, 8},
                        {WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 20000, 256, 2}};
  for (const Case& c : cases) {
    Quantized q = quantize_at_random(c.format, c.scale_dtype, c.outs, c.columns, c.block_rows,
                                     c.block_cols, 0.1f);
    q.weight.data = q.codes.data();
    q.weight.scales = q.scales.data();
    ops::prepack_weight(*backend, q.weight);
    const auto outs = static_cast<std::size_t>(c.outs),
               columns = static_cast<std::size_t>(c.columns);
    const std::vector<float> values = random_normal(21, kRows * columns);
    const auto rows_from = [&](std::size_t first, int count) {
      Array x(DType::kBF16,
              {values.begin() + static_cast<std::ptrdiff_t>(first * columns),
               values.begin() + static_cast<std::ptrdiff_t>((first + count) * columns)});
      Array y(DType::kF32, static_cast<std::size_t>(count) * outs);
      LinearArgs args = make_args({count, c.outs, c.columns}, x, 0, nullptr, c.format, c.leaves, y);
      args.weight = q.weight;
      ops::linear(*backend, args);
      y.expect_guards("y");
      return y.values();
    };
    const std::vector<float> all = rows_from(0, kRows);
    const auto same = [&](std::size_t first, int count) {
      EXPECT_EQ(
          first_difference(rows_from(first, count),
                           {all.begin() + static_cast<std::ptrdiff_t>(first * outs),
                            all.begin() + static_cast<std::ptrdiff_t>((first + count) * outs)}),
          "")
          << count << " rows of " << c.outs << " x " << c.columns << ", format "
          << static_cast<int>(c.format);
    };
    same(0, 1);
    same(3, 8);
    same(4, 16);
    const Array x(DType::kBF16, values);
    std::vector<float> actual;
    std::vector<double> expected, tolerance;
    for (const std::size_t r : {std::size_t{0}, std::size_t{kRows - 1}}) {
      for (std::size_t n = 0; n < outs; n += 7) {
        double sum = 0, magnitude = 0;
        for (std::size_t k = 0; k < columns; ++k) {
          const double term = x[r * columns + k] * q.values[n * columns + k];
          sum += term;
          magnitude += std::abs(term);
        }
        actual.push_back(all[r * outs + n]);
        expected.push_back(sum);
        tolerance.push_back(kFp32Sum * magnitude);
      }
    }
    expect_near(actual, expected, tolerance, DType::kF32, "some of the outputs");
  }
}

TEST(Linear, GroupsOfManyOutputsEqualEachAlone) {
  const auto backend = test_backend(2);
  for (const auto& [columns, scale] : {std::pair{640, 1}, {128, 8}}) {
    const auto width = static_cast<std::size_t>(columns);
    const int outs[] = {2500 * scale, 1500 * scale, 48, 5};
    Array x(DType::kBF16, random_normal(31, 16 * width));
    std::vector<Array> w, together, alone;
    for (const int n : outs) {
      const auto count = static_cast<std::size_t>(n);
      w.emplace_back(DType::kBF16, random_normal(32 + count, count * width));
      together.emplace_back(DType::kBF16, 16 * count);
      alone.emplace_back(DType::kBF16, 16 * count);
    }
    for (const int rows : {1, 8, 13}) {
      std::vector<LinearArgs> group;
      for (std::size_t i = 0; i < w.size(); ++i) {
        const auto args = [&](Array& y) {
          return make_args({rows, outs[i], columns}, x, 0, w[i].data(), WeightFormat::kBf16, 1, y);
        };
        group.push_back(args(together[i]));
        ops::linear(*backend, args(alone[i]));
      }
      ops::linear_group(*backend, group);
      for (std::size_t i = 0; i < w.size(); ++i) {
        EXPECT_EQ(first_difference(together[i].values(), alone[i].values()), "")
            << rows << " rows, " << outs[i] << " outputs of " << columns;
      }
    }
  }
}

TEST(Linear, RefusesGroupsOfDifferentRows) {
  const auto backend = test_backend(1);
  Array x(DType::kBF16, random_normal(1, 3 * 64)), w(DType::kBF16, random_normal(2, 64 * 8));
  Array y(DType::kF32, 16), other_y(DType::kF32, 16);
  Array factors(DType::kF32, {1.0f, 2.0f, 3.0f});
  LinearArgs good = make_args({2, 8, 64}, x, 0, w.data(), WeightFormat::kBf16, 1, y);
  good.row_factors = factors.floats();
  const auto group = [&](const std::function<void(LinearArgs&)>& change) {
    LinearArgs members[] = {good, good};
    members[1].y = other_y.data();
    change(members[1]);
    ops::linear_group(*backend, members);
  };
  EXPECT_NO_THROW(group([](LinearArgs&) {}));
  EXPECT_NO_THROW(group([](LinearArgs& a) { a.num_leaves = 2; }));
  EXPECT_THROW(group([](LinearArgs& a) { a.row_factors = nullptr; }), Error);
  EXPECT_THROW(group([](LinearArgs& a) { a.row_factors += 1; }), Error);
  EXPECT_THROW(group([&](LinearArgs& a) { a.x = x.at(64); }), Error);
  EXPECT_THROW(group([](LinearArgs& a) { a.num_rows = 1; }), Error);
  EXPECT_THROW(group([](LinearArgs& a) { a.row_class = ops::RowClass::kPrompt; }), Error);
  good.row_factors = nullptr;
  EXPECT_THROW(group([&](LinearArgs& a) { a.row_factors = factors.floats(); }), Error);
}

TEST(Linear, RefusesArgumentsThatCannotBeRight) {
  const auto backend = test_backend(1);
  Array x(DType::kBF16, 64), w(DType::kBF16, 64 * 8), y(DType::kF32, 16);
  const LinearArgs good = make_args({1, 8, 64}, x, 0, w.data(), WeightFormat::kBf16, 4, y);
  EXPECT_NO_THROW(ops::linear(*backend, good));
  const auto refused = [&](const std::function<void(LinearArgs&)>& spoil) {
    LinearArgs args = good;
    spoil(args);
    EXPECT_THROW(ops::linear(*backend, args), Error);
  };
  refused([](LinearArgs& a) { a.num_leaves = 3; });
  refused([](LinearArgs& a) { a.num_leaves = 128; });
  refused([](LinearArgs& a) { a.weight.in_features = 63; });
  refused([](LinearArgs& a) { a.x = nullptr; });
  refused([](LinearArgs& a) { a.y = const_cast<void*>(a.x); });
  refused([](LinearArgs& a) { a.x_dtype = DType::kF16; });
  refused([](LinearArgs& a) { a.num_rows = 2, a.x_stride = 8; });
  refused([](LinearArgs& a) { a.weight.format = WeightFormat::kFp8Block; });  // no scales
}

// Codes in the wrong order would give numbers, and nothing that says so.
TEST(Linear, CodesArePrepackedExactlyOnce) {
  const auto backend = test_backend(1);
  for (const auto& [format, scale, columns] : {std::tuple{WeightFormat::kNvfp4, DType::kF8E4M3, 16},
                                               {WeightFormat::kMxfp4, DType::kF8E8M0, 32},
                                               {WeightFormat::kFp8Block, DType::kF32, 64}}) {
    Quantized q = quantize_at_random(format, scale, 8, 64, 1, columns, 1.0f);
    q.weight.data = q.codes.data();
    q.weight.scales = q.scales.data();
    Array x(DType::kBF16, random_normal(1, 64)), y(DType::kF32, 8);
    LinearArgs args = make_args({1, 8, 64}, x, 0, nullptr, format, 1, y);
    args.weight = q.weight;
    EXPECT_THROW(ops::linear(*backend, args), Error);
    EXPECT_THROW(ops::linear_group(*backend, {&args, 1}), Error);
    ops::prepack_weight(*backend, args.weight);
    EXPECT_NO_THROW(ops::linear(*backend, args));
    EXPECT_THROW(ops::prepack_weight(*backend, args.weight), Error);
  }
  // Other formats need it not, and may be given.
  Array w(DType::kBF16, 64 * 8);
  ops::LinearWeight plain{.out_features = 8, .in_features = 64, .data = w.data()};
  ops::prepack_weight(*backend, plain);
  ops::prepack_weight(*backend, plain);
  w.expect_unchanged("w");
}

}  // namespace
}  // namespace tandem::testing
