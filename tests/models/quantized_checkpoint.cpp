#include "tests/models/quantized_checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <set>

#include "base/error.h"
#include "base/types.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/quant_format.h"
#include "checkpoint/safetensors.h"

namespace tandem::testing {
namespace {

namespace fs = std::filesystem;

struct Bytes {
  std::string name;
  DType dtype = DType::kF32;
  TensorShape shape;
  std::vector<std::byte> data;

  TensorToWrite view() const { return {name, dtype, shape, data.data()}; }
};

std::vector<std::byte> read_bytes(const Checkpoint& checkpoint, const TensorEntry& entry) {
  std::vector<std::byte> data(entry.bytes);
  std::ifstream in(checkpoint.file_path(entry.file), std::ios::binary);
  in.seekg(static_cast<std::streamoff>(entry.begin));
  in.read(reinterpret_cast<char*>(data.data()), static_cast<std::streamsize>(data.size()));
  TANDEM_CHECK(in.good());
  return data;
}

std::vector<float> to_floats(const Bytes& tensor) {
  std::vector<float> out(static_cast<std::size_t>(shape_numel(tensor.shape)));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (tensor.dtype == DType::kF32) {
      std::memcpy(&out[i], tensor.data.data() + 4 * i, 4);
    } else {
      std::uint16_t bits = 0;
      std::memcpy(&bits, tensor.data.data() + 2 * i, 2);
      out[i] = tensor.dtype == DType::kBF16 ? to_float(bf16{bits}) : f16_to_float(bits);
    }
  }
  return out;
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  std::vector<std::byte> out(values.size() * sizeof(T));
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// The code below `limit` whose value is nearest to |x|; codes stand in ascending order.
std::uint8_t nearest(float x, int limit, float (*value)(std::uint8_t)) {
  int low = 0, high = limit - 1;
  const float magnitude = std::abs(x);
  while (low < high) {
    const int middle = (low + high) / 2;
    if (value(static_cast<std::uint8_t>(middle)) < magnitude) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low > 0 && magnitude - value(static_cast<std::uint8_t>(low - 1)) <
                     value(static_cast<std::uint8_t>(low)) - magnitude) {
    --low;
  }
  return static_cast<std::uint8_t>(low);
}

std::uint8_t to_e4m3(float x) {
  return static_cast<std::uint8_t>(nearest(x, 0x7f, e4m3_to_float) | (std::signbit(x) ? 0x80 : 0));
}
std::uint8_t to_e2m1(float x) {
  return static_cast<std::uint8_t>(nearest(x, 8, e2m1_to_float) | (std::signbit(x) ? 8 : 0));
}
std::uint8_t to_int8(float x) {
  return static_cast<std::uint8_t>(
      static_cast<std::int8_t>(std::clamp(std::nearbyint(x), -127.0f, 127.0f)));
}

// A plain matrix and what is made of it.
class Quantizer {
 public:
  Quantizer(const Bytes& tensor, std::vector<Bytes>* out)
      : name_(tensor.name),
        module_(tensor.name.substr(0, tensor.name.size() - std::strlen(".weight"))),
        rows_(tensor.shape[0]),
        cols_(tensor.shape[1]),
        values_(to_floats(tensor)),
        out_(*out) {}

  bool divides(std::int64_t group) const { return cols_ % group == 0; }

  void fp8_block() {
    constexpr std::int64_t kSide = 128;
    const std::int64_t grid_rows = (rows_ + kSide - 1) / kSide;
    const std::int64_t grid_cols = (cols_ + kSide - 1) / kSide;
    std::vector<bf16> scales;
    for (std::int64_t r = 0; r < grid_rows; ++r) {
      for (std::int64_t c = 0; c < grid_cols; ++c) {
        scales.push_back(to_bf16(largest(r * kSide, kSide, c * kSide, kSide) / 448));
      }
    }
    add(name_, DType::kF8E4M3, {rows_, cols_}, codes(to_e4m3, [&](std::int64_t n, std::int64_t k) {
          return to_float(scales[static_cast<std::size_t>(n / kSide * grid_cols + k / kSide)]);
        }));
    add(name_ + "_scale_inv", DType::kBF16, {grid_rows, grid_cols}, bytes_of(scales));
  }

  void fp8_tensor() {
    const float scale = largest(0, rows_, 0, cols_) / 448;
    add(name_, DType::kF8E4M3, {rows_, cols_},
        codes(to_e4m3, [&](std::int64_t, std::int64_t) { return scale; }));
    add(name_ + "_scale", DType::kF32, {}, bytes_of(std::vector<float>{scale}));
    add(module_ + ".input_scale", DType::kF32, {}, bytes_of(std::vector<float>{0.5f}));
  }

