// One operator against the three it stands for, bit for bit: outputs, states, windows and records,
// over rounds of which some rows are accepted.
#include "kernels/ops/gated_delta_mix.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>

#include "base/error.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::GdnShape;

constexpr int kSlots = 5, kMaxRound = 8;

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Config {
  GdnShape shape;
  DType dtype = DType::kBF16;
  int taps = 4;
  std::int64_t spare_stride = 0;  // elements between rows of u
  ops::GateActivation activation = ops::GateActivation::kSilu;
};

std::string describe(const Config& c) {
  return fmt::format("{} on {} heads of {} x {}, {}, {} taps", c.shape.num_v_heads,
                     c.shape.num_k_heads, c.shape.k_dim, c.shape.v_dim, dtype_name(c.dtype),
                     c.taps);
}

struct Place {
  int slot = 0, rows = 0;
};

enum class Way { kTogether, kApart };

// A layer's parameters and the states of its slots; inputs are a function of the round's seed.
class Layer {
 public:
  Layer(Backend& backend, const Config& config)
      : backend_(backend),
        c_(config),
        channels_(c_.shape.channels()),
        values_(std::int64_t{c_.shape.num_v_heads} * c_.shape.v_dim),
        conv_weight_(DType::kF32, random_normal(1, size(channels_ * c_.taps))),
        a_log_(DType::kF32, random_uniform(2, size(c_.shape.num_v_heads), -4.0f, 1.0f)),
        dt_bias_(DType::kF32, random_normal(3, size(c_.shape.num_v_heads))),
        norm_weight_(DType::kF32, random_normal(4, size(c_.shape.v_dim))),
        window_(c_.dtype, random_normal(5, size(kSlots * (c_.taps - 1 + kMaxRound) * channels_))),
        s_(DType::kF32, random_normal(6, size(kSlots * values_ * c_.shape.k_dim), 0.1f)),
        round_qkv_(c_.dtype, size(kSlots * kMaxRound * channels_)),
        round_gates_(DType::kF32,
                     size(std::int64_t{kSlots} * kMaxRound * 2 * c_.shape.num_v_heads)),
        pending_(kSlots, 0) {}

  // Outputs of the rows in segments, after which come `padding` rows that are in none.
  std::vector<float> run(const std::vector<Place>& places, std::uint64_t seed, Way way,
                         int padding = 0) {
    Vector<ops::Segment> segments;
    int used = 0;
    for (const Place& p : places) {
      segments.push_back({.slot = p.slot, .first_row = used, .num_rows = p.rows});
      used += p.rows;
    }
    const int rows = used + padding;
    const std::int64_t stride = channels_ + c_.spare_stride;
    const std::int64_t heads = c_.shape.num_v_heads;
    const Array u(c_.dtype, random_normal(seed, size(rows * stride)));
    Array a(DType::kF32, random_normal(seed + 1, size(rows * heads), 2.0f));
    Array b(DType::kF32, random_normal(seed + 2, size(rows * heads), 2.0f));
    Array z(c_.dtype, random_normal(seed + 3, size(rows * values_)));
    Array qkv(c_.dtype, random_normal(seed + 4, size(rows * channels_)));
    Array o(DType::kF32, random_normal(seed + 5, size(rows * values_)));
    Array scratch(DType::kF32,
                  ops::gated_delta_rule_scratch_bytes(backend_, c_.shape, rows) / sizeof(float));
    const ops::BatchView batch{.row_class = ops::RowClass::kGenerated,
                               .num_rows = rows,
                               .num_segments = static_cast<int>(segments.size()),
                               .segments = segments.data(),
                               .pending_rows = pending_.data()};
    const ops::GatedDeltaMixArgs args{.conv = {.batch = batch,
                                               .u = u.data(),
                                               .dtype = c_.dtype,
                                               .u_stride = stride,
                                               .channels = static_cast<int>(channels_),
                                               .kernel = c_.taps,
                                               .weight = conv_weight_.floats(),
                                               .window = window_.data(),
                                               .max_round_rows = kMaxRound,
                                               .y = qkv.data()},
                                      .rule = {.batch = batch,
                                               .shape = c_.shape,
                                               .qkv = qkv.data(),
                                               .dtype = c_.dtype,
                                               .a = a.floats(),
                                               .b = b.floats(),
                                               .a_log = a_log_.floats(),
                                               .dt_bias = dt_bias_.floats(),
                                               .state = {.s = s_.floats(),
                                                         .round_qkv = round_qkv_.data(),
                                                         .round_gates = round_gates_.floats(),
                                                         .max_round_rows = kMaxRound},
                                               .out = o.floats(),
                                               .scratch = scratch.data()},
                                      .norm = {.o = o.floats(),
                                               .z = z.data(),
                                               .dtype = c_.dtype,
                                               .weight = norm_weight_.floats(),
                                               .activation = c_.activation,
                                               .num_rows = rows,
                                               .num_heads = c_.shape.num_v_heads,
                                               .width = c_.shape.v_dim,
                                               .y = z.data()}};
    if (way == Way::kTogether) {
      ops::gated_delta_mix(backend_, args);
    } else {
      ops::causal_conv(backend_, args.conv);
      ops::gated_delta_rule(backend_, args.rule);
      ops::gated_rms_norm(backend_, args.norm);
    }
    for (const auto& [array, name] : {std::pair{&z, "z"},
                                      {&window_, "window"},
                                      {&s_, "s"},
                                      {&round_qkv_, "round_qkv"},
                                      {&round_gates_, "round_gates"},
                                      {&qkv, "qkv"},
                                      {&o, "o"}}) {
      array->expect_guards(name);
    }
    u.expect_unchanged("u");
    a.expect_unchanged("a");
    b.expect_unchanged("b");
    return z.values(0, size(used * values_));
  }

