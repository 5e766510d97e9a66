// Linears whose rows have factors: values, and that factors show in nothing else. Operands lie in
// the backend's memory, so that every kernel serves that does so in the program.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>

#include "kernels/ops/linear.h"
#include "tests/kernels/op_check.h"
#include "tests/kernels/quantized_weight.h"

namespace tandem::testing {
namespace {

using ops::LinearArgs;
using ops::WeightFormat;

// A copy in the backend's memory, where the program's operands lie.
class DeviceCopy {
 public:
  DeviceCopy(Backend& backend, const void* data, std::size_t bytes)
      : backend_(backend), bytes_(bytes), data_(bytes == 0 ? nullptr : backend.allocate(bytes)) {
    if (bytes > 0) backend.copy(data_, data, bytes);
    backend.synchronize();
  }
  ~DeviceCopy() {
    if (bytes_ > 0) backend_.deallocate(data_, bytes_);
  }
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  void* data() const { return data_; }

 private:
  Backend& backend_;
  std::size_t bytes_;
  void* data_;
};

struct WeightCase {
  WeightFormat format;
  DType scale_dtype;
  int block_rows, block_cols;
  float scale_2;
  int columns, leaves;
  DType x_dtype = DType::kBF16;
};

bool is_plain(WeightFormat format) {
  return format == WeightFormat::kBf16 || format == WeightFormat::kF32;
}

std::string name(const WeightCase& c) {
  return fmt::format("format {}, x {}, {} columns, {} leaves", static_cast<int>(c.format),
                     dtype_name(c.x_dtype), c.columns, c.leaves);
}

Quantized make_weight(const WeightCase& c, int outs) {
  if (!is_plain(c.format)) {
    return quantize_at_random(c.format, c.scale_dtype, outs, c.columns, c.block_rows, c.block_cols,
                              c.scale_2);
  }
  Quantized q;
  const Array w(c.format == WeightFormat::kF32 ? DType::kF32 : DType::kBF16,
                random_normal(41, static_cast<std::size_t>(outs) * std::size_t(c.columns)));
  const auto* bytes = static_cast<const std::uint8_t*>(w.data());
  q.codes.assign(bytes, bytes + w.size() * dtype_bytes(w.dtype()));
  for (std::size_t i = 0; i < w.size(); ++i) q.values.push_back(w[i]);
  q.weight = {.format = c.format, .out_features = outs, .in_features = c.columns};
  return q;
}

// Where rows lie, in elements from one's end to the next one's beginning.
struct Gaps {
  int x, y;
};

// A weight, and rows of x to multiply it with.
class FactorLinear {
 public:
  FactorLinear(Backend& backend, const WeightCase& c, int outs, int rows)
      : case_(c),
        q_(make_weight(c, outs)),
        codes_(backend, q_.codes.data(), q_.codes.size()),
        scales_(backend, q_.scales.data(), q_.scales.size()),
        values_(Array(c.x_dtype, random_normal(42, std::size_t(rows) * std::size_t(c.columns)))
                    .values()) {
    q_.weight.data = codes_.data();
    q_.weight.scales = scales_.data();
    ops::prepack_weight(backend, q_.weight);
    for (const int gap : {0, kGap}) {
      Array x(c.x_dtype, std::size_t(rows) * std::size_t(c.columns + gap));
      for (std::size_t i = 0; i < values_.size(); ++i) {
        x.set(i + i / std::size_t(c.columns) * std::size_t(gap), values_[i]);
      }
      (gap == 0 ? x_ : gapped_x_).emplace(backend, x.data(), x.size() * dtype_bytes(c.x_dtype));
    }
  }

  static constexpr int kGap = 3;

  const std::vector<float>& x() const { return values_; }           // [rows, columns]
  const std::vector<double>& weights() const { return q_.values; }  // [outs, columns]