  void fp8_channel() {
    const auto scales = row_scales(448);
    add(name_, DType::kF8E4M3, {rows_, cols_}, codes(to_e4m3, [&](std::int64_t n, std::int64_t) {
          return scales[static_cast<std::size_t>(n)];
        }));
    add(name_ + "_scale", DType::kF32, {rows_, 1}, bytes_of(scales));
  }

  void int8_channel() {
    const auto scales = row_scales(127);
    add(name_, DType::kI8, {rows_, cols_}, codes(to_int8, [&](std::int64_t n, std::int64_t) {
          return scales[static_cast<std::size_t>(n)];
        }));
    add(name_ + "_scale", DType::kF32, {rows_, 1}, bytes_of(scales));
  }

  void int8_group(std::int64_t group) {
    std::vector<bf16> scales;
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int64_t k = 0; k < cols_; k += group) {
        scales.push_back(to_bf16(largest(n, 1, k, group) / 127));
      }
    }
    const std::int64_t per_row = cols_ / group;
    add(name_, DType::kI8, {rows_, cols_}, codes(to_int8, [&](std::int64_t n, std::int64_t k) {
          return to_float(scales[static_cast<std::size_t>(n * per_row + k / group)]);
        }));
    add(name_ + "_scale", DType::kBF16, {rows_, per_row}, bytes_of(scales));
  }

  enum class Names { kModelOpt, kCompressedTensors };
  void nvfp4(Names names) {
    const float global = largest(0, rows_, 0, cols_) / (6 * 448);
    std::vector<std::uint8_t> scales;
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int64_t k = 0; k < cols_; k += 16) {
        scales.push_back(std::max<std::uint8_t>(1, to_e4m3(largest(n, 1, k, 16) / (6 * global))));
      }
    }
    const auto packed = pack(codes(to_e2m1, [&](std::int64_t n, std::int64_t k) {
      return e4m3_to_float(scales[static_cast<std::size_t>((n * cols_ + k) / 16)]) * global;
    }));
    const bool modelopt = names == Names::kModelOpt;
    add(modelopt ? name_ : name_ + "_packed", DType::kU8, {rows_, cols_ / 2}, packed);
    add(name_ + "_scale", DType::kF8E4M3, {rows_, cols_ / 16}, bytes_of(scales));
    if (modelopt) {
      add(name_ + "_scale_2", DType::kF32, {}, bytes_of(std::vector<float>{global}));
    } else {
      add(name_ + "_global_scale", DType::kF32, {1}, bytes_of(std::vector<float>{1 / global}));
    }
  }

  void mxfp4() {
    std::vector<std::uint8_t> scales;
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int64_t k = 0; k < cols_; k += 32) {
        const float exponent = std::ceil(std::log2(largest(n, 1, k, 32) / 6));
        scales.push_back(static_cast<std::uint8_t>(exponent + 127));
      }
    }
    const auto packed = pack(codes(to_e2m1, [&](std::int64_t n, std::int64_t k) {
      return e8m0_to_float(scales[static_cast<std::size_t>((n * cols_ + k) / 32)]);
    }));
    add(name_ + "_packed", DType::kU8, {rows_, cols_ / 2}, packed);
    add(name_ + "_scale", DType::kU8, {rows_, cols_ / 32}, bytes_of(scales));
  }

 private:
  void add(std::string name, DType dtype, TensorShape shape, std::vector<std::byte> data) {
    out_.push_back({std::move(name), dtype, std::move(shape), std::move(data)});
  }

  // Largest magnitude of an area, a little above zero for one of zeros.
  float largest(std::int64_t row, std::int64_t num_rows, std::int64_t col,
                std::int64_t num_cols) const {
    float most = 1e-6f;
    for (std::int64_t n = row; n < std::min(rows_, row + num_rows); ++n) {
      for (std::int64_t k = col; k < std::min(cols_, col + num_cols); ++k) {
        most = std::max(most, std::abs(values_[static_cast<std::size_t>(n * cols_ + k)]));
      }
    }
    return most;
  }

  std::vector<float> row_scales(float most) const {
    std::vector<float> scales;
    for (std::int64_t n = 0; n < rows_; ++n) scales.push_back(largest(n, 1, 0, cols_) / most);
    return scales;
  }

  template <class ScaleAt>
  std::vector<std::byte> codes(std::uint8_t (*encode)(float), const ScaleAt& scale_at) const {
    std::vector<std::byte> out;
    for (std::int64_t n = 0; n < rows_; ++n) {
      for (std::int64_t k = 0; k < cols_; ++k) {
        const float value = values_[static_cast<std::size_t>(n * cols_ + k)];
        out.push_back(static_cast<std::byte>(encode(value / scale_at(n, k))));
      }
    }
    return out;
  }

  // Two codes a byte, the even column in the low half.
  static std::vector<std::byte> pack(const std::vector<std::byte>& codes) {
    std::vector<std::byte> out;
    for (std::size_t i = 0; i < codes.size(); i += 2) {
      out.push_back(codes[i] | codes[i + 1] << 4);
    }
    return out;
  }

  std::string name_, module_;
  std::int64_t rows_, cols_;
  std::vector<float> values_;
  std::vector<Bytes>& out_;
};

