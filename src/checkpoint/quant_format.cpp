#include "checkpoint/quant_format.h"

#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>

namespace tandem {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> suffixes) {
  return std::any_of(suffixes.begin(), suffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

// Names under which scales are stored, so that E4M3 or U8 scales are not taken for weights.
bool is_scale_name(std::string_view name) {
  return ends_with_any(name, {"_scale", "_scales", "_scale_inv", "_scale_2", ".scale"});
}

bool is_kv_scale_name(std::string_view name) {
  return ends_with_any(name, {".k_scale", ".v_scale", ".q_scale", ".kv_scale", ".prob_scale"});
}

// Scales that only make sense beside a quantized weight.
bool is_weight_scale_name(std::string_view name) {
  return ends_with_any(name, {"weight_scale", "weight_scale_inv", "weight_scale_2",
                              "weight_global_scale", ".input_scale", ".input_global_scale"});
}

bool is_quantized_dtype(DType t) {
  return t == DType::kF8E4M3 || t == DType::kF8E5M2 || t == DType::kI8 || t == DType::kU8;
}

bool is_float_scale(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

std::string without_suffix(const std::string& name, std::string_view suffix) {
  return name.ends_with(suffix) ? name.substr(0, name.size() - suffix.size()) : name;
}

std::string layout_text(const WeightLayout& layout) {
  switch (layout.format) {
    case WeightFormat::kFp8Block:
      return fmt::format("fp8 block {}x{}", layout.block_rows, layout.block_cols);
    case WeightFormat::kInt8Group:
      return fmt::format("int8 group {}", layout.block_cols);
    default:
      return std::string(format_name(layout.format));
  }
}

class Classifier {
 public:
  Classifier(const Checkpoint& checkpoint, const QuantDeclaration& declared, FaultList& faults)
      : checkpoint_(checkpoint), declared_(declared), faults_(faults) {}

  CheckpointFormats run() {
    out_.declared_method = declared_.method();
    for (const auto& [name, entry] : checkpoint_.tensors()) {
      const bool packed = name.ends_with("_packed");
      if ((is_quantized_dtype(entry.dtype) || packed) && !is_scale_name(name)) {
        classify_quantized(name, entry);
      }
    }
    for (const auto& [name, entry] : checkpoint_.tensors()) {
      if (!claimed_.contains(name)) classify_rest(name, entry);
    }
    for (const auto& layout : out_.weights) compare_with_declaration(layout);
    std::sort(out_.weights.begin(), out_.weights.end(),
              [](const WeightLayout& a, const WeightLayout& b) { return a.weight < b.weight; });
    return std::move(out_);
  }

 private:
  void fault(const std::string& tensor, const std::string& text) {
    const TensorEntry* entry = checkpoint_.find(tensor);
    faults_.add("{}: tensor \"{}\": {}", checkpoint_.files()[entry->file].name, tensor, text);
  }

  // Takes `name` as part of the current weight if it is there; "" otherwise.
  std::string claim(const std::string& name) {
    if (checkpoint_.find(name) == nullptr) return {};
    claimed_.insert(name);
    return name;
  }

  std::vector<std::string> claim_scales(const std::string& base, const std::string& module) {
    std::vector<std::string> found;
    for (const std::string& name : {base + "_scale_inv", base + "_scale", base + "_scales"}) {
      if (!claim(name).empty()) found.push_back(name);
    }
    if (module != base && !claim(module + ".scale").empty()) found.push_back(module + ".scale");
    // The n-gram table: shards of one matrix that share the scale of their parent.
    const std::size_t dot = module.rfind('.');
    if (found.empty() && dot != std::string::npos && module.compare(dot, 7, ".shard_") == 0) {
      const std::string name = module.substr(0, dot) + ".weight_scale";
      if (!claim(name).empty()) found.push_back(name);
    }
    return found;
  }

  void classify_quantized(const std::string& name, const TensorEntry& entry) {
    claimed_.insert(name);
    const bool blocks = name.ends_with("_blocks");
    const std::string base = without_suffix(without_suffix(name, "_packed"), "_blocks");
    WeightLayout layout;
    layout.weight = name;
    layout.module = without_suffix(base, ".weight");

    const auto scales = claim_scales(base, layout.module);
    const std::string multiply = claim(base + "_scale_2");
    const std::string reciprocal = claim(base + "_global_scale");
    for (const char* input : {".input_scale", ".input_global_scale"}) {
      if (auto found = claim(layout.module + input); !found.empty()) layout.input_scale = found;
    }
    claim(base + "_shape");
    for (const std::string& extra :
         {base + "_g_idx", base + "_zero_point", layout.module + ".pre_quant_scale"}) {
      if (!claim(extra).empty()) {
        return fault(name, fmt::format("comes with \"{}\", which is not supported", extra));
      }
    }
    if (scales.size() > 1 || (!multiply.empty() && !reciprocal.empty())) {
      return fault(name, "has two scale tensors that exclude each other");
    }
    if (scales.empty()) {
      const bool is_table = !name.ends_with(".weight") && base == name &&
                            (entry.dtype == DType::kU8 || entry.dtype == DType::kI8);
      if (is_table) return out_.others.push_back(name);
      return fault(name, fmt::format("{} weight without a scale tensor", dtype_name(entry.dtype)));
    }
    if (entry.shape.size() < 2 || shape_numel(entry.shape) == 0) {
      return fault(name, fmt::format("{} weight of shape {}", dtype_name(entry.dtype),
                                     shape_text(entry.shape)));
    }
    layout.scale = scales.front();
    if (!multiply.empty() || !reciprocal.empty()) {
      layout.global_scale = multiply.empty() ? reciprocal : multiply;
      layout.global_scale_use =
          multiply.empty() ? GlobalScale::kReciprocal : GlobalScale::kMultiply;
      const TensorEntry& global = *checkpoint_.find(layout.global_scale);
      if (global.dtype != DType::kF32 || shape_numel(global.shape) != 1) {
        return fault(layout.global_scale,
                     fmt::format("{} {} as second-level scale; expected one F32",
                                 dtype_name(global.dtype), shape_text(global.shape)));
      }
    }
    const TensorEntry& scale = *checkpoint_.find(layout.scale);
    set_shape(layout, entry, scale, blocks);
    if (set_format(layout, entry, scale)) out_.weights.push_back(std::move(layout));
  }

  static bool is_four_bit(const TensorEntry& entry, const TensorEntry& scale) {
    return entry.dtype == DType::kU8 ||
           (entry.dtype == DType::kI8 && scale.dtype == DType::kF8E8M0);
  }

  static void set_shape(WeightLayout& layout, const TensorEntry& entry, const TensorEntry& scale,
                        bool blocks) {
    TensorShape shape = entry.shape;
    if (blocks) {  // [..., K / 32, 16] pairs of codes: join the last two dimensions
      const std::int64_t bytes = shape.back();
      shape.pop_back();
      shape.back() *= bytes;
      if (shape.size() < 2) shape.insert(shape.begin(), 1);
    }
    const std::int64_t stored_cols = shape.back();
    layout.rows = shape_numel(shape) / stored_cols;
    layout.matrix_rows = shape[shape.size() - 2];
    layout.cols = is_four_bit(entry, scale) ? 2 * stored_cols : stored_cols;
  }

  // Sets format and block; reports and returns false if dtypes and shapes fit no format.
  bool set_format(WeightLayout& layout, const TensorEntry& entry, const TensorEntry& scale) {
    layout.scale_dtype = scale.dtype;
    if (entry.dtype == DType::kF8E4M3) return set_fp8(layout, scale);
    if (entry.dtype == DType::kU8 && !layout.global_scale.empty()) {
      return set_grouped(layout, scale, WeightFormat::kNvfp4, 16, scale.dtype == DType::kF8E4M3);
    }
    if (is_four_bit(entry, scale)) {
      layout.scale_dtype = DType::kF8E8M0;
      return set_grouped(layout, scale, WeightFormat::kMxfp4, 32,
                         scale.dtype == DType::kU8 || scale.dtype == DType::kF8E8M0);
    }
    if (entry.dtype == DType::kI8) return set_int8(layout, scale);
    fault(layout.weight, fmt::format("weights packed as {} are not supported; use a checkpoint in "
                                     "BF16, FP8, NVFP4, MXFP4 or INT8",
                                     dtype_name(entry.dtype)));
    return false;
  }

  bool set_grouped(WeightLayout& layout, const TensorEntry& scale, WeightFormat format,
                   std::int64_t group, bool dtype_fits) {
    layout.format = format;
    layout.block_rows = 1;
    layout.block_cols = group;
    if (dtype_fits && layout.cols % group == 0 && !scale.shape.empty() &&
        scale.shape.back() == layout.cols / group &&
        shape_numel(scale.shape) == layout.rows * (layout.cols / group)) {
      return true;
    }
    return reject_scale(layout, scale,
                        fmt::format("{} scales of shape [{}, {}]",
                                    format == WeightFormat::kNvfp4 ? "F8_E4M3" : "E8M0 (U8)",
                                    layout.rows, ceil_div(layout.cols, group)));
  }

  bool set_int8(WeightLayout& layout, const TensorEntry& scale) {
    const std::int64_t per_row = shape_numel(scale.shape) / std::max<std::int64_t>(layout.rows, 1);
    layout.block_rows = 1;
    const bool whole = per_row > 0 && shape_numel(scale.shape) == per_row * layout.rows &&
                       layout.cols % per_row == 0 && is_float_scale(scale.dtype) &&
                       (per_row == 1 || scale.shape.back() == per_row);
    if (!whole) {
      return reject_scale(layout, scale, "one floating-point scale a row, or a column group");
    }
    layout.format = per_row == 1 ? WeightFormat::kInt8Channel : WeightFormat::kInt8Group;
    layout.block_cols = layout.cols / per_row;
    return true;
  }

  bool set_fp8(WeightLayout& layout, const TensorEntry& scale) {
    const TensorShape shape = squeeze_blocks(scale.shape);
    const std::int64_t count = shape_numel(shape);
    const std::int64_t matrices = layout.rows / layout.matrix_rows;
    const auto rule = declared_.rule_for(layout.module);
    const bool block_meant =
        layout.scale.ends_with("_scale_inv") || (rule && rule->format == WeightFormat::kFp8Block);
    if (!is_float_scale(scale.dtype) && scale.dtype != DType::kF8E8M0) {
      return reject_scale(layout, scale, "F32, BF16, F16 or F8_E8M0 scales");
    }
    if (block_meant && set_fp8_block(layout, shape, rule)) return true;
    if (count == 1) layout.matrix_rows = layout.rows;  // one scale for a whole stack
    if (count == 1 || count == matrices) {
      layout.format = WeightFormat::kFp8Tensor;
      layout.block_rows = layout.matrix_rows;
      layout.block_cols = layout.cols;
      return true;
    }
    if (count == layout.rows && (shape.back() == 1 || shape.back() == layout.matrix_rows)) {
      layout.format = WeightFormat::kFp8Channel;
      layout.block_rows = 1;
      layout.block_cols = layout.cols;
      return true;
    }
    if (set_fp8_block(layout, shape, rule)) return true;
    return reject_scale(layout, scale, "one scale, one a row, or one a square block of 16 to 512");
  }

  // [N / 128, 1, K / 128, 1], as some writers have it, means [N / 128, K / 128].
  static TensorShape squeeze_blocks(const TensorShape& shape) {
    const std::size_t n = shape.size();
    if (n < 4 || shape[n - 1] != 1 || shape[n - 3] != 1) return shape;
    TensorShape out(shape.begin(), shape.end() - 3);
    out.push_back(shape[n - 2]);
    return out;
  }

  bool set_fp8_block(WeightLayout& layout, const TensorShape& scale,
                     const std::optional<QuantDeclaration::Rule>& rule) {
    const std::size_t n = scale.size();
    if (n < 2 ||
        shape_numel(scale) != layout.rows / layout.matrix_rows * scale[n - 2] * scale[n - 1]) {
      return false;
    }
    const auto fits = [&](std::int64_t rows, std::int64_t cols) {
      return rows > 0 && cols > 0 && ceil_div(layout.matrix_rows, rows) == scale[n - 2] &&
             ceil_div(layout.cols, cols) == scale[n - 1];
    };
    // Several sizes can explain a small shape; the declared one, then the usual one, is tried
    // first.
    std::vector<std::pair<std::int64_t, std::int64_t>> sizes;
    if (rule) sizes.emplace_back(rule->block_rows, rule->block_cols);
    for (const std::int64_t side : {128, 64, 32, 256, 16, 512}) sizes.emplace_back(side, side);
    for (const auto& [rows, cols] : sizes) {
      if (!fits(rows, cols)) continue;
      layout.format = WeightFormat::kFp8Block;
      layout.block_rows = rows;
      layout.block_cols = cols;
      return true;
    }
    return false;
  }

  bool reject_scale(const WeightLayout& layout, const TensorEntry& scale,
                    const std::string& expected) {
    fault(layout.scale, fmt::format("{} {} does not fit the weight \"{}\" [{}, {}]; expected {}",
                                    dtype_name(scale.dtype), shape_text(scale.shape), layout.weight,
                                    layout.rows, layout.cols, expected));
    return false;
  }

  void classify_rest(const std::string& name, const TensorEntry& entry) {
    if (is_kv_scale_name(name)) return out_.kv_scales.push_back(name);
    if (is_weight_scale_name(name) || (is_quantized_dtype(entry.dtype) && is_scale_name(name))) {
      return report_orphan(name);
    }
    WeightLayout layout;
    switch (entry.dtype) {
      case DType::kBF16:
        layout.format = WeightFormat::kBf16;
        break;
      case DType::kF16:
        layout.format = WeightFormat::kF16;
        break;
      case DType::kF32:
        layout.format = WeightFormat::kF32;
        break;
      default:
        return out_.others.push_back(name);
    }
    layout.module = without_suffix(name, ".weight");
    layout.weight = name;
    layout.rows = entry.shape.empty() ? 1 : entry.shape.front();
    layout.cols = layout.rows == 0 ? 0 : shape_numel(entry.shape) / layout.rows;
    layout.matrix_rows = layout.rows;
    layout.block_cols = layout.cols;
    out_.weights.push_back(std::move(layout));
  }

  void report_orphan(const std::string& name) {
    const std::string module = name.substr(0, name.rfind('.'));
    const TensorEntry* weight = checkpoint_.find(module + ".weight");
    fault(name, weight == nullptr ? std::string("is a scale without a weight")
                                  : fmt::format("is a scale, but \"{}.weight\" is {}", module,
                                                dtype_name(weight->dtype)));
  }

  // Published checkpoints whose declaration is known to be wrong; the tensors are right.
  bool is_known_mismatch(const WeightLayout& layout) const {
    const bool drafter = layout.module.starts_with("mtp.");  // left out of lists, or excluded
    const bool fp4_experts = declared_.method() == "fp8" && layout.format == WeightFormat::kMxfp4 &&
                             layout.module.find(".experts.") != std::string::npos;
    const bool ngram_table = layout.module.find(".ngram_embedding") != std::string::npos;
    return drafter || fp4_experts || ngram_table;
  }

  void compare_with_declaration(const WeightLayout& layout) {
    const auto rule = declared_.rule_for(layout.module);
    if (!rule) {
      if (!is_plain(layout.format) && !declared_.method().empty()) {
        out_.notices.push_back(fmt::format("\"{}\" is stored as {} but not declared", layout.weight,
                                           layout_text(layout)));
      }
      return;
    }
    // Norms and the like fall under the default rule without being linear modules, and exclusion
    // lists are often incomplete: plain weights disagree only with a rule that names them.
    if (is_plain(layout.format) && (!rule->format || !rule->by_name)) return;
    const bool same_block = rule->block_rows == 0 || (rule->block_rows == layout.block_rows &&
                                                      rule->block_cols == layout.block_cols);
    if (rule->format == layout.format && same_block) return;
    WeightLayout as_declared = layout;
    as_declared.format = rule->format.value_or(WeightFormat::kBf16);
    as_declared.block_rows = rule->block_rows;
    as_declared.block_cols = rule->block_cols;
    const std::string text =
        fmt::format("is stored as {} but declared {}", layout_text(layout),
                    rule->format ? layout_text(as_declared) : std::string("not quantized"));
    if (is_known_mismatch(layout)) {
      out_.notices.push_back(fmt::format("\"{}\" {}", layout.weight, text));
    } else {
      fault(layout.weight, text);
    }
  }

  const Checkpoint& checkpoint_;
  const QuantDeclaration& declared_;
  FaultList& faults_;
  CheckpointFormats out_;
  std::unordered_set<std::string> claimed_;
};

}  // namespace

std::string_view format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kBf16:
      return "bf16";
    case WeightFormat::kF32:
      return "f32";
    case WeightFormat::kF16:
      return "f16";
    case WeightFormat::kFp8Block:
      return "fp8 block";
    case WeightFormat::kFp8Tensor:
      return "fp8 tensor";
    case WeightFormat::kFp8Channel:
      return "fp8 channel";
    case WeightFormat::kNvfp4:
      return "nvfp4";
    case WeightFormat::kMxfp4:
      return "mxfp4";
    case WeightFormat::kInt8Channel:
      return "int8 channel";
    case WeightFormat::kInt8Group:
      return "int8 group";
  }
  return "?";
}

std::string request_name(const WeightLayout& layout) {
  return without_suffix(without_suffix(layout.weight, "_packed"), "_blocks");
}

CheckpointFormats classify_weights(const Checkpoint& checkpoint, const QuantDeclaration& declared,
                                   FaultList& faults) {
  return Classifier(checkpoint, declared, faults).run();
}

CheckpointFormats read_weight_formats(const Checkpoint& checkpoint) {
  FaultList faults;
  const auto declared = QuantDeclaration::read(checkpoint.directory(), faults);
  auto formats = classify_weights(checkpoint, declared, faults);
  faults.throw_if_any(checkpoint.directory().string());
  return formats;
}

}  // namespace tandem
