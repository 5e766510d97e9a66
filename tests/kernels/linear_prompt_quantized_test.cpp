// Linears of prompt rows with quantized weights: values, rows alone, ranks with a part of the
// leaves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/ops/linear.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::LinearArgs;
using ops::WeightFormat;

// A running sum may be truncated once every sixteen columns.
constexpr double kTruncation = 0x1p-23 / 16;

struct Quantized {
  ops::LinearWeight weight;
  Vector<std::uint8_t> codes, scales;
  std::vector<float> values;  // [outs, columns]; without scale_2 of fp8 per tensor and NVFP4
};

struct Layout {
  WeightFormat format;
  int group = 0;  // columns under one scale, INT8 group
};

std::string name(const Layout& layout) {
  return fmt::format("format {}, group {}", static_cast<int>(layout.format), layout.group);
}

// Columns first .. first + columns - 1 of a matrix of `all_columns` whose codes and scales follow
// from their places alone.
Quantized make_weight(Backend& backend, const Layout& layout, int outs, int first, int columns) {
  const WeightFormat format = layout.format;
  const bool fp4 = format == WeightFormat::kNvfp4 || format == WeightFormat::kMxfp4;
  const bool group = format == WeightFormat::kInt8Group;
  const bool int8 = format == WeightFormat::kInt8Channel || group;
  const bool block = format == WeightFormat::kFp8Block;
  const auto draw = [](int row, int column, unsigned purpose) {
    std::uint32_t h = static_cast<std::uint32_t>(row) * 2654435761u ^
                      static_cast<std::uint32_t>(column) * 2246822519u ^ purpose * 3266489917u;
    h = (h ^ h >> 15) * 2246822519u;
    return (h ^ h >> 13) >> 5;
  };
  Quantized q;
  q.weight = {
      .format = format,
      .out_features = outs,
      .in_features = columns,
      .scale_dtype =
          fp4 ? (format == WeightFormat::kNvfp4 ? DType::kF8E4M3 : DType::kF8E8M0) : DType::kF32,
      .block_rows = block ? 128 : 1,
      .block_cols = block                            ? 128
                    : group                          ? layout.group
                    : format == WeightFormat::kNvfp4 ? 16
                    : format == WeightFormat::kMxfp4 ? 32
                                                     : columns,
      .scale_2 = 0.37f};
  const auto scale_code = [&](int row, int column) {
    const std::uint32_t r = draw(row, column, 1);
    return static_cast<std::uint8_t>(format == WeightFormat::kNvfp4 ? 0x28 + r % 32 : 120 + r % 10);
  };
  const auto scale_float = [&](int row, int column) {
    return 0.01f * static_cast<float>(1 + draw(row, column, 2) % 100);
  };
  const auto add_float = [&](float value) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(&value);
    q.scales.insert(q.scales.end(), bytes, bytes + sizeof value);
  };
  for (int n = 0; n < outs; ++n) {
    for (int k = first; k < first + columns; ++k) {
      const auto byte = static_cast<std::uint8_t>(draw(n, k / (fp4 ? 2 : 1), 3));
      const int area = k / q.weight.block_cols;
      if (fp4) {
        if (k % 2 == 0) q.codes.push_back(byte);
        if (k % q.weight.block_cols == 0) q.scales.push_back(scale_code(n, area));
        const std::uint8_t scale = scale_code(n, area);
        q.values.push_back(e2m1_to_float(byte >> k % 2 * 4 & 0xf) * (format == WeightFormat::kNvfp4
                                                                         ? e4m3_to_float(scale)
                                                                         : e8m0_to_float(scale)));
      } else {
        const std::uint8_t code = !int8 && (byte & 0x7f) == 0x7f ? 0 : byte;  // no NaN
        q.codes.push_back(code);
        const float value =
            int8 ? static_cast<float>(static_cast<std::int8_t>(code)) : e4m3_to_float(code);
        q.values.push_back(format == WeightFormat::kFp8Tensor ? value
                           : block ? value * scale_float(n / 128, k / 128)
                           : group ? value * scale_float(n, area)
                                   : value * scale_float(n, 0));
        if (group && (k - first) % layout.group == 0) add_float(scale_float(n, area));
      }
    }
    const bool channel =
        format == WeightFormat::kFp8Channel || format == WeightFormat::kInt8Channel;
    if (channel) add_float(scale_float(n, 0));
    if (block && n % 128 == 0) {
      for (int k = first; k < first + columns; k += 128) add_float(scale_float(n / 128, k / 128));
    }
  }
  q.weight.data = q.codes.data();
  q.weight.scales = q.scales.empty() ? nullptr : q.scales.data();
  ops::prepack_weight(backend, q.weight);
  return q;
}

// Of rows of x, which lies in device memory, as it does in the program.
std::vector<float> multiply(Backend& backend, const Array& x, int first_row, int rows, int leaves,
                            const ops::LinearWeight& weight) {
  const std::size_t bytes = x.size() * sizeof(bf16);
  void* device_x = backend.allocate(bytes);
  backend.copy(device_x, x.data(), bytes);
  Array y(DType::kF32, static_cast<std::size_t>(rows * weight.out_features));
  ops::linear(backend, {.x = static_cast<const bf16*>(device_x) + first_row * weight.in_features,
                        .x_stride = weight.in_features,
                        .num_rows = rows,
                        .weight = weight,
                        .row_class = ops::RowClass::kPrompt,
                        .num_leaves = leaves,
                        .y = y.data(),
                        .y_dtype = DType::kF32,
                        .y_stride = weight.out_features});
  backend.synchronize();
  backend.deallocate(device_x, bytes);
  y.expect_guards("y");
  return y.values();
}

