// Binding is strict in both directions, slices equal the parts of whole reads, and a rank reads
// only the bytes it keeps.
#include "checkpoint/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "checkpoint/dequantize.h"
#include "tests/checkpoint/builder.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using testing::counting_bf16;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using testing::make_tensor;
using ::testing::Not;
using testing::OwnedTensor;
using testing::TempDir;

class LoaderTest : public ::testing::Test {
 protected:
  Checkpoint write(const std::vector<OwnedTensor>& tensors) {
    testing::write_side_files(dir_.path());
    testing::write_tensors(dir_ / "model.safetensors", tensors);
    return Checkpoint::open(dir_.path());
  }
  TempDir dir_;
};

// Destination of one request, filled with a value no source has.
struct Target {
  explicit Target(std::size_t n) : values(n, -77.0f) {}
  std::vector<float> values;
  TensorRequest request(std::string name, TensorShape shape) {
    TensorRequest r;
    r.name = std::move(name);
    r.shape = std::move(shape);
    r.as = DType::kF32;
    r.dst = values.data();
    return r;
  }
};

TEST_F(LoaderTest, SlicesEqualThePartsOfTheWhole) {
  constexpr std::int64_t kRows = 37;
  constexpr std::int64_t kCols = 53;
  const auto checkpoint = write({counting_bf16("w", {kRows, kCols})});
  const std::vector<std::vector<RowRange>> row_sets{
      {}, {{0, 1}}, {{36, 37}}, {{3, 20}}, {{1, 5}, {9, 9}, {30, 37}}, {{20, 30}, {2, 4}}};
  const std::vector<std::optional<ColRange>> col_sets{
      {}, ColRange{0, 53}, ColRange{0, 1}, ColRange{7, 52}, ColRange{10, 10}};
  for (const auto& rows : row_sets) {
    for (const auto& cols : col_sets) {
      const auto kept_rows = rows.empty() ? std::vector<RowRange>{{0, kRows}} : rows;
      const ColRange kept_cols = cols.value_or(ColRange{0, kCols});
      std::vector<float> expected;
      for (const auto& range : kept_rows) {
        for (auto n = range.begin; n < range.end; ++n) {
          for (auto k = kept_cols.begin; k < kept_cols.end; ++k) {
            expected.push_back(static_cast<float>((n * kCols + k) % 256));
          }
        }
      }
      Target target(expected.size());
      auto request = target.request("w", {kRows, kCols});
      request.rows = rows;
      request.cols = cols;
      const Loader loader(checkpoint, {request}, {});
      const auto stats = loader.load({});
      EXPECT_EQ(target.values, expected);
      EXPECT_EQ(stats.bytes_read, static_cast<std::int64_t>(expected.size()) * 2);
      EXPECT_EQ(stats.bytes_read, loader.bytes_to_read());
    }
  }
}

TEST_F(LoaderTest, ChunksDoNotChangeTheResult) {
  const auto checkpoint = write({counting_bf16("wide", {3, 9001}), counting_bf16("tall", {9001, 3}),
                                 counting_bf16("vector", {9001})});
  Target wide(3 * 9000);
  Target tall(9001 * 3);
  Target vector(9001);
  auto sliced = wide.request("wide", {3, 9001});
  sliced.cols = ColRange{1, 9001};
  const Loader loader(
      checkpoint, {sliced, tall.request("tall", {9001, 3}), vector.request("vector", {9001})}, {});
  LoadOptions options;
  options.staging_bytes = 4096;
  std::vector<std::int64_t> done;
  options.progress = [&](const LoadProgress& p) {
    EXPECT_EQ(p.bytes_total, loader.bytes_to_read());
    done.push_back(p.bytes_done);
  };
  const auto stats = loader.load(options);
  EXPECT_GT(stats.num_reads, 25);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), loader.bytes_to_read());
  for (std::int64_t i = 0; i < 3 * 9000; ++i) {
    ASSERT_EQ(wide.values[static_cast<std::size_t>(i)],
              static_cast<float>((i / 9000 * 9001 + 1 + i % 9000) % 256));
  }
  for (std::size_t i = 0; i < tall.values.size(); ++i) {
    ASSERT_EQ(tall.values[i], static_cast<float>(i % 256));
  }
  for (std::size_t i = 0; i < vector.values.size(); ++i) {
    ASSERT_EQ(vector.values[i], static_cast<float>(i % 256));
  }
}