  std::vector<float> multiply(Backend& backend, int first, int rows, ops::RowClass row_class,
                              const float* factors, DType y_dtype, const Gaps& gaps) const {
    const auto outs = static_cast<std::size_t>(q_.weight.out_features);
    const std::size_t y_stride = outs + static_cast<std::size_t>(gaps.y);
    Array y(y_dtype, static_cast<std::size_t>(rows) * y_stride);
    ops::linear(backend, args(first, rows, row_class, factors, y, gaps));
    y.expect_guards("y");
    std::vector<float> results;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      const auto row = y.values(r * y_stride, outs);
      results.insert(results.end(), row.begin(), row.end());
    }
    return results;
  }

  LinearArgs args(int first, int rows, ops::RowClass row_class, const float* factors, Array& y,
                  const Gaps& gaps) const {
    const std::int64_t stride = case_.columns + gaps.x;
    const auto* x = static_cast<const std::byte*>((gaps.x == 0 ? x_ : gapped_x_)->data());
    return {.x = x + first * stride * static_cast<std::int64_t>(dtype_bytes(case_.x_dtype)),
            .x_dtype = case_.x_dtype,
            .x_stride = stride,
            .num_rows = rows,
            .weight = q_.weight,
            .row_class = row_class,
            .num_leaves = case_.leaves,
            .row_factors = factors,
            .y = y.data(),
            .y_dtype = y.dtype(),
            .y_stride = q_.weight.out_features + gaps.y};
  }

 private:
  WeightCase case_;
  Quantized q_;
  DeviceCopy codes_, scales_;
  std::vector<float> values_;
  std::optional<DeviceCopy> x_, gapped_x_;
};

// With kFactorRows, kGaps and kRowClasses every kernel of the GPU has its turn.
constexpr WeightCase kFactorCases[] = {
    {WeightFormat::kF32, DType::kF32, 0, 0, 1.0f, 130, 1, DType::kF32},
    {WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 256, 2, DType::kF32},
    {WeightFormat::kF32, DType::kF32, 0, 0, 1.0f, 64, 1},
    {WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 33, 1},
    {WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 512, 1},
    {WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 1024, 8},
    {WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 64 * 16, 64},
    {WeightFormat::kFp8Block, DType::kBF16, 128, 128, 1.0f, 448, 1},
    {WeightFormat::kFp8Block, DType::kF32, 128, 128, 1.0f, 512, 4},
    {WeightFormat::kFp8Block, DType::kF8E8M0, 128, 128, 1.0f, 256, 1},
    {WeightFormat::kFp8Tensor, DType::kF32, 0, 0, 0.37f, 512, 4},
    {WeightFormat::kFp8Channel, DType::kF32, 1, 0, 1.0f, 512, 1},
    {WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 0.021f, 512, 1},
    {WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 0.021f, 1024, 8},
    {WeightFormat::kMxfp4, DType::kF8E8M0, 1, 32, 1.0f, 512, 4},
    {WeightFormat::kInt8Channel, DType::kF32, 1, 0, 1.0f, 512, 1},
    {WeightFormat::kInt8Group, DType::kF16, 1, 32, 1.0f, 256, 1},
    {WeightFormat::kInt8Group, DType::kF32, 1, 128, 1.0f, 512, 4}};
constexpr int kFactorRows[] = {1, 3, 16, 17, 40, 200};
constexpr int kMostFactorRows = 200;
constexpr Gaps kGaps[] = {
    {0, 0}, {0, FactorLinear::kGap}, {FactorLinear::kGap, FactorLinear::kGap}};
constexpr ops::RowClass kRowClasses[] = {ops::RowClass::kGenerated, ops::RowClass::kPrompt};

Array uneven_factors() { return {DType::kF32, random_uniform(43, kMostFactorRows, 0.01f, 30.0f)}; }

Array powers_of_two() {
  Array factors(DType::kF32, kMostFactorRows);
  for (int r = 0; r < kMostFactorRows; ++r) {
    factors.set(static_cast<std::size_t>(r), std::ldexp(1.0f, r * 5 % 23 - 11));
  }
  return factors;
}

TEST(LinearFactors, MultiplyTheRowsSums) {
  // The matrix units of some GPUs truncate a running sum of prompt rows every so many columns.
  constexpr double kTruncation = 0x1p-23 / 16;
  const auto backend = test_backend(2);
  constexpr int kOuts = 134;
  Array factors = uneven_factors();
  const Array before = factors;
  for (const WeightCase& c : kFactorCases) {
    const FactorLinear linear(*backend, c, kOuts, kMostFactorRows);
    const auto columns = static_cast<std::size_t>(c.columns);
    std::vector<double> expected, rounding, truncation;
    for (std::size_t r = 0; r < kMostFactorRows; ++r) {
      for (std::size_t n = 0; n < kOuts; ++n) {
        double sum = 0, magnitude = 0, largest = 0;
        for (std::size_t k = 0; k < columns; ++k) {
          const double term =
              double{linear.x()[r * columns + k]} * linear.weights()[n * columns + k];
          sum += term;
          magnitude += std::abs(term);
          largest = std::max(largest, std::abs(sum));
        }
        expected.push_back(factors[r] * sum);
        rounding.push_back(factors[r] * kFp32Sum * magnitude);
        truncation.push_back(rounding.back() + factors[r] * kTruncation * c.columns * largest);
      }
    }
    for (const int rows : kFactorRows) {
      const auto count = rows * kOuts;
      const std::vector<double> products(expected.begin(), expected.begin() + count);
      for (const auto row_class : kRowClasses) {
        const auto& error = row_class == ops::RowClass::kPrompt ? truncation : rounding;
        const std::vector<double> tolerance(error.begin(), error.begin() + count);
        for (const Gaps& gaps : kGaps) {
          for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
            expect_near(
                linear.multiply(*backend, 0, rows, row_class, factors.floats(), y_dtype, gaps),
                products, tolerance, y_dtype, fmt::format("{}, {} rows", name(c), rows));
          }
        }
      }
    }
  }
  EXPECT_EQ(first_difference(factors.values(), before.values()), "");
}

