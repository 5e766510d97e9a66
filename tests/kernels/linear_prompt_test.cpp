// Linears of prompt rows: values, and what their bits may not depend on. Operands lie in device
// memory, as they do in the program.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops/linear.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::LinearArgs;

// The matrix units of some GPUs truncate a running sum once every so many columns.
constexpr double kTruncation = 0x1p-23;
constexpr double kTruncatedColumns = 16;

// A matrix of bf16 in device memory whose rows lie `gap` elements further apart than they are long.
class DeviceMatrix {
 public:
  DeviceMatrix(Backend& backend, const std::vector<float>& values, std::size_t columns,
               std::size_t gap = 0)
      : backend_(backend), stride_(columns + gap), bytes_(values.size() / columns * stride_ * 2) {
    std::vector<bf16> rows(bytes_ / 2, to_bf16(-77.0f));
    for (std::size_t i = 0; i < values.size(); ++i) {
      rows[i / columns * stride_ + i % columns] = to_bf16(values[i]);
    }
    data_ = backend.allocate(bytes_);
    backend.copy(data_, rows.data(), bytes_);
    backend.synchronize();
  }
  ~DeviceMatrix() { backend_.deallocate(data_, bytes_); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  const void* row(int r) const {
    return static_cast<const bf16*>(data_) + stride_ * std::size_t(r);
  }
  std::int64_t stride() const { return static_cast<std::int64_t>(stride_); }

 private:
  Backend& backend_;
  std::size_t stride_, bytes_;
  void* data_ = nullptr;
};

struct Shape {
  int outs, columns, leaves;
};

LinearArgs prompt_args(const DeviceMatrix& x, int first_row, int rows, const DeviceMatrix& w,
                       const Shape& shape, Array& y, int y_gap = 0) {
  return {.x = x.row(first_row),
          .x_stride = x.stride(),
          .num_rows = rows,
          .weight = {.format = ops::WeightFormat::kBf16,
                     .out_features = shape.outs,
                     .in_features = shape.columns,
                     .data = w.row(0)},
          .row_class = ops::RowClass::kPrompt,
          .num_leaves = shape.leaves,
          .y = y.data(),
          .y_dtype = y.dtype(),
          .y_stride = shape.outs + y_gap};
}

std::vector<float> rounded(std::vector<float> values) {
  for (float& v : values) v = to_float(to_bf16(v));
  return values;
}

void check_product(Backend& backend, int rows, const Shape& shape, DType y_dtype, int y_gap) {
  const auto columns = static_cast<std::size_t>(shape.columns);
  const auto outs = static_cast<std::size_t>(shape.outs);
  const auto y_stride = outs + static_cast<std::size_t>(y_gap);
  const auto x = rounded(random_normal(1, static_cast<std::size_t>(rows) * columns));
  const auto w = rounded(random_normal(2, outs * columns));
  const DeviceMatrix device_x(backend, x, columns, 8), device_w(backend, w, columns);
  Array y(y_dtype, static_cast<std::size_t>(rows) * y_stride);
  const std::vector<float> untouched = y.values();
  ops::linear(backend, prompt_args(device_x, 0, rows, device_w, shape, y, y_gap));
  std::vector<float> actual, between, between_before;
  std::vector<double> expected, tolerance;
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    for (std::size_t n = 0; n < y_stride; ++n) {
      if (n >= outs) {
        between.push_back(y[r * y_stride + n]);
        between_before.push_back(untouched[r * y_stride + n]);
        continue;
      }
      double sum = 0, magnitude = 0, largest = 0;
      for (std::size_t k = 0; k < columns; ++k) {
        const double term = double{x[r * columns + k]} * w[n * columns + k];
        sum += term;
        magnitude += std::abs(term);
        largest = std::max(largest, std::abs(sum));
      }
      actual.push_back(y[r * y_stride + n]);
      expected.push_back(sum);
      tolerance.push_back(kFp32Sum * magnitude +
                          kTruncation * largest * static_cast<double>(columns) / kTruncatedColumns);
    }
  }
  expect_near(
      actual, expected, tolerance, y_dtype,
      fmt::format("{} rows, {} x {}, {} leaves", rows, shape.outs, shape.columns, shape.leaves));
  EXPECT_EQ(first_difference(between, between_before), "") << "written between rows";
  y.expect_guards("y");
}