  void accept(int slot, int rows) { pending_[size(slot)] = rows; }

  // "" or what of the states differs, and where.
  std::string difference(const Layer& other) const {
    for (const auto& [mine, others, name] : {std::tuple{&window_, &other.window_, "window"},
                                             {&s_, &other.s_, "s"},
                                             {&round_qkv_, &other.round_qkv_, "round_qkv"},
                                             {&round_gates_, &other.round_gates_, "round_gates"}}) {
      const std::string found = first_difference(mine->values(), others->values());
      if (!found.empty()) return std::string(name) + ": " + found;
    }
    return "";
  }

 private:
  Backend& backend_;
  Config c_;
  std::int64_t channels_, values_;
  Array conv_weight_, a_log_, dt_bias_, norm_weight_;
  Array window_, s_, round_qkv_, round_gates_;
  Vector<std::int32_t> pending_;
};

// Rounds in both ways side by side; some rows of each are accepted.
void expect_same_rounds(Backend& backend, const Config& config,
                        const std::vector<std::vector<Place>>& rounds, int padding = 0) {
  Layer together(backend, config), apart(backend, config);
  std::mt19937 engine(1);
  std::uint64_t seed = 100;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    seed += 10;
    const auto y = together.run(rounds[i], seed, Way::kTogether, padding);
    const auto expected = apart.run(rounds[i], seed, Way::kApart, padding);
    const std::string what = fmt::format("{}, round {}", describe(config), i);
    ASSERT_EQ(first_difference(expected, y), "") << what;
    ASSERT_EQ(apart.difference(together), "") << what;
    for (const Place& p : rounds[i]) {
      if (p.rows == 0) continue;
      const int accepted = static_cast<int>(engine() % static_cast<unsigned>(p.rows + 1));
      together.accept(p.slot, accepted);
      apart.accept(p.slot, accepted);
    }
  }
}

// One row, several, all a slot can hold; slots out of order, and a place without rows.
const std::vector<std::vector<Place>> kRounds = {{{2, 1}},
                                                 {{2, 1}},
                                                 {{3, 4}, {2, 1}, {0, 6}},
                                                 {{0, 5}, {4, 0}, {3, 2}, {2, 8}, {1, 3}},
                                                 {{2, 8}, {0, 1}},
                                                 {{1, 1}, {2, 4}, {3, 7}, {0, 3}, {4, 1}},
                                                 {{4, 2}, {2, 8}}};

TEST(GatedDeltaMix, EqualsTheThreeOperators) {
  const auto backend = test_backend(2);
  for (const int group : {1, 2, 3, 4}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const GdnShape shape{.num_k_heads = 2, .num_v_heads = 2 * group, .k_dim = 128, .v_dim = 128};
      expect_same_rounds(*backend, {.shape = shape, .dtype = dtype}, kRounds);
    }
  }
  constexpr GdnShape kShape{.num_k_heads = 1, .num_v_heads = 3, .k_dim = 128, .v_dim = 128};
  expect_same_rounds(*backend, {.shape = kShape, .activation = ops::GateActivation::kSigmoid},
                     kRounds);
}