bool ends_with_any(const std::string& name, const std::vector<std::string>& tails) {
  return std::any_of(tails.begin(), tails.end(),
                     [&](const std::string& tail) { return name.ends_with(tail); });
}

bool is_mlp(const std::string& name) {
  return ends_with_any(name, {"gate_proj.weight", "up_proj.weight", "down_proj.weight"});
}
bool is_projection(const std::string& name) {
  return ends_with_any(name,
                       {"q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight",
                        "in_proj_qkv.weight", "in_proj_z.weight", "linear_attn.out_proj.weight"});
}

// Adds what becomes of the tensor.
void quantize(const Bytes& tensor, QuantRecipe recipe, std::vector<Bytes>* out) {
  const bool mlp = is_mlp(tensor.name), projection = is_projection(tensor.name);
  const bool head = tensor.name == "lm_head.weight" && recipe == QuantRecipe::kModelOpt;
  if (!mlp && !projection && !head) return out->push_back(tensor);
  Quantizer quantizer(tensor, out);
  switch (recipe) {
    case QuantRecipe::kFp8Block:
      return quantizer.fp8_block();
    case QuantRecipe::kModelOpt:
      if (projection) return quantizer.fp8_tensor();
      if (quantizer.divides(16)) return quantizer.nvfp4(Quantizer::Names::kModelOpt);
      break;
    case QuantRecipe::kCompressedTensors:
      if (projection) return quantizer.fp8_channel();
      if (quantizer.divides(16)) return quantizer.nvfp4(Quantizer::Names::kCompressedTensors);
      break;
    case QuantRecipe::kMxfp4:
      if (projection) return quantizer.int8_channel();
      if (quantizer.divides(32)) return quantizer.mxfp4();
      break;
    case QuantRecipe::kInt8Group:
      if (quantizer.divides(32)) return quantizer.int8_group(32);
      break;
  }
  out->push_back(tensor);
}

void write_copy(const fs::path& source, const fs::path& target, const std::vector<Bytes>& tensors) {
  fs::create_directories(target);
  for (const auto& entry : fs::directory_iterator(source)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".safetensors") == std::string::npos) fs::copy_file(entry, target / name);
  }
  std::vector<TensorToWrite> views;
  for (const auto& tensor : tensors) views.push_back(tensor.view());
  write_safetensors(target / "model.safetensors", views, {{"format", "pt"}});
}

}  // namespace

const std::vector<QuantRecipe>& quant_recipes() {
  static const std::vector<QuantRecipe> all = {QuantRecipe::kFp8Block, QuantRecipe::kModelOpt,
                                               QuantRecipe::kCompressedTensors, QuantRecipe::kMxfp4,
                                               QuantRecipe::kInt8Group};
  return all;
}

std::string recipe_name(QuantRecipe recipe) {
  switch (recipe) {
    case QuantRecipe::kFp8Block:
      return "fp8_block";
    case QuantRecipe::kModelOpt:
      return "modelopt";
    case QuantRecipe::kCompressedTensors:
      return "compressed_tensors";
    case QuantRecipe::kMxfp4:
      return "mxfp4";
    case QuantRecipe::kInt8Group:
      return "int8_group";
  }
  return "?";
}

void write_quantized(const fs::path& source, const fs::path& target, QuantRecipe recipe) {
  const auto checkpoint = Checkpoint::open(source);
  std::vector<Bytes> tensors;
  for (const auto& [name, entry] : checkpoint.tensors()) {
    quantize({name, entry.dtype, entry.shape, read_bytes(checkpoint, entry)}, recipe, &tensors);
  }
  write_copy(source, target, tensors);
}

void write_dequantized(const fs::path& source, const fs::path& target) {
  const auto checkpoint = Checkpoint::open(source);
  std::vector<Bytes> tensors;
  for (const auto& layout : read_weight_formats(checkpoint).weights) {
    const TensorEntry& entry = *checkpoint.find(layout.weight);
    if (is_plain(layout.format)) {
      tensors.push_back({layout.weight, entry.dtype, entry.shape, read_bytes(checkpoint, entry)});
      continue;
    }
    const LoadedWeight weight = load_weight(checkpoint, layout);
    std::vector<float> values(static_cast<std::size_t>(layout.numel()));
    dequantize_rows(weight.view, 0, layout.rows, values.data());
    tensors.push_back(
        {request_name(layout), DType::kF32, {layout.rows, layout.cols}, bytes_of(values)});
  }
  write_copy(source, target, tensors);
}

}  // namespace tandem::testing