TEST(LinearPrompt, EqualsTheProductAtAwkwardSizes) {
  const auto backend = test_backend(2);
  for (const int rows : {1, 7, 64, 65, 129, 300}) {
    check_product(*backend, rows, {71, 1088, 1}, DType::kF32, 0);
    check_product(*backend, rows, {130, 4 * 80, 4}, DType::kBF16, 0);
    check_product(*backend, rows, {257, 2 * 48, 2}, DType::kF32, 2);
    check_product(*backend, rows, {1, 16, 1}, DType::kBF16, 3);
  }
  check_product(*backend, 65, {200, 8 * 1088, 8}, DType::kF32, 1);
  check_product(*backend, 65, {200, 8 * 1088, 1}, DType::kF32, 0);
  check_product(*backend, 65, {140, 8 * 640, 8}, DType::kBF16, 0);
  check_product(*backend, 65, {140, 16 * 80, 16}, DType::kF32, 0);
  check_product(*backend, 20, {70, 64 * 16, 64}, DType::kF32, 0);
  check_product(*backend, 20, {70, 3 * 40, 1}, DType::kF32, 0);  // leaves of no multiple of 16
}

TEST(LinearPrompt, ManyRowsEqualEachAlone) {
  const auto backend = test_backend(2);
  constexpr int kRows = 300;
  // The widest one takes another width of tiles for 300 rows than for one on a GPU of 132
  // processors, and so does nothing else here; with leaves it is two tiles for every processor.
  for (const Shape& shape : {Shape{200, 2176, 1}, Shape{200, 8 * 272, 8}, Shape{130, 2 * 768, 2},
                             Shape{70, 16 * 80, 16}, Shape{11200, 144, 1}, Shape{11200, 160, 2}}) {
    const auto columns = static_cast<std::size_t>(shape.columns);
    const auto outs = static_cast<std::size_t>(shape.outs);
    const DeviceMatrix x(*backend, random_normal(3, kRows * columns), columns, 16);
    const DeviceMatrix w(*backend, random_normal(4, outs * columns), columns);
    Array y(DType::kF32, kRows * outs), part(DType::kF32, 70 * outs), alone(DType::kF32, outs);
    ops::linear(*backend, prompt_args(x, 0, kRows, w, shape, y));
    const auto where = [&](int row) {
      return fmt::format("row {} of {} x {}, {} leaves", row, shape.outs, shape.columns,
                         shape.leaves);
    };
    for (const int row : {0, 1, 8, 63, 64, 127, 128, 200, 255, 256, 299}) {
      LinearArgs args = prompt_args(x, row, 1, w, shape, alone);
      if (row % 2 == 0) args.x_stride = 0;  // means nothing for a single row
      ops::linear(*backend, args);
      ASSERT_EQ(
          first_difference(y.values(static_cast<std::size_t>(row) * outs, outs), alone.values()),
          "")
          << where(row);
    }
    ops::linear(*backend, prompt_args(x, 101, 70, w, shape, part));
    EXPECT_EQ(first_difference(y.values(101 * outs, 70 * outs), part.values()), "") << where(101);
  }
}

// What ranks with a part of the leaves each add up to in the same tree is what one rank computes.
TEST(LinearPrompt, LeavesFormOneTreeOverAnyNumberOfRanks) {
  const auto backend = test_backend(2);
  constexpr int kOuts = 150, kRows = 70;
  for (const auto& [leaf, leaves] : {std::pair{1088, 8}, {80, 16}, {144, 4}}) {
    const auto columns = static_cast<std::size_t>(leaf * leaves);
    const std::vector<float> x = random_normal(5, kRows * columns);
    const std::vector<float> w = random_normal(6, kOuts * columns);
    const auto part = [&](std::size_t first, std::size_t width, int num_leaves) {
      const auto cut = [&](const std::vector<float>& matrix) {
        std::vector<float> values;
        for (std::size_t row = 0; row < matrix.size(); row += columns) {
          const auto begin = matrix.begin() + static_cast<std::ptrdiff_t>(row + first);
          values.insert(values.end(), begin, begin + static_cast<std::ptrdiff_t>(width));
        }
        return values;
      };
      const DeviceMatrix part_x(*backend, cut(x), width), part_w(*backend, cut(w), width);
      Array y(DType::kF32, kRows * kOuts);
      const Shape shape{kOuts, static_cast<int>(width), num_leaves};
      ops::linear(*backend, prompt_args(part_x, 0, kRows, part_w, shape, y));
      return y.values();
    };
    const std::vector<float> whole = part(0, columns, leaves);
    for (int ranks = 2; ranks <= leaves; ranks *= 2) {
      const std::size_t width = columns / static_cast<std::size_t>(ranks);
      std::vector<std::vector<float>> sums;
      for (int r = 0; r < ranks; ++r) {
        sums.push_back(part(static_cast<std::size_t>(r) * width, width, leaves / ranks));
      }
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (std::size_t i = 0; i < sums.size() / 2; ++i) {
          for (std::size_t j = 0; j < whole.size(); ++j) {
            sums[i][j] = sums[2 * i][j] + sums[2 * i + 1][j];
          }
        }
      }
      EXPECT_EQ(first_difference(whole, sums[0]), "") << leaves << " leaves, " << ranks << " ranks";
    }
    EXPECT_NE(first_difference(whole, part(0, columns, 1)), "") << "the leaves make no difference";
  }
}

}  // namespace
}  // namespace tandem::testing