constexpr Layout kLayouts[] = {{WeightFormat::kFp8Block},       {WeightFormat::kFp8Tensor},
                               {WeightFormat::kFp8Channel},     {WeightFormat::kInt8Channel},
                               {WeightFormat::kNvfp4},          {WeightFormat::kMxfp4},
                               {WeightFormat::kInt8Group, 128}, {WeightFormat::kInt8Group, 64},
                               {WeightFormat::kInt8Group, 32}};

void check_product(Backend& backend, const Layout& layout, int columns, int leaves) {
  constexpr int kRows = 140, kOuts = 137;
  const Quantized q = make_weight(backend, layout, kOuts, 0, columns);
  const Array x(DType::kBF16,
                random_normal(1, static_cast<std::size_t>(kRows) * std::size_t(columns)));
  const auto what = fmt::format("{}, {} columns, {} leaves", name(layout), columns, leaves);
  const std::vector<float> y = multiply(backend, x, 0, kRows, leaves, q.weight);
  const std::vector<float> x_values = x.values();
  const bool second =
      layout.format == WeightFormat::kFp8Tensor || layout.format == WeightFormat::kNvfp4;
  std::vector<double> expected, tolerance;
  for (int r = 0; r < kRows; ++r) {
    for (int n = 0; n < kOuts; ++n) {
      double sum = 0, magnitude = 0, largest = 0;
      for (int k = 0; k < columns; ++k) {
        const double term = double{x_values[static_cast<std::size_t>(r * columns + k)]} *
                            q.values[static_cast<std::size_t>(n * columns + k)] *
                            (second ? double{q.weight.scale_2} : 1.0);
        sum += term;
        magnitude += std::abs(term);
        largest = std::max(largest, std::abs(sum));
      }
      expected.push_back(sum);
      tolerance.push_back(kFp32Sum * magnitude + kTruncation * columns * largest);
    }
  }
  expect_near(y, expected, tolerance, DType::kF32, what);
  for (const int row : {0, 63, 64, 127, 128, 139}) {
    ASSERT_EQ(
        first_difference(std::vector<float>(y.begin() + row * kOuts, y.begin() + (row + 1) * kOuts),
                         multiply(backend, x, row, 1, leaves, q.weight)),
        "")
        << what << ", row " << row;
  }
}

TEST(LinearPromptQuantized, MultipliesDequantizedValues) {
  const auto backend = test_backend(2);
  for (const Layout& layout : kLayouts) {
    for (const auto& [columns, leaves] : {std::pair{448, 1}, {1024, 8}, {2048, 16}}) {
      check_product(*backend, layout, columns, leaves);
    }
  }
}

// Also such that end within a stage of 64 columns, and a last group that is cut short.
TEST(LinearPromptQuantized, MultipliesGroupsOfAnySize) {
  const auto backend = test_backend(2);
  for (const int group : {16, 32, 48, 64, 96, 128, 192, 256}) {
    const Layout layout{WeightFormat::kInt8Group, group};
    check_product(*backend, layout, 16, 1);
    check_product(*backend, layout, 464, 1);
    check_product(*backend, layout, 3 * group * 4, 4);
    check_product(*backend, layout, group * 16, 16);
  }
}

TEST(LinearPromptQuantized, LeavesFormOneTreeOverAnyNumberOfRanks) {
  const auto backend = test_backend(2);
  constexpr int kRows = 70, kOuts = 150, kLeaf = 256, kLeaves = 8, kColumns = kLeaf * kLeaves;
  const std::vector<float> x = random_normal(2, kRows * kColumns);
  for (const Layout& layout : kLayouts) {
    const auto part = [&](int first, int columns, int leaves) {
      std::vector<float> cut;
      for (int r = 0; r < kRows; ++r) {
        cut.insert(cut.end(), x.begin() + r * kColumns + first,
                   x.begin() + r * kColumns + first + columns);
      }
      const Quantized q = make_weight(*backend, layout, kOuts, first, columns);
      return multiply(*backend, Array(DType::kBF16, cut), 0, kRows, leaves, q.weight);
    };
    const std::vector<float> whole = part(0, kColumns, kLeaves);
    for (int ranks = 2; ranks <= kLeaves; ranks *= 2) {
      const int width = kColumns / ranks;
      std::vector<std::vector<float>> sums;
      for (int r = 0; r < ranks; ++r) sums.push_back(part(r * width, width, kLeaves / ranks));
      for (; sums.size() > 1; sums.resize(sums.size() / 2)) {
        for (std::size_t i = 0; i < sums.size() / 2; ++i) {
          for (std::size_t j = 0; j < whole.size(); ++j) {
            sums[i][j] = sums[2 * i][j] + sums[2 * i + 1][j];
          }
        }
      }
      EXPECT_EQ(first_difference(whole, sums[0]), "") << name(layout) << ", " << ranks << " ranks";
    }
  }
}

}  // namespace
}  // namespace tandem::testing