// Heads and segments enough for a GPU to change its way: more blocks than it holds at once.
TEST(GatedDeltaMix, EqualsTheThreeOperatorsOfManyHeads) {
  const auto backend = test_backend(2);
  const std::vector<std::vector<Place>> rounds = {{{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}},
                                                  {{4, 1}, {2, 1}, {3, 1}, {1, 1}, {0, 1}},
                                                  {{2, 8}, {0, 1}, {1, 5}, {4, 3}, {3, 4}},
                                                  {{1, 1}, {2, 4}, {3, 7}, {0, 3}, {4, 1}},
                                                  {{1, 1}, {0, 2}},
                                                  {{0, 5}, {4, 0}, {3, 2}, {2, 8}, {1, 3}},
                                                  {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}}};
  for (const auto& [group, dtype] :
       {std::pair{1, DType::kF32}, {3, DType::kBF16}, {4, DType::kBF16}}) {
    const GdnShape shape{
        .num_k_heads = 60 / group, .num_v_heads = 60 / group * group, .k_dim = 128, .v_dim = 128};
    expect_same_rounds(*backend, {.shape = shape, .dtype = dtype}, rounds);
  }
}

// What a backend may refuse to do at once: other heads, other windows, rows that are not aligned.
TEST(GatedDeltaMix, EqualsTheThreeOperatorsInAnyShape) {
  const auto backend = test_backend(2);
  for (const GdnShape& shape :
       {GdnShape{.num_k_heads = 3, .num_v_heads = 3, .k_dim = 16, .v_dim = 16},
        GdnShape{.num_k_heads = 2, .num_v_heads = 4, .k_dim = 32, .v_dim = 80},
        GdnShape{.num_k_heads = 1, .num_v_heads = 2, .k_dim = 256, .v_dim = 48},
        GdnShape{.num_k_heads = 1, .num_v_heads = 2, .k_dim = 112, .v_dim = 128},
        GdnShape{.num_k_heads = 1, .num_v_heads = 2, .k_dim = 128, .v_dim = 256},
        GdnShape{.num_k_heads = 1, .num_v_heads = 5, .k_dim = 128, .v_dim = 128}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      expect_same_rounds(*backend, {.shape = shape, .dtype = dtype}, kRounds);
    }
  }
  constexpr GdnShape kShape{.num_k_heads = 1, .num_v_heads = 2, .k_dim = 128, .v_dim = 128};
  expect_same_rounds(*backend, {.shape = kShape, .taps = 2}, kRounds);
  expect_same_rounds(*backend, {.shape = kShape, .spare_stride = 5}, kRounds);
}

TEST(GatedDeltaMix, RowsOfNoSegmentTouchNothing) {
  const auto backend = test_backend(2);
  expect_same_rounds(*backend,
                     {.shape = {.num_k_heads = 2, .num_v_heads = 6, .k_dim = 32, .v_dim = 32}},
                     kRounds, 3);
}

TEST(GatedDeltaMix, SameBitsOnEveryTargetAndThreadCount) {
  EXPECT_EQ(machine_dependence([](Backend& backend) {
              const Config config{
                  .shape = {.num_k_heads = 2, .num_v_heads = 6, .k_dim = 128, .v_dim = 128}};
              Layer layer(backend, config);
              std::vector<float> out;
              for (std::uint64_t i = 0; i < 3; ++i) {
                const auto y = layer.run({{1, 3}, {0, 1}}, 50 + 10 * i, Way::kTogether);
                out.insert(out.end(), y.begin(), y.end());
                layer.accept(1, 2);
                layer.accept(0, 1);
              }
              return out;
            }),
            "");
}

TEST(GatedDeltaMix, RefusesOperatorsThatDoNotFollowEachOther) {
  const auto backend = test_backend(1);
  ops::GatedDeltaMixArgs args;
  args.norm.num_rows = 1;
  EXPECT_THROW(ops::gated_delta_mix(*backend, args), Error);
  args = {};
  args.conv.channels = 32;
  EXPECT_THROW(ops::gated_delta_mix(*backend, args), Error);
}

}  // namespace
}  // namespace tandem::testing