TEST_F(LoaderTest, ARankReadsOnlyWhatItKeeps) {
  const auto checkpoint = write({counting_bf16("w", {64, 128}), counting_bf16("big", {4096, 128})});
  std::vector<bf16> dst(32 * 128);
  TensorRequest request{.name = "w", .shape = {64, 128}, .rows = {split_even(64, 1, 2)}};
  request.dst = dst.data();
  const Loader loader(checkpoint, {request}, {.ignore = {{"big", "a tensor of the test"}}});
  EXPECT_EQ(loader.load({}).bytes_read, 32 * 128 * 2);
  EXPECT_EQ(to_float(dst[0]), static_cast<float>(32 * 128 % 256));
}

TEST_F(LoaderTest, ReadsAcrossShards) {
  testing::write_side_files(dir_.path());
  testing::write_tensors(dir_ / "one.safetensors", {counting_bf16("a", {4, 2})});
  testing::write_tensors(dir_ / "two.safetensors", {counting_bf16("b", {4, 2}, 100)});
  testing::write_index(dir_.path(), {{"a", "one.safetensors"}, {"b", "two.safetensors"}});
  const auto checkpoint = Checkpoint::open(dir_.path());
  Target a(2);
  Target b(8);
  auto last_row = a.request("a", {4, 2});
  last_row.rows = {{3, 4}};
  Loader(checkpoint, {b.request("b", {4, 2}), last_row}, {}).load({});
  EXPECT_THAT(a.values, ElementsAre(6, 7));
  EXPECT_THAT(b.values, ElementsAre(100, 101, 102, 103, 104, 105, 106, 107));
}

TEST_F(LoaderTest, ConvertsBetweenFloatTypes) {
  const std::vector<std::uint16_t> halves{0x3c00, 0xc100, 0x0001};  // 1, -2.5, 2^-24
  const std::vector<float> floats{1.0f, 1.00390625f, -3.0f};        // the second is no bf16
  const auto checkpoint =
      write({make_tensor("h", DType::kF16, {3}, halves), make_tensor("f", DType::kF32, {3}, floats),
             counting_bf16("b", {3})});
  Target h(3);
  Target f(3);
  Target b(3);
  std::vector<bf16> h16(3);
  std::vector<bf16> f16(3);
  TensorRequest h_narrow{.name = "h", .shape = {3}};
  h_narrow.dst = h16.data();
  TensorRequest f_narrow{.name = "f", .shape = {3}};
  f_narrow.dst = f16.data();
  f_narrow.narrowing = Narrowing::kAllow;
  Loader(checkpoint,
         {h.request("h", {3}), f.request("f", {3}), b.request("b", {3}), h_narrow, f_narrow}, {})
      .load({});
  EXPECT_THAT(h.values, ElementsAre(1.0f, -2.5f, 0x1p-24f));
  EXPECT_EQ(f.values, floats);
  EXPECT_THAT(b.values, ElementsAre(0, 1, 2));
  EXPECT_EQ(to_float(h16[1]), -2.5f);
  EXPECT_EQ(to_float(f16[1]), 1.0f);  // a tie, to even
  EXPECT_EQ(to_float(f16[2]), -3.0f);
}

TEST_F(LoaderTest, StrideLeavesThePaddingAlone) {
  const auto checkpoint = write({counting_bf16("w", {2, 3})});
  Target target(8);
  auto request = target.request("w", {2, 3});
  request.dst_row_stride = 4;
  Loader(checkpoint, {request}, {}).load({});
  EXPECT_THAT(target.values, ElementsAre(0, 1, 2, -77, 3, 4, 5, -77));

  std::vector<bf16> raw(8, bf16{0xffff});
  TensorRequest same_type{.name = "w", .shape = {2, 3}};
  same_type.dst = raw.data();
  same_type.dst_row_stride = 4;
  Loader(checkpoint, {same_type}, {}).load({});
  EXPECT_EQ(to_float(raw[4]), 3.0f);
  EXPECT_EQ(raw[3].bits, 0xffff);
}

