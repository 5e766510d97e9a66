#include "kernels/ops/causal_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/error.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::RowClass;
using ops::Segment;

// One sequence's convolution, fed piece by piece in either class.
class Conv {
 public:
  static constexpr int kSlots = 3, kSlot = 1, kMaxRound = 5;

  Conv(Backend& backend, DType dtype, int channels, int taps)
      : backend_(backend),
        channels_(channels),
        taps_(taps),
        weight_(DType::kF32, random_normal(1, static_cast<std::size_t>(channels * taps))),
        window_(dtype, static_cast<std::size_t>(kSlots * (taps - 1 + kMaxRound) * channels)) {
    for (int i = 0; i < (taps - 1) * channels; ++i) {
      window_.set(static_cast<std::size_t>(kSlot * (taps - 1 + kMaxRound) * channels + i), 0.0f);
    }
  }

  // Rows [first, first + rows) of `u` [any, channels]; returns their outputs. Rows behind the first
  // `used` are padding.
  std::vector<float> run(const Array& u, int first, int rows, RowClass row_class,
                         std::optional<int> used = {}) {
    const int stride = channels_ + 5;
    Array strided(u.dtype(), static_cast<std::size_t>(rows * stride));
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < channels_; ++c) {
        strided.set(static_cast<std::size_t>(r * stride + c),
                    u[static_cast<std::size_t>((first + r) * channels_ + c)]);
      }
    }
    const Vector<Segment> segments{
        {.slot = kSlot, .first_row = 0, .num_rows = used.value_or(rows), .start_position = first}};
    const Vector<std::int32_t> pending{0, pending_, 0};
    Array y(u.dtype(), static_cast<std::size_t>(rows * channels_));
    ops::CausalConvArgs args{.batch = {.row_class = row_class,
                                       .num_rows = rows,
                                       .num_segments = 1,
                                       .segments = segments.data(),
                                       .pending_rows = pending.data()},
                             .u = strided.data(),
                             .dtype = u.dtype(),
                             .u_stride = stride,
                             .channels = channels_,
                             .kernel = taps_,
                             .weight = weight_.floats(),
                             .window = window_.data(),
                             .max_round_rows = kMaxRound,
                             .y = y.data()};
    ops::causal_conv(backend_, args);
    if (row_class == RowClass::kPrompt) pending_ = 0;
    y.expect_guards("y");
    window_.expect_guards("window");
    return y.values();
  }

  void accept(int rows) { pending_ = rows; }
  const Array& weight() const { return weight_; }

 private:
  Backend& backend_;
  int channels_, taps_;
  int pending_ = 0;
  Array weight_, window_;
};

void append(std::vector<float>& to, const std::vector<float>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

TEST(CausalConv, EqualsTheFormula) {
  const auto backend = test_backend(2);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    for (const int channels : {1, 15, 16, 40, 1030}) {
      for (const int taps : {2, 4}) {
        constexpr int kRows = 9;
        const Array u(dtype, random_normal(2, static_cast<std::size_t>(kRows * channels)));
        Conv conv(*backend, dtype, channels, taps);
        const std::vector<float> y = conv.run(u, 0, kRows, RowClass::kPrompt);
        std::vector<double> expected, tolerance;
        for (int t = 0; t < kRows; ++t) {
          for (int c = 0; c < channels; ++c) {
            double sum = 0, magnitude = 0;
            for (int j = 0; j < taps; ++j) {
              const int source = t - (taps - 1) + j;
              if (source < 0) continue;
              const double term = double{conv.weight()[static_cast<std::size_t>(c * taps + j)]} *
                                  u[static_cast<std::size_t>(source * channels + c)];
              sum += term;
              magnitude += std::abs(term);
            }
            expected.push_back(sum / (1 + std::exp(-sum)));
            tolerance.push_back(kFp32Formula * (magnitude + 0.1));
          }
        }
        expect_near(y, expected, tolerance, dtype, fmt::format("{} channels", channels));
      }
    }
  }
}

TEST(CausalConv, ChunksMayEndAnywhere) {
  const auto backend = test_backend(2);
  constexpr int kRows = 12, kChannels = 37;
  const Array u(DType::kBF16, random_normal(3, kRows * kChannels));
  const auto whole = Conv(*backend, u.dtype(), kChannels, 4).run(u, 0, kRows, RowClass::kPrompt);
  for (int a = 1; a < kRows; ++a) {
    for (int b = a; b < kRows; ++b) {
      Conv conv(*backend, u.dtype(), kChannels, 4);
      std::vector<float> y = conv.run(u, 0, a, RowClass::kPrompt);
      if (b > a) append(y, conv.run(u, a, b - a, RowClass::kPrompt));
      append(y, conv.run(u, b, kRows - b, RowClass::kPrompt));
      ASSERT_EQ(first_difference(whole, y), "") << "cut at " << a << " and " << b;
    }
  }
}

// A round of rows of which any number is accepted must leave what the accepted rows alone leave.
TEST(CausalConv, RejectedRowsLeaveNoTrace) {
  const auto backend = test_backend(2);
  constexpr int kPrompt = 6, kRows = 20, kChannels = 19;
  const Array u(DType::kBF16, random_normal(4, (kPrompt + kRows + Conv::kMaxRound) * kChannels));
  const auto whole =
      Conv(*backend, u.dtype(), kChannels, 4).run(u, 0, kPrompt + kRows, RowClass::kPrompt);
  for (int round = 1; round <= Conv::kMaxRound; ++round) {
    for (int accepted = 0; accepted <= round; ++accepted) {
      Conv conv(*backend, u.dtype(), kChannels, 4);
      std::vector<float> y = conv.run(u, 0, kPrompt, RowClass::kPrompt);
      int position = kPrompt;
      for (int i = 0; position < kPrompt + kRows; ++i) {
        // Every other round accepts everything, so that accepting nothing still ends.
        const int take = std::min(i % 2 == 0 ? accepted : round, kPrompt + kRows - position);
        std::vector<float> rows = conv.run(u, position, round, RowClass::kGenerated);
        conv.accept(take);
        // An empty place of a padded round leaves what is pending to the next.
        conv.run(u, position, 2, RowClass::kGenerated, 0);
        rows.resize(static_cast<std::size_t>(take * kChannels));
        append(y, rows);
        position += take;
      }
      ASSERT_EQ(first_difference(whole, y), "") << accepted << " of " << round << " accepted";
    }
  }
}

TEST(CausalConv, SameBitsOnEveryTargetAndThreadCount) {
  EXPECT_EQ(machine_dependence([](Backend& backend) {
              const Array u(DType::kBF16, random_normal(5, 7 * 1100));
              return Conv(backend, u.dtype(), 1100, 4).run(u, 0, 7, RowClass::kPrompt);
            }),
            "");
}

TEST(CausalConv, RefusesMoreRowsThanTheWindowHolds) {
  if (on_gpu()) GTEST_SKIP() << "segments are not looked into";
  const auto backend = test_backend(1);
  const Array u(DType::kBF16, random_normal(6, 20 * 16));
  Conv conv(*backend, u.dtype(), 16, 4);
  EXPECT_THROW(conv.run(u, 0, Conv::kMaxRound + 1, RowClass::kGenerated), Error);
  conv.accept(Conv::kMaxRound + 1);
  EXPECT_THROW(conv.run(u, 0, 1, RowClass::kGenerated), Error);
}

}  // namespace
}  // namespace tandem::testing