// Factors that are powers of two change nothing of y but exponents; with any factors a row's bits
// are those that it has alone.
void check_bits(Backend& backend, const FactorLinear& linear, std::size_t outs, int rows,
                ops::RowClass row_class, const Gaps& gaps, const std::string& what) {
  Array exact = powers_of_two(), uneven = uneven_factors();
  for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
    auto expected = linear.multiply(backend, 0, rows, row_class, nullptr, y_dtype, gaps);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= exact[i / outs];
    ASSERT_EQ(
        first_difference(
            linear.multiply(backend, 0, rows, row_class, exact.floats(), y_dtype, gaps), expected),
        "")
        << what << ", " << rows << " rows of class " << static_cast<int>(row_class);
  }
  // Of rows on no whole 16 bytes the first, alone, may go to another kernel, of another order of
  // sums.
  if (row_class == ops::RowClass::kPrompt && gaps.x != 0) return;
  const auto all = linear.multiply(backend, 0, rows, row_class, uneven.floats(), DType::kF32, gaps);
  for (const int row : {0, rows / 2, rows - 1}) {
    const auto begin = all.begin() + row * static_cast<std::ptrdiff_t>(outs);
    ASSERT_EQ(first_difference(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(outs)),
                               linear.multiply(backend, row, 1, row_class, uneven.floats() + row,
                                               DType::kF32, gaps)),
              "")
        << what << ", row " << row << " of " << rows << " of class " << static_cast<int>(row_class);
  }
}

TEST(LinearFactors, AreExactAndOfTheirRowAlone) {
  const auto backend = test_backend(2);
  constexpr int kOuts = 134;
  for (const WeightCase& c : kFactorCases) {
    const FactorLinear linear(*backend, c, kOuts, kMostFactorRows);
    for (const auto row_class : kRowClasses) {
      for (const Gaps& gaps : kGaps) {
        for (const int rows : kFactorRows) {
          check_bits(*backend, linear, kOuts, rows, row_class, gaps, name(c));
        }
      }
    }
  }
}