TEST_F(LoaderTest, ListsAllFaultsOfABinding) {
  const auto checkpoint = write(
      {counting_bf16("conv", {4, 1, 3}), make_tensor("f", DType::kF32, {1}, std::vector<float>{1}),
       make_tensor("table", DType::kI64, {1}, std::vector<std::int64_t>{1}),
       counting_bf16("unknown.weight", {2}), counting_bf16("model.visual.patch", {2})});
  Target target(16);
  TensorRequest narrow{.name = "f", .shape = {1}};
  const auto message = error_of([&] {
    Loader(checkpoint, {target.request("conv", {4, 3}), target.request("gone", {2, 2}), narrow},
           {.ignore = {{"model.visual.*", "the visual tower"}, {"table", "a table"}}});
  });
  EXPECT_THAT(message, HasSubstr("4 faults"));
  EXPECT_THAT(message,
              HasSubstr("model.safetensors: tensor \"conv\": has shape [4, 1, 3]; expected "
                        "[4, 3]"));
  EXPECT_THAT(message, HasSubstr("\"gone\" [2, 2] is missing"));
  EXPECT_THAT(message, HasSubstr("\"f\": is stored as F32; it is not rounded to BF16 unasked"));
  EXPECT_THAT(message, HasSubstr("\"unknown.weight\": BF16 [2] is not part of the model"));
  EXPECT_THAT(message, Not(HasSubstr("visual")));
  EXPECT_THAT(error_of([&] {
                Loader(checkpoint, {target.request("table", {1})}, {.ignore = {{"*", "the rest"}}});
              }),
              HasSubstr("\"table\": is I64, no weight"));
}

TEST_F(LoaderTest, ScansForNanOnlyWhenAsked) {
  const auto checkpoint =
      write({make_tensor("w", DType::kBF16, {2, 2}, std::vector<bf16>{{0}, {0}, {0x7fc0}, {0}})});
  std::vector<bf16> dst(4);
  TensorRequest request{.name = "w", .shape = {2, 2}};
  request.dst = dst.data();
  const Loader loader(checkpoint, {request}, {});
  EXPECT_THAT(error_of([&] { loader.load({}); }), ::testing::IsEmpty());
  EXPECT_THAT(error_of([&] { loader.load({.scan_for_nan = true}); }),
              HasSubstr("tensor \"w\": element [1, 0] is nan"));
}

TEST_F(LoaderTest, AFileThatShrinksIsNamed) {
  const auto checkpoint = write({counting_bf16("w", {64, 64})});
  std::vector<bf16> dst(64 * 64);
  TensorRequest request{.name = "w", .shape = {64, 64}};
  request.dst = dst.data();
  const Loader loader(checkpoint, {request}, {});
  fs::resize_file(dir_ / "model.safetensors", 4096);
  EXPECT_THAT(error_of([&] { loader.load({}); }), HasSubstr("since it was checked"));
  fs::remove(dir_ / "model.safetensors");
  EXPECT_THAT(error_of([&] { loader.load({}); }), HasSubstr("cannot open"));
}

