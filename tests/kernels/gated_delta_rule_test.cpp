#include "kernels/ops/gated_delta_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "tests/kernels/op_check.h"

namespace tandem::testing {
namespace {

using ops::GdnShape;
using ops::RowClass;
using ops::Segment;

constexpr GdnShape kSmall{.num_k_heads = 2, .num_v_heads = 4, .k_dim = 32, .v_dim = 80};
constexpr double kBlockRule = 1e-4;  // blocks against the recurrence, relative to the largest value

std::size_t size(std::int64_t n) { return static_cast<std::size_t>(n); }

// Everything the rule reads of one sequence, for `rows` tokens.
struct Inputs {
  Array qkv, a, b;  // [rows, channels], [rows, num_v_heads] twice

  Inputs(DType dtype, const GdnShape& shape, int rows, std::uint64_t seed)
      : qkv(dtype, random_normal(seed, size(rows * shape.channels()))),
        a(DType::kF32, random_normal(seed + 1, size(rows * shape.num_v_heads), 2.0f)),
        b(DType::kF32, random_normal(seed + 2, size(rows * shape.num_v_heads), 2.0f)) {}
};

// A model's parameters for the rule, and the states of a few sequences.
class Rule {
 public:
  static constexpr int kMaxRound = 6;

  Rule(Backend& backend, DType dtype, const GdnShape& shape, bool open_blocks = true,
       int num_slots = 3)
      : backend_(backend),
        shape_(shape),
        dtype_(dtype),
        a_log(DType::kF32, random_uniform(101, size(shape.num_v_heads), -4.0f, 1.0f)),
        dt_bias(DType::kF32, random_normal(102, size(shape.num_v_heads))),
        s_(DType::kF32,
           size(std::int64_t{num_slots} * shape.num_v_heads * shape.k_dim * shape.v_dim)),
        round_qkv_(dtype, size(num_slots * kMaxRound * shape.channels())),
        round_gates_(DType::kF32,
                     size(std::int64_t{num_slots} * kMaxRound * 2 * shape.num_v_heads)),
        open_(DType::kF32, size(num_slots * ops::gdn_open_block_floats(shape))),
        open_blocks_(open_blocks),
        pending_(size(num_slots), 0) {
    backend.zero(s_.data(), s_.size() * sizeof(float));
  }

  struct Piece {
    int slot = 0;
    const Inputs* inputs = nullptr;
    int first = 0, rows = 0;
    bool ends_prompt = false;
  };

  // One call for a batch of pieces of different sequences; outputs [rows, num_v_heads * v_dim].
  std::vector<float> run(RowClass row_class, const std::vector<Piece>& pieces) {
    std::vector<float> qkv, a, b;
    Vector<Segment> segments;
    int rows = 0;
    for (const Piece& p : pieces) {
      append(qkv, p.inputs->qkv.values(size(p.first * shape_.channels()),
                                       size(p.rows * shape_.channels())));
      append(a, p.inputs->a.values(size(p.first * shape_.num_v_heads),
                                   size(p.rows * shape_.num_v_heads)));
      append(b, p.inputs->b.values(size(p.first * shape_.num_v_heads),
                                   size(p.rows * shape_.num_v_heads)));
      segments.push_back({.slot = p.slot,
                          .first_row = rows,
                          .num_rows = p.rows,
                          .start_position = p.first,
                          .ends_prompt = p.ends_prompt ? 1 : 0});
      rows += p.rows;
    }
    Array qkv_in(dtype_, qkv), a_in(DType::kF32, a), b_in(DType::kF32, b);
    Array out(DType::kF32, size(std::int64_t{rows} * shape_.num_v_heads * shape_.v_dim));
    Array scratch(DType::kF32,
                  ops::gated_delta_rule_scratch_bytes(backend_, shape_, rows) / sizeof(float));
    ops::GatedDeltaRuleArgs args{.batch = {.row_class = row_class,
                                           .num_rows = rows,
                                           .num_segments = static_cast<int>(segments.size()),
                                           .segments = segments.data(),
                                           .pending_rows = pending_.data()},
                                 .shape = shape_,
                                 .qkv = qkv_in.data(),
                                 .dtype = dtype_,
                                 .a = a_in.floats(),
                                 .b = b_in.floats(),
                                 .a_log = a_log.floats(),
                                 .dt_bias = dt_bias.floats(),
                                 .state = {.s = s_.floats(),
                                           .round_qkv = round_qkv_.data(),
                                           .round_gates = round_gates_.floats(),
                                           .max_round_rows = kMaxRound,
                                           .open_block = open_blocks_ ? open_.floats() : nullptr},
                                 .out = out.floats(),
                                 .scratch = scratch.data()};
    ops::gated_delta_rule(backend_, args);
    out.expect_guards("out");
    s_.expect_guards("s");
    round_qkv_.expect_guards("round_qkv");
    round_gates_.expect_guards("round_gates");
    open_.expect_guards("open_block");
    scratch.expect_guards("scratch");
    qkv_in.expect_unchanged("qkv");
    a_in.expect_unchanged("a");
    b_in.expect_unchanged("b");
    return out.values();
  }