// Several tiles or sweeps of a GPU's block, and its widest tile of prompt rows.
TEST(LinearFactors, AreExactAndOfTheirRowAloneInManyOutputs) {
  const auto backend = test_backend(2);
  for (const WeightCase& c :
       {WeightCase{WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 128, 1},
        WeightCase{WeightFormat::kFp8Block, DType::kF32, 128, 128, 1.0f, 256, 1},
        WeightCase{WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 0.1f, 256, 2}}) {
    constexpr int kOuts = 20000;
    const FactorLinear linear(*backend, c, kOuts, kMostFactorRows);
    for (const int rows : {1, 8, 13}) {
      check_bits(*backend, linear, kOuts, rows, ops::RowClass::kGenerated, {}, name(c));
    }
    if (c.format == WeightFormat::kBf16) {
      check_bits(*backend, linear, kOuts, kMostFactorRows, ops::RowClass::kPrompt, {}, name(c));
    }
  }
}

TEST(LinearFactors, GroupsEqualEachAlone) {
  const auto backend = test_backend(2);
  constexpr WeightCase kBf16{WeightFormat::kBf16, DType::kF32, 0, 0, 1.0f, 512, 1};
  constexpr WeightCase kFp8{WeightFormat::kFp8Block, DType::kF32, 128, 128, 1.0f, 512, 1};
  constexpr WeightCase kFp4{WeightFormat::kNvfp4, DType::kF8E4M3, 1, 16, 0.1f, 512, 1};
  struct Member {
    WeightCase weight;
    int outs;
    DType y;
  };
  Array factors = uneven_factors();
  for (const auto& members :
       {std::vector<Member>{{kBf16, 2500, DType::kBF16}, {kBf16, 5, DType::kF32}},
        {{kFp8, 300, DType::kBF16},
         {kBf16, 48, DType::kF32},
         {kFp8, 1500, DType::kBF16},
         {kBf16, 48, DType::kF32}},
        {{kFp4, 300, DType::kBF16}, {kFp8, 1500, DType::kF32}, {kFp4, 1500, DType::kBF16}}}) {
    std::vector<std::unique_ptr<FactorLinear>> linears;
    for (const Member& m : members) {
      linears.push_back(
          std::make_unique<FactorLinear>(*backend, m.weight, m.outs, kMostFactorRows));
    }
    for (const auto row_class : kRowClasses) {
      for (const int rows : {1, 8, 13, 16, 17, 40, 200}) {
        std::vector<Array> together, alone, without;
        for (const Member& m : members) {
          const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(m.outs);
          for (auto* ys : {&together, &alone, &without}) ys->emplace_back(m.y, count);
        }
        std::vector<LinearArgs> group;
        for (std::size_t i = 0; i < members.size(); ++i) {
          const auto args = [&](const float* row_factors, Array& y) {
            LinearArgs a = linears[i]->args(0, rows, row_class, row_factors, y, {});
            a.x = linears[0]->args(0, rows, row_class, row_factors, y, {}).x;
            return a;
          };
          group.push_back(args(factors.floats(), together[i]));
          ops::linear(*backend, args(factors.floats(), alone[i]));
          ops::linear(*backend, args(nullptr, without[i]));
        }
        ops::linear_group(*backend, group);
        for (std::size_t i = 0; i < members.size(); ++i) {
          ASSERT_EQ(first_difference(together[i].values(), alone[i].values()), "")
              << rows << " rows, member " << i << ", " << name(members[i].weight);
          EXPECT_NE(first_difference(together[i].values(), without[i].values()), "");
        }
      }
    }
  }
}

}  // namespace
}  // namespace tandem::testing