// Block FP8 with partial edges: codes 0x38 + n % 8 are 1 + (n % 8) / 8, scales are 1, 2, 3, ...
TEST_F(LoaderTest, WidensQuantizedSlicesOnlyWhenAsked) {
  std::vector<std::uint8_t> codes(200 * 300);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(0x38 + i % 7);
  const auto checkpoint = write(
      {make_tensor("a.weight", DType::kF8E4M3, {200, 300}, codes),
       make_tensor("a.weight_scale_inv", DType::kF32, {2, 3}, std::vector<float>{1, 2, 3, 4, 5, 6}),
       make_tensor("a.input_scale", DType::kF32, {}, std::vector<float>{1})});
  Target target(150 * 100);
  auto request = target.request("a.weight", {200, 300});
  request.rows = {{10, 60}, {100, 200}};
  request.cols = ColRange{150, 250};
  EXPECT_THAT(
      error_of([&] { Loader(checkpoint, {request}, {}); }),
      HasSubstr("\"a.weight\": is stored as fp8 block, which this build cannot compute with"));

  const Loader loader(checkpoint, {request}, {.quantized = QuantizedWeights::kWiden});
  loader.load({.staging_bytes = 4096});
  const auto layout = read_weight_formats(checkpoint).weights.front();
  const auto whole = load_weight(checkpoint, layout);
  std::vector<float> values(200 * 300);
  dequantize_rows(whole.view, 0, 200, values.data());
  for (std::size_t i = 0; i < 150; ++i) {
    const std::size_t n = i < 50 ? 10 + i : 50 + i;
    for (std::size_t k = 0; k < 100; ++k) {
      ASSERT_EQ(target.values[i * 100 + k], values[n * 300 + 150 + k]) << n << " " << k;
    }
  }
}

TEST_F(LoaderTest, WidensNvfp4AndRefusesBadScales) {
  std::vector<std::uint8_t> codes(4 * 16);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 7);
  std::vector<std::uint8_t> scales{0x38, 0x40, 0x48, 0x30, 0x28, 0x38, 0x39, 0x3a};
  const auto tensors = [&] {
    return std::vector<OwnedTensor>{
        make_tensor("a.weight_packed", DType::kU8, {4, 16}, codes),
        make_tensor("a.weight_scale", DType::kF8E4M3, {4, 2}, scales),
        make_tensor("a.weight_global_scale", DType::kF32, {1}, std::vector<float>{512})};
  };
  Target target(4 * 16);
  auto request = target.request("a.weight", {4, 32});
  request.cols = ColRange{16, 32};
  {
    const auto checkpoint = write(tensors());
    Loader(checkpoint, {request}, {.quantized = QuantizedWeights::kWiden}).load({});
    const auto whole = load_weight(checkpoint, read_weight_formats(checkpoint).weights.front());
    std::vector<float> values(4 * 32);
    dequantize_rows(whole.view, 0, 4, values.data());
    for (std::size_t i = 0; i < target.values.size(); ++i) {
      ASSERT_EQ(target.values[i], values[i / 16 * 32 + 16 + i % 16]);
    }
  }
  scales[5] = 0x7f;
  const auto checkpoint = write(tensors());
  EXPECT_THAT(error_of([&] {
                Loader(checkpoint, {request}, {.quantized = QuantizedWeights::kWiden}).load({});
              }),
              HasSubstr("a.weight_packed: scale [2, 1] is nan"));
}

// The codes and scales of a slice as a kernel gets them, multiplied out again.
std::vector<float> values_of(const TensorRequest& request, float factor) {
  const QuantizedTarget& target = *request.quantized;
  const auto rows = kept_row_ranges(request);
  const ColRange cols = kept_col_range(request);
  const ScaleSlice slice =
      slice_scales(target.block_rows, target.block_cols, request.shape[1], rows, cols);
  QuantizedWeight w;
  w.format = target.format;
  w.rows = w.matrix_rows = 0;
  for (const auto& range : rows) w.rows += range.count();
  w.matrix_rows = w.rows;
  w.cols = cols.count();
  w.block_rows = slice.block_rows;
  w.block_cols = slice.block_cols;
  w.codes = static_cast<const std::byte*>(request.dst);
  w.scales = static_cast<const std::byte*>(target.scales);
  w.scale_dtype = target.scale_dtype;
  w.global_scale = factor;
  std::vector<float> values(static_cast<std::size_t>(w.rows * w.cols));
  dequantize_rows(w, 0, w.rows, values.data());
  return values;
}