  void accept(int slot, int rows) { pending_[size(slot)] = rows; }

  // One prompt cut at the given rows.
  std::vector<float> run_prompt(const Inputs& inputs, int rows, std::vector<int> cuts = {},
                                int slot = 1) {
    std::vector<float> out;
    cuts.push_back(rows);
    int begin = 0;
    for (const int end : cuts) {
      if (end == begin) continue;
      append(out, run(RowClass::kPrompt, {{slot, &inputs, begin, end - begin, end == rows}}));
      begin = end;
    }
    return out;
  }

  std::vector<float> state(int slot) const {
    const std::int64_t n = std::int64_t{shape_.num_v_heads} * shape_.k_dim * shape_.v_dim;
    return s_.values(size(slot * n), size(n));
  }

  const GdnShape& shape() const { return shape_; }

  static void append(std::vector<float>& to, const std::vector<float>& from) {
    to.insert(to.end(), from.begin(), from.end());
  }

 private:
  Backend& backend_;
  GdnShape shape_;
  DType dtype_;

 public:
  Array a_log, dt_bias;

 private:
  Array s_, round_qkv_, round_gates_, open_;
  bool open_blocks_;
  Vector<std::int32_t> pending_;
};

// The recurrence in double precision: outputs of all rows, and the last state.
struct Reference {
  std::vector<double> out;    // [rows, num_v_heads, v_dim]
  std::vector<double> state;  // [num_v_heads, k_dim, v_dim]
};

Reference recurrence(const GdnShape& shape, const Inputs& inputs, const Rule& rule, int rows) {
  const std::size_t k_dim = size(shape.k_dim), v_dim = size(shape.v_dim);
  const std::size_t v_heads = size(shape.num_v_heads), k_heads = size(shape.num_k_heads);
  Reference r;
  r.state.resize(v_heads * k_dim * v_dim);
  const auto normed = [&](std::size_t first, double factor) {
    std::vector<double> x;
    double squares = 0;
    for (std::size_t i = 0; i < k_dim; ++i) {
      x.push_back(inputs.qkv[first + i]);
      squares += x[i] * x[i];
    }
    for (double& value : x) value *= factor / std::sqrt(squares + 1e-6);
    return x;
  };
  for (std::size_t t = 0; t < size(rows); ++t) {
    for (std::size_t h = 0; h < v_heads; ++h) {
      const std::size_t row = t * size(shape.channels());
      const std::size_t k_head = h / (v_heads / k_heads);
      const auto q = normed(row + k_head * k_dim, 1 / std::sqrt(double(k_dim)));
      const auto k = normed(row + (k_heads + k_head) * k_dim, 1);
      const std::size_t v = row + 2 * k_heads * k_dim + h * v_dim;
      const double x = double{inputs.a[t * v_heads + h]} + rule.dt_bias[h];
      const double decay = std::exp(-std::exp(double{rule.a_log[h]}) * std::log1p(std::exp(x)));
      const double beta = 1 / (1 + std::exp(-double{inputs.b[t * v_heads + h]}));
      double* s = r.state.data() + h * k_dim * v_dim;
      for (std::size_t d = 0; d < v_dim; ++d) {
        double read = 0, o = 0;
        for (std::size_t i = 0; i < k_dim; ++i) read += k[i] * (s[i * v_dim + d] *= decay);
        const double u = beta * (inputs.qkv[v + d] - read);
        for (std::size_t i = 0; i < k_dim; ++i) o += q[i] * (s[i * v_dim + d] += k[i] * u);
        r.out.push_back(o);
      }
    }
  }
  return r;
}

void expect_close(const std::vector<float>& actual, const std::vector<double>& expected,
                  double relative, const std::string& what) {
  double largest = 0;
  for (const double v : expected) largest = std::max(largest, std::abs(v));
  expect_near(actual, expected, std::vector<double>(expected.size(), relative * largest),
              DType::kF32, what);
}

TEST(GatedDeltaRule, BlocksAndRecurrenceEqualTheFormula) {
  const auto backend = test_backend(2);
  for (const GdnShape& shape :
       {kSmall, GdnShape{.num_k_heads = 1, .num_v_heads = 3, .k_dim = 128, .v_dim = 128},
        GdnShape{.num_k_heads = 2, .num_v_heads = 2, .k_dim = 16, .v_dim = 16}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      for (const int rows : {1, 63, 64, 65, 200}) {
        const Inputs inputs(dtype, shape, rows, 7);
        Rule prompt(*backend, dtype, shape), generated(*backend, dtype, shape);
        const Reference reference = recurrence(shape, inputs, prompt, rows);
        const std::string what = fmt::format("{} rows of {}", rows, shape.k_dim);
        expect_close(prompt.run_prompt(inputs, rows), reference.out, kBlockRule, what);
        expect_close(prompt.state(1), reference.state, kBlockRule, what + ", state");

        std::vector<float> out;
        for (int t = 0; t < rows; ++t) {
          Rule::append(out, generated.run(RowClass::kGenerated, {{1, &inputs, t, 1}}));
          generated.accept(1, 1);
        }
        expect_close(out, reference.out, kFp32Formula * 5, what + ", recurrence");
      }
    }
  }
}

// Widths that fill no tile, strip or register array, and keys wider than any known model's; long
// enough for errors of the state to add up. Chunks cut the same prompt, and its last rows are
// generated in rounds.
TEST(GatedDeltaRule, AwkwardWidths) {
  const auto backend = test_backend(2);
  constexpr int kRows = 333, kRound = 4;
  for (const GdnShape& shape :
       {GdnShape{.num_k_heads = 1, .num_v_heads = 2, .k_dim = 256, .v_dim = 48},
        GdnShape{.num_k_heads = 1, .num_v_heads = 1, .k_dim = 144, .v_dim = 16},
        GdnShape{.num_k_heads = 2, .num_v_heads = 2, .k_dim = 64, .v_dim = 256},
        GdnShape{.num_k_heads = 1, .num_v_heads = 3, .k_dim = 112, .v_dim = 112}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const std::string what = fmt::format("{} x {}", shape.k_dim, shape.v_dim);
      const Inputs inputs(dtype, shape, kRows + 2 * kRound, 17);
      Rule rule(*backend, dtype, shape), cut(*backend, dtype, shape);
      const Reference reference = recurrence(shape, inputs, rule, kRows + kRound);
      auto out = rule.run_prompt(inputs, kRows);
      ASSERT_EQ(first_difference(out, cut.run_prompt(inputs, kRows, {50, 64, 127, 128, 300})), "")
          << what;
      ASSERT_EQ(first_difference(rule.state(1), cut.state(1)), "") << what << ", state";
      Rule::append(out, rule.run(RowClass::kGenerated, {{1, &inputs, kRows, kRound}}));
      expect_close(out, reference.out, kBlockRule, what);
      rule.accept(1, kRound);
      rule.run(RowClass::kGenerated, {{1, &inputs, kRows + kRound, kRound}});
      expect_close(rule.state(1), reference.state, kBlockRule, what + ", state");
    }
  }
}

// Many short pieces of different sequences in one call, each of them across a block's end: more
// blocks than the rows would fill.
TEST(GatedDeltaRule, ManyPiecesInOneCall) {
  const auto backend = test_backend(2);
  constexpr GdnShape kShape{.num_k_heads = 1, .num_v_heads = 1, .k_dim = 16, .v_dim = 16};
  constexpr int kSequences = 40, kFirst = 63;
  const auto rows_of = [](int i) { return kFirst + 2 + i % 3; };
  std::vector<Inputs> inputs;
  for (int i = 0; i < kSequences; ++i) {
    inputs.emplace_back(DType::kBF16, kShape, rows_of(i), 200 + 3 * static_cast<std::uint64_t>(i));
  }
  Rule rule(*backend, DType::kBF16, kShape, true, kSequences);
  std::vector<Rule::Piece> first, second;
  for (int i = 0; i < kSequences; ++i) {
    const int slot = (7 * i + 5) % kSequences;
    first.push_back({slot, &inputs[size(i)], 0, kFirst});
    second.push_back({slot, &inputs[size(i)], kFirst, rows_of(i) - kFirst, i % 2 == 0});
  }
  const auto first_out = rule.run(RowClass::kPrompt, first);
  const auto second_out = rule.run(RowClass::kPrompt, second);
  const std::size_t width = size(kShape.num_v_heads * kShape.v_dim);
  std::size_t row = 0;
  for (int i = 0; i < kSequences; ++i) {
    Rule alone(*backend, DType::kBF16, kShape);
    const auto expected =
        alone.run(RowClass::kPrompt, {{1, &inputs[size(i)], 0, rows_of(i), i % 2 == 0}});
    const std::size_t rest = size(rows_of(i) - kFirst);
    const auto part = [&](const std::vector<float>& from, std::size_t begin, std::size_t rows) {
      return std::vector<float>(from.begin() + static_cast<std::ptrdiff_t>(begin * width),
                                from.begin() + static_cast<std::ptrdiff_t>((begin + rows) * width));
    };
    auto together = part(first_out, size(i * kFirst), size(kFirst));
    Rule::append(together, part(second_out, row, rest));
    ASSERT_EQ(first_difference(expected, together), "") << "sequence " << i;
    ASSERT_EQ(first_difference(alone.state(1), rule.state((7 * i + 5) % kSequences)), "")
        << "sequence " << i << ": state";
    row += rest;
  }
}

// Where decay is strong, e^c underflows inside a block; the ratio of two such factors must not.
TEST(GatedDeltaRule, StrongDecayStaysFinite) {
  const auto backend = test_backend(1);
  const Inputs inputs(DType::kF32, kSmall, 130, 8);
  Rule rule(*backend, DType::kF32, kSmall);
  for (std::size_t h = 0; h < 4; ++h) rule.a_log.set(h, 4.0f);
  const Reference reference = recurrence(kSmall, inputs, rule, 130);
  expect_close(rule.run_prompt(inputs, 130), reference.out, kBlockRule, "strong decay");
}

TEST(GatedDeltaRule, PromptChunksMayEndAnywhere) {
  const auto backend = test_backend(2);
  constexpr int kRows = 150;
  const Inputs inputs(DType::kBF16, kSmall, kRows, 9);
  Rule rule(*backend, DType::kBF16, kSmall);
  const auto whole = rule.run_prompt(inputs, kRows);
  const auto state = rule.state(1);
  const auto check = [&](const std::vector<int>& cuts) {
    Rule cut(*backend, DType::kBF16, kSmall);
    ASSERT_EQ(first_difference(whole, cut.run_prompt(inputs, kRows, cuts)), "")
        << ::testing::PrintToString(cuts);
    ASSERT_EQ(first_difference(state, cut.state(1)), "") << ::testing::PrintToString(cuts);
  };
  for (int cut = 1; cut < kRows; ++cut) check({cut});
  std::mt19937 engine(1);
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int> cuts;
    for (int at = 0; (at += 1 + static_cast<int>(engine() % 40)) < kRows;) cuts.push_back(at);
    check(cuts);
  }
  std::vector<int> single_rows;
  for (int t = 1; t < kRows; ++t) single_rows.push_back(t);
  check(single_rows);
}

TEST(GatedDeltaRule, WithoutOpenBlocksChunksEndOnBlocks) {
  const auto backend = test_backend(1);
  const Inputs inputs(DType::kBF16, kSmall, 150, 9);
  Rule with(*backend, DType::kBF16, kSmall), without(*backend, DType::kBF16, kSmall, false);
  EXPECT_EQ(
      first_difference(with.run_prompt(inputs, 150), without.run_prompt(inputs, 150, {64, 128})),
      "");
  if (on_gpu()) return;  // segments are not looked into
  Rule fresh(*backend, DType::kBF16, kSmall, false);
  EXPECT_THROW(fresh.run_prompt(inputs, 150, {65}), Error);
  EXPECT_THROW(fresh.run(RowClass::kPrompt, {{1, &inputs, 1, 63, false}}), Error);
}

// Rounds of k rows of which any number is accepted leave what the accepted rows alone leave.
TEST(GatedDeltaRule, ReplayEqualsTheStraightRecurrence) {
  const auto backend = test_backend(2);
  constexpr int kPrompt = 70, kRows = 24;
  const Inputs inputs(DType::kBF16, kSmall, kPrompt + kRows + Rule::kMaxRound, 10);
  const std::size_t width = size(kSmall.num_v_heads * kSmall.v_dim);
  Rule straight(*backend, DType::kBF16, kSmall);
  straight.run_prompt(inputs, kPrompt);
  std::vector<float> expected;
  for (int t = 0; t < kRows; ++t) {
    Rule::append(expected, straight.run(RowClass::kGenerated, {{1, &inputs, kPrompt + t, 1}}));
    straight.accept(1, 1);
  }
  straight.run(RowClass::kGenerated, {{1, &inputs, kPrompt + kRows, 1}});  // folds the last row
  for (int round = 1; round <= Rule::kMaxRound; ++round) {
    for (int accepted = 0; accepted <= round; ++accepted) {
      Rule rule(*backend, DType::kBF16, kSmall);
      rule.run_prompt(inputs, kPrompt);
      std::vector<float> out;
      int done = 0;
      for (int i = 0; done < kRows; ++i) {
        // Every other round accepts everything, so that accepting nothing still ends.
        const int take = std::min(i % 2 == 0 ? accepted : round, kRows - done);
        auto rows = rule.run(RowClass::kGenerated, {{1, &inputs, kPrompt + done, round}});
        rule.accept(1, take);
        // An empty place of a padded round leaves what is pending to the next.
        rule.run(RowClass::kGenerated, {{1, &inputs, 0, 0}, {0, &inputs, 0, 2}});
        rows.resize(size(take) * width);
        Rule::append(out, rows);
        done += take;
      }
      rule.run(RowClass::kGenerated, {{1, &inputs, kPrompt + kRows, 1}});
      ASSERT_EQ(first_difference(expected, out), "") << accepted << " of " << round << " accepted";
      ASSERT_EQ(first_difference(straight.state(1), rule.state(1)), "")
          << accepted << " of " << round << " accepted: state";
    }
  }
}

TEST(GatedDeltaRule, SequencesDoNotSeeEachOther) {
  const auto backend = test_backend(3);
  const Inputs inputs[] = {Inputs(DType::kBF16, kSmall, 100, 11),
                           Inputs(DType::kBF16, kSmall, 100, 12),
                           Inputs(DType::kBF16, kSmall, 100, 13)};
  std::vector<std::vector<float>> alone;
  for (int i = 0; i < 3; ++i) {
    Rule rule(*backend, DType::kBF16, kSmall);
    auto out = rule.run_prompt(inputs[i], 40 + 20 * i, {}, 0);
    Rule::append(out, rule.run(RowClass::kGenerated, {{0, &inputs[i], 90, 1 + i}}));
    alone.push_back(out);
  }
  Rule rule(*backend, DType::kBF16, kSmall);
  const int order[] = {2, 0, 1};  // sequence i lives in slot order[i]
  std::vector<Rule::Piece> prompts, rounds;
  for (const int i : {1, 2, 0}) {
    prompts.push_back({order[i], &inputs[i], 0, 40 + 20 * i, true});
    rounds.push_back({order[i], &inputs[i], 90, 1 + i});
  }
  const auto prompt_out = rule.run(RowClass::kPrompt, prompts);
  const auto round_out = rule.run(RowClass::kGenerated, rounds);
  const std::size_t width = size(kSmall.num_v_heads * kSmall.v_dim);
  std::size_t prompt_row = 0, round_row = 0;
  for (const int i : {1, 2, 0}) {
    const std::size_t rows = size(40 + 20 * i), generated = size(1 + i);
    std::vector<float> together(
        prompt_out.begin() + static_cast<std::ptrdiff_t>(prompt_row * width),
        prompt_out.begin() + static_cast<std::ptrdiff_t>((prompt_row + rows) * width));
    together.insert(
        together.end(), round_out.begin() + static_cast<std::ptrdiff_t>(round_row * width),
        round_out.begin() + static_cast<std::ptrdiff_t>((round_row + generated) * width));
    EXPECT_EQ(first_difference(alone[size(i)], together), "") << "sequence " << i;
    prompt_row += rows;
    round_row += generated;
  }
}

TEST(GatedDeltaRule, SameBitsOnEveryTargetAndThreadCount) {
  EXPECT_EQ(machine_dependence([](Backend& backend) {
              const Inputs inputs(DType::kBF16, kSmall, 120, 14);
              Rule rule(backend, DType::kBF16, kSmall);
              auto out = rule.run_prompt(inputs, 100, {37});
              Rule::append(out, rule.run(RowClass::kGenerated, {{1, &inputs, 100, 4}}));
              rule.accept(1, 3);
              Rule::append(out, rule.run(RowClass::kGenerated, {{1, &inputs, 103, 4}}));
              Rule::append(out, rule.state(1));
              return out;
            }),
            "");
}

// With beta = 1, no decay and orthonormal keys the state is an exact associative memory, and
// writing a key again replaces its value.
TEST(GatedDeltaRule, OrthonormalKeysMakeAnAssociativeMemory) {
  const auto backend = test_backend(1);
  constexpr GdnShape kShape{.num_k_heads = 1, .num_v_heads = 1, .k_dim = 32, .v_dim = 48};
  constexpr int kRows = 3 * 32;  // write all keys, write all again, read all
  const std::size_t channels = size(kShape.channels());
  Inputs inputs(DType::kF32, kShape, kRows, 15);
  for (std::size_t t = 0; t < kRows; ++t) {
    inputs.b.set(t, t < 64 ? 100.0f : -100.0f);  // reading writes nothing
    for (std::size_t i = 0; i < 32; ++i) {
      inputs.qkv.set(t * channels + i, i == t % 32 ? 1.0f : 0.0f);
      inputs.qkv.set(t * channels + 32 + i, i == t % 32 ? 1.0f : 0.0f);
    }
  }
  const auto check = [&](const std::vector<float>& out, const std::string& what) {
    for (std::size_t t = 64; t < kRows; ++t) {
      for (std::size_t d = 0; d < 48; ++d) {
        // q^ carries 1/sqrt(k_dim); the second writing counts.
        const double expected = inputs.qkv[(t - 32) * channels + 64 + d] / std::sqrt(32.0);
        ASSERT_NEAR(out[t * 48 + d], expected, 1e-5) << what << ", key " << t % 32;
      }
    }
  };
  const auto no_decay = [](Rule& rule) {
    rule.a_log.set(0, -std::numeric_limits<float>::infinity());
  };
  Rule blocks(*backend, DType::kF32, kShape);
  no_decay(blocks);
  check(blocks.run_prompt(inputs, kRows), "blocks");
  Rule rows(*backend, DType::kF32, kShape);
  no_decay(rows);
  std::vector<float> out;
  for (int t = 0; t < kRows; ++t) {
    Rule::append(out, rows.run(RowClass::kGenerated, {{1, &inputs, t, 1}}));
    rows.accept(1, 1);
  }
  check(out, "recurrence");
}

TEST(GatedDeltaRule, RefusesWhatCannotBeRight) {
  const auto backend = test_backend(1);
  EXPECT_THROW(ops::gdn_open_block_floats({2, 3, 64, 64}), Error);
  EXPECT_THROW(ops::gdn_open_block_floats({2, 4, 40, 64}), Error);
  if (on_gpu()) return;  // segments are not looked into
  const Inputs inputs(DType::kBF16, kSmall, 100, 16);
  Rule rule(*backend, DType::kBF16, kSmall);
  EXPECT_THROW(rule.run(RowClass::kGenerated, {{1, &inputs, 0, Rule::kMaxRound + 1}}), Error);
  rule.accept(1, 1);
  EXPECT_THROW(rule.run(RowClass::kPrompt, {{1, &inputs, 0, 64}}), Error);  // rows are pending
  rule.accept(1, Rule::kMaxRound + 1);
  EXPECT_THROW(rule.run(RowClass::kGenerated, {{1, &inputs, 0, 1}}), Error);
}

}  // namespace
}  // namespace tandem::testing
