#include "checkpoint/kv_scales.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/error.h"
#include "checkpoint/dequantize.h"
#include "checkpoint/fault_list.h"
#include "checkpoint/quant_declaration.h"

namespace tandem {
namespace {

constexpr const char* kKey = "memory.kv_dtype";
constexpr const char* kWithoutScales = "set memory.kv_dtype: fp8_dynamic, which needs no scales";

struct NamePair {
  std::string_view k, v;
};
constexpr std::array kNames{
    NamePair{"k_proj.k_scale", "v_proj.v_scale"}, NamePair{"k_scale", "v_scale"},
    NamePair{"attn.k_scale", "attn.v_scale"}, NamePair{"kv_scale", "kv_scale"}};

class Reader {
 public:
  Reader(const Checkpoint& checkpoint, std::int64_t num_kv_heads)
      : checkpoint_(checkpoint), num_kv_heads_(num_kv_heads) {}

  // Empty vectors where the layer has none.
  KvScales layer(const std::string& prefix) {
    for (const auto& [k, v] : kNames) {
      const std::string k_name = prefix + std::string(k), v_name = prefix + std::string(v);
      const bool has_k = checkpoint_.find(k_name) != nullptr;
      const bool has_v = checkpoint_.find(v_name) != nullptr;
      if (!has_k && !has_v) continue;
      if (has_k && has_v) return {.k = values(k_name), .v = values(v_name)};
      faults_.add("\"{}\" is there, \"{}\" is not", has_k ? k_name : v_name,
                  has_k ? v_name : k_name);
      return {};
    }
    missing_.push_back(prefix + std::string(kNames.front().k));
    return {};
  }

  const FaultList& faults() const { return faults_; }
  // Of layers without scales, the first name that was looked for.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  std::vector<float> values(const std::string& name) {
    const TensorEntry& entry = *checkpoint_.find(name);
    const bool is_float =
        entry.dtype == DType::kF32 || entry.dtype == DType::kBF16 || entry.dtype == DType::kF16;
    const std::int64_t count = shape_numel(entry.shape);
    if (!is_float || (count != 1 && count != num_kv_heads_)) {
      faults_.add("\"{}\" is {} {}; expected F32, BF16 or F16 of 1 element or of {} KV heads", name,
                  dtype_name(entry.dtype), shape_text(entry.shape), num_kv_heads_);
      return {};
    }
    std::vector<float> scales = read_scale_tensor(checkpoint_, name);
    for (const float scale : scales) {
      if (std::isfinite(scale) && scale > 0) continue;
      faults_.add("\"{}\" holds {}; a scale is finite and positive", name, scale);
      return {};
    }
    if (count == 1) scales.resize(static_cast<std::size_t>(num_kv_heads_), scales.front());
    return scales;
  }

  const Checkpoint& checkpoint_;
  std::int64_t num_kv_heads_;
  FaultList faults_;
  std::vector<std::string> missing_;
};

[[noreturn]] void refuse_missing(const Checkpoint& checkpoint,
                                 const std::vector<std::string>& missing, std::size_t num_layers) {
  FaultList list;
  for (const auto& name : missing) list.add("there is no \"{}\"", name);
  const bool none = missing.size() == num_layers;
  throw Error(
      ExitCode::kConfiguration,
      {.what = fmt::format("fp8_static takes the scales of the KV cache from the checkpoint, and "
                           "{} of {} attention "
                           "layers have none: {}",
                           missing.size(), num_layers, list.text()),
       .where = checkpoint.directory().string(),
       .expected = "k_scale and v_scale in every layer's self_attn",
       .remedy = fmt::format("{}{}", kWithoutScales,
                             none ? ", or memory.kv_unit_scale: true to run with 1.0" : "")});
}

[[noreturn]] void refuse_unit(const Checkpoint& checkpoint) {
  throw Error(
      ExitCode::kConfiguration,
      {.what = "fp8_static: all KV scales of the checkpoint are 1.0, so nobody has "
               "calibrated them; text tends to fall into loops after some hundred tokens",
       .where = checkpoint.directory().string(),
       .expected = "a scale that differs from 1.0 in some layer",
       .remedy = fmt::format("{}, or memory.kv_unit_scale: true to accept them", kWithoutScales)});
}

}  // namespace

std::vector<KvScales> read_kv_scales(const Checkpoint& checkpoint,
                                     const std::vector<std::string>& prefixes,
                                     std::int64_t num_kv_heads, UnitScales unit_scales) {
  FaultList declaration_faults;
  const auto declared = QuantDeclaration::read(checkpoint.directory(), declaration_faults);
  if (!declared.kv_cache().empty() && declared.kv_cache() != "FP8") {
    throw Error(
        ExitCode::kConfiguration,
        {.what = fmt::format("the checkpoint's KV scales are declared for {}", declared.kv_cache()),
         .where = fmt::format("{}: fp8_static", kKey),
         .expected = "scales for FP8",
         .remedy = kWithoutScales});
  }
  Reader reader(checkpoint, num_kv_heads);
  std::vector<KvScales> layers;
  for (const auto& prefix : prefixes) layers.push_back(reader.layer(prefix));
  reader.faults().throw_if_any(checkpoint.directory().string(), kWithoutScales);

  const bool none = reader.missing().size() == prefixes.size();
  if (none && unit_scales == UnitScales::kAccept) {
    const std::vector<float> ones(static_cast<std::size_t>(num_kv_heads), 1.0f);
    std::fill(layers.begin(), layers.end(), KvScales{.k = ones, .v = ones});
  } else if (!reader.missing().empty()) {
    refuse_missing(checkpoint, reader.missing(), prefixes.size());
  }
  if (!calibrated(layers) && unit_scales == UnitScales::kRefuse) refuse_unit(checkpoint);
  return layers;
}

bool calibrated(const std::vector<KvScales>& layers) {
  const auto differs = [](float scale) { return scale != 1.0f; };
  return std::any_of(layers.begin(), layers.end(), [&](const KvScales& layer) {
    return std::any_of(layer.k.begin(), layer.k.end(), differs) ||
           std::any_of(layer.v.begin(), layer.v.end(), differs);
  });
}

}  // namespace tandem