// `request` kept as stored and widened, from small staging buffers: the same values.
void expect_kept_as_stored(const Checkpoint& checkpoint, TensorRequest request) {
  const auto layout = read_weight_formats(checkpoint).weights.front();
  std::int64_t rows = 0;
  for (const auto& range : kept_row_ranges(request)) rows += range.count();
  Target widened(static_cast<std::size_t>(rows * kept_col_range(request).count()));
  auto values = request;
  values.as = DType::kF32;
  values.dst = widened.values.data();
  Loader(checkpoint, {values}, {.quantized = QuantizedWeights::kWiden}).load({});

  std::vector<std::byte> codes(widened.values.size(), std::byte{0x7f});
  std::vector<std::byte> scales(widened.values.size() * 4, std::byte{0x7f});
  request.dst = codes.data();
  request.quantized = QuantizedTarget{.format = layout.format,
                                      .scale_dtype = layout.scale_dtype,
                                      .block_rows = layout.block_rows,
                                      .block_cols = layout.block_cols,
                                      .scales = scales.data()};
  Loader(checkpoint, {request}, {}).load({.staging_bytes = 4096});
  EXPECT_EQ(values_of(request, read_weight_factor(checkpoint, layout)), widened.values);
}

TEST_F(LoaderTest, KeepsCodesAndScalesOfASliceAsStored) {
  std::vector<std::uint8_t> codes(200 * 300);
  for (std::size_t i = 0; i < codes.size(); ++i)
    codes[i] = static_cast<std::uint8_t>(0x30 + i % 37);
  const auto checkpoint = write({make_tensor("a.weight", DType::kF8E4M3, {200, 300}, codes),
                                 make_tensor("a.weight_scale_inv", DType::kF32, {2, 3},
                                             std::vector<float>{1, 2, 3, 4, 5, 6})});
  const std::vector<std::vector<RowRange>> row_sets{
      {}, {{100, 200}}, {{10, 60}, {100, 200}}, {{128, 200}, {0, 64}}};
  for (const auto& rows : row_sets) {
    for (const auto& cols : {std::optional<ColRange>(), std::optional(ColRange{150, 300}),
                             std::optional(ColRange{0, 2})}) {
      expect_kept_as_stored(checkpoint,
                            {.name = "a.weight", .shape = {200, 300}, .rows = rows, .cols = cols});
    }
  }
}

TEST_F(LoaderTest, KeepsPackedCodesWithBothConventionsOfTheSecondLevelScale) {
  std::vector<std::uint8_t> codes(40 * 32), scales(40 * 4);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 7);
  for (std::size_t i = 0; i < scales.size(); ++i) {
    scales[i] = static_cast<std::uint8_t>(0x30 + i % 0x30);
  }
  const auto packed = make_tensor("a.weight_packed", DType::kU8, {40, 32}, codes);
  const auto block_scales = make_tensor("a.weight_scale", DType::kF8E4M3, {40, 4}, scales);
  const TensorRequest request{
      .name = "a.weight", .shape = {40, 64}, .rows = {{20, 40}}, .cols = ColRange{32, 64}};
  {
    const auto checkpoint =
        write({packed, block_scales,
               make_tensor("a.weight_global_scale", DType::kF32, {1}, std::vector<float>{512})});
    const auto layout = read_weight_formats(checkpoint).weights.front();
    EXPECT_EQ(read_weight_factor(checkpoint, layout), 0x1p-9f);
    expect_kept_as_stored(checkpoint, request);
  }
  auto plain_name = packed;
  plain_name.name = "a.weight";
  {
    const auto checkpoint =
        write({plain_name, block_scales,
               make_tensor("a.weight_scale_2", DType::kF32, {}, std::vector<float>{0.002f})});
    expect_kept_as_stored(checkpoint, request);
  }
  const auto reciprocal =
      write({plain_name, block_scales,
             make_tensor("a.weight_scale_2", DType::kF32, {}, std::vector<float>{500})});
  EXPECT_THAT(error_of([&] {
                read_weight_factor(reciprocal, read_weight_formats(reciprocal).weights.front());
              }),
              HasSubstr("second-level scale is 500; expected one below 1"));
}

TEST_F(LoaderTest, RefusesCodesAndScalesThatAreNotNumbers) {
  std::vector<std::uint8_t> codes(8 * 4, 0x38);
  codes[4 * 5 + 2] = 0xff;
  std::vector<float> scales(8, 1.0f);
  const auto load = [&] {
    const auto checkpoint = write({make_tensor("a.weight", DType::kF8E4M3, {8, 4}, codes),
                                   make_tensor("a.weight_scale", DType::kF32, {8, 1}, scales)});
    expect_kept_as_stored(checkpoint, {.name = "a.weight", .shape = {8, 4}, .rows = {{4, 8}}});
  };
  const auto load_raw = [&] {
    const auto checkpoint = write({make_tensor("a.weight", DType::kF8E4M3, {8, 4}, codes),
                                   make_tensor("a.weight_scale", DType::kF32, {8, 1}, scales)});
    std::vector<std::byte> dst(4 * 4), scale_dst(4 * 4);
    const TensorRequest request{.name = "a.weight",
                                .shape = {8, 4},
                                .rows = {{4, 8}},
                                .quantized = QuantizedTarget{.format = WeightFormat::kFp8Channel,
                                                             .block_rows = 1,
                                                             .block_cols = 4,
                                                             .scales = scale_dst.data()},
                                .dst = dst.data()};
    Loader(checkpoint, {request}, {}).load({});
  };
  EXPECT_THAT(error_of(load_raw), HasSubstr("\"a.weight\": element [5, 2] is nan"));
  codes[4 * 5 + 2] = 0x38;
  EXPECT_THAT(error_of(load), ::testing::IsEmpty());
  scales[6] = -1;
  EXPECT_THAT(error_of(load_raw), HasSubstr("a.weight: scale [6, 0] is -1"));
}

// Every tensor of the fixture, two ranks: the parts put together are the whole.
TEST(LoaderFixture, TwoRanksTogetherHoldTheWholeModel) {
  const auto directory = testing::test_data("tiny-qwen3.8");
  const auto checkpoint = Checkpoint::open(directory);
  const auto config = read_model_config(directory);
  const std::string prefix = text_tensor_prefix(checkpoint);

  // The requests of one rank, with the targets they fill; size 1: the whole model.
  struct Part {
    std::vector<Target> targets;
    std::vector<TensorSplit> splits;
  };
  const auto load = [&](int rank, int size) {
    Part part;
    std::vector<TensorRequest> requests;
    for (const auto& [name, entry] : checkpoint.tensors()) {
      const std::string local = name.starts_with(prefix) ? name.substr(prefix.size()) : name;
      const auto& split =
          part.splits.emplace_back(qwen3_8_split(config, local, entry.shape, rank, size));
      auto& target =
          part.targets.emplace_back(static_cast<std::size_t>(split.num_rows * split.num_cols));
      auto& request = requests.emplace_back(target.request(name, entry.shape));
      request.rows = split.rows;
      request.cols = split.cols;
    }
    const Loader loader(checkpoint, std::move(requests), {});
    EXPECT_EQ(loader.load({}).bytes_read, loader.bytes_to_read());
    return part;
  };
  const Part whole = load(0, 1);
  const Part parts[] = {load(0, 2), load(1, 2)};
  std::size_t t = 0;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    const std::int64_t cols = shape_numel(entry.shape) / entry.shape.front();
    std::vector<float> joined(whole.targets[t].values.size(),
                              std::numeric_limits<float>::quiet_NaN());
    for (const auto& part : parts) {
      const auto& split = part.splits[t];
      const auto rows =
          split.rows.empty() ? std::vector<RowRange>{{0, entry.shape.front()}} : split.rows;
      const ColRange kept = split.cols.value_or(ColRange{0, cols});
      std::size_t i = 0;
      for (const auto& range : rows) {
        for (auto n = range.begin; n < range.end; ++n) {
          for (auto k = kept.begin; k < kept.end; ++k) {
            joined[static_cast<std::size_t>(n * cols + k)] = part.targets[t].values[i++];
          }
        }
      }
    }
    EXPECT_EQ(joined, whole.targets[t].values) << name;
    ++t;
  }
}

}  // namespace
}  // namespace tandem
