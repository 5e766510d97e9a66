#include "checkpoint/quant_declaration.h"

// GCC 12 sees an uninitialized std::function inside its own std::regex when sanitizers are on.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <regex>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "checkpoint/glob.h"
#include "checkpoint/json_text.h"

namespace tandem {

using nlohmann::json;
using Rule = QuantDeclaration::Rule;

struct QuantDeclaration::Impl {
  std::string method;
  std::string kv_cache;
  std::optional<Rule> default_rule;  // of every linear module
  std::unordered_map<std::string, Rule> by_name;
  std::vector<std::pair<std::regex, Rule>> by_pattern;
  std::unordered_set<std::string> excluded_names;
  std::vector<std::string> excluded_globs;
  std::vector<std::regex> excluded_patterns;
};

namespace {

struct Algorithm {
  std::string_view name;
  WeightFormat format;
  std::int64_t block_rows;
  std::int64_t block_cols;
};

// ModelOpt's names. W4A8 and W8A8 speak of activations as well; weights are what we read.
constexpr std::array kAlgorithms{
    Algorithm{"FP8", WeightFormat::kFp8Tensor, 0, 0},
    Algorithm{"FP8_PER_CHANNEL_PER_TOKEN", WeightFormat::kFp8Channel, 0, 0},
    Algorithm{"FP8_PB_WO", WeightFormat::kFp8Block, 128, 128},
    Algorithm{"FP8_BLOCK_SCALES", WeightFormat::kFp8Block, 128, 128},
    Algorithm{"FP8_PB", WeightFormat::kFp8Block, 128, 128},
    Algorithm{"NVFP4", WeightFormat::kNvfp4, 1, 16},
    Algorithm{"W4A16_NVFP4", WeightFormat::kNvfp4, 1, 16},
    Algorithm{"W4A8_NVFP4_FP8", WeightFormat::kNvfp4, 1, 16},
    Algorithm{"W4A8_MXFP4_FP8", WeightFormat::kMxfp4, 1, 32},
    Algorithm{"W8A16", WeightFormat::kInt8Channel, 0, 0},
};

std::string text_at(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

std::int64_t integer_at(const json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_unsigned() && it->get<std::uint64_t>() <= 65536
             ? it->get<std::int64_t>()
             : 0;
}

std::pair<std::int64_t, std::int64_t> block_at(const json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_array() || it->size() != 2) return {0, 0};
  const json sizes = {{"rows", (*it)[0]}, {"cols", (*it)[1]}};
  return {integer_at(sizes, "rows"), integer_at(sizes, "cols")};
}

class Reader {
 public:
  Reader(QuantDeclaration::Impl& out, std::string file, FaultList& faults)
      : out_(out), file_(std::move(file)), faults_(faults) {}

  void read(const json& declaration) {
    out_.method = text_at(declaration, "quant_method");
    read_kv_cache(declaration);
    if (out_.method == "fp8") {
      read_fp8(declaration);
    } else if (out_.method.starts_with("modelopt")) {
      read_modelopt(declaration);
    } else if (out_.method == "compressed-tensors") {
      read_compressed_tensors(declaration);
    } else if (out_.method == "mxfp4") {
      out_.default_rule = Rule{.format = WeightFormat::kMxfp4, .block_rows = 1, .block_cols = 32};
      read_exclusions(declaration, "modules_to_not_convert");
    } else {
      fault(
          fmt::format("quant_method \"{}\" is not supported; use a checkpoint in BF16, FP8, NVFP4, "
                      "MXFP4 or INT8 (fp8, modelopt, compressed-tensors, mxfp4)",
                      out_.method));
    }
  }

  // hf_quant_config.json: the same facts under other keys.
  void read_hf_quant_config(const json& root) {
    const auto it = root.find("quantization");
    if (it == root.end() || !it->is_object()) return fault("has no quantization object");
    out_.method = "modelopt";
    read_kv_cache(*it);
    read_modelopt(*it);
  }

 private:
  void fault(const std::string& text) { faults_.add("{}: {}", file_, text); }

  // ModelOpt names an algorithm; compressed-tensors and later exports describe the numbers.
  void read_kv_cache(const json& d) {
    out_.kv_cache = text_at(d, "kv_cache_quant_algo");
    const auto scheme = d.find("kv_cache_scheme");
    if (!out_.kv_cache.empty() || scheme == d.end() || !scheme->is_object()) return;
    const std::string type = text_at(*scheme, "type");
    const auto bits = integer_at(*scheme, "num_bits");
    out_.kv_cache = type == "float" && bits == 8 ? "FP8" : fmt::format("{} of {} bits", type, bits);
  }

  void read_fp8(const json& d) {
    const std::string fmt_name = text_at(d, "fmt");
    if (!fmt_name.empty() && fmt_name != "e4m3") {
      fault(fmt::format("quantization fmt \"{}\" is not supported; expected e4m3", fmt_name));
    }
    const auto [rows, cols] = block_at(d, "weight_block_size");
    out_.default_rule =
        rows > 0 && cols > 0
            ? Rule{.format = WeightFormat::kFp8Block, .block_rows = rows, .block_cols = cols}
            : Rule{.format = WeightFormat::kFp8Tensor};
    read_exclusions(d, "modules_to_not_convert");
  }

  void read_modelopt(const json& d) {
    const std::string algorithm = text_at(d, "quant_algo");
    const auto layers = d.find("quantized_layers");
    const bool has_layers = layers != d.end() && layers->is_object();
    if (algorithm == "MIXED_PRECISION") {
      if (!has_layers) fault("quant_algo MIXED_PRECISION without quantized_layers");
    } else {
      out_.default_rule = rule_of_algorithm(algorithm, d);
    }
    if (has_layers) {
      for (const auto& [module, facts] : layers->items()) {
        if (!facts.is_object()) continue;
        if (auto rule = rule_of_algorithm(text_at(facts, "quant_algo"), facts)) {
          rule->by_name = true;
          out_.by_name[module] = *rule;
        }
      }
    }
    read_exclusions(d, "ignore");
    read_exclusions(d, "exclude_modules");
  }

  std::optional<Rule> rule_of_algorithm(const std::string& name, const json& facts) {
    for (const auto& algorithm : kAlgorithms) {
      if (algorithm.name != name) continue;
      Rule rule{.format = algorithm.format,
                .block_rows = algorithm.block_rows,
                .block_cols = algorithm.block_cols};
      const auto [rows, cols] = block_at(facts, "block_size");
      if (rows > 0 && cols > 0) {
        rule.block_rows = rows;
        rule.block_cols = cols;
      } else if (rule.block_rows == 1 && integer_at(facts, "group_size") > 0) {
        rule.block_cols = integer_at(facts, "group_size");
      }
      return rule;
    }
    // Once for each name: an export repeats it for thousands of layers.
    if (reported_.insert(name).second) {
      fault(
          fmt::format("quant_algo \"{}\" is not supported (AWQ and SVD variants need activation "
                      "scaling that is not implemented)",
                      name));
    }
    return std::nullopt;
  }

  void read_compressed_tensors(const json& d) {
    const auto groups = d.find("config_groups");
    if (groups != d.end() && groups->is_object()) {
      for (const auto& [name, group] : groups->items()) read_group(name, group);
    } else if (text_at(d, "format") != "dense") {
      fault("compressed-tensors without config_groups");
    }
    read_exclusions(d, "ignore");
  }

  void read_group(const std::string& name, const json& group) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) return;
    const auto rule = rule_of_weights(name, group["weights"]);
    const auto targets = group.find("targets");
    if (!rule || targets == group.end() || !targets->is_array()) return;
    for (const auto& target : *targets) {
      if (!target.is_string()) continue;
      const auto text = target.get<std::string>();
      if (text.starts_with("re:")) {
        if (auto pattern = compile(text)) out_.by_pattern.emplace_back(std::move(*pattern), *rule);
      } else if (text.find('.') == std::string::npos && !text.empty() && text[0] >= 'A' &&
                 text[0] <= 'Z') {
        out_.default_rule = *rule;  // a class name such as Linear
      } else {
        Rule named = *rule;
        named.by_name = true;
        out_.by_name[text] = named;
      }
    }
  }

  std::optional<Rule> rule_of_weights(const std::string& group, const json& w) {
    const auto bits = integer_at(w, "num_bits");
    const std::string type = text_at(w, "type");
    const std::string strategy = text_at(w, "strategy");
    const auto size = integer_at(w, "group_size");
    if (w.value("symmetric", json(true)) != json(false)) {
      if (type == "float" && bits == 8) {
        if (strategy == "tensor") return Rule{.format = WeightFormat::kFp8Tensor};
        if (strategy == "channel") return Rule{.format = WeightFormat::kFp8Channel};
        if (strategy == "block") {
          const auto [rows, cols] = block_at(w, "block_structure");
          return Rule{.format = WeightFormat::kFp8Block, .block_rows = rows, .block_cols = cols};
        }
      }
      if (type == "float" && bits == 4 && strategy == "tensor_group" && size == 16) {
        return Rule{.format = WeightFormat::kNvfp4, .block_rows = 1, .block_cols = 16};
      }
      if (type == "float" && bits == 4 && strategy == "group" && size == 32) {
        return Rule{.format = WeightFormat::kMxfp4, .block_rows = 1, .block_cols = 32};
      }
      if (type == "int" && bits == 8 && strategy == "channel") {
        return Rule{.format = WeightFormat::kInt8Channel};
      }
      if (type == "int" && bits == 8 && strategy == "group" && size > 0) {
        return Rule{.format = WeightFormat::kInt8Group, .block_rows = 1, .block_cols = size};
      }
    }
    fault(fmt::format(
        "{}: weights of {} bits, type \"{}\", strategy \"{}\", group {} are not supported", group,
        bits, type, strategy, size));
    return std::nullopt;
  }

  std::optional<std::regex> compile(const std::string& text) {
    try {
      return std::regex(text.substr(3), std::regex::optimize);
    } catch (const std::regex_error& error) {
      fault(fmt::format("\"{}\" is no usable regular expression: {}", text, error.what()));
      return std::nullopt;
    }
  }

  void read_exclusions(const json& d, const char* key) {
    const auto it = d.find(key);
    if (it == d.end() || !it->is_array()) return;
    for (const auto& entry : *it) {
      if (!entry.is_string()) continue;
      const auto text = entry.get<std::string>();
      if (text.starts_with("re:")) {
        if (auto pattern = compile(text)) out_.excluded_patterns.push_back(std::move(*pattern));
      } else if (text.find('*') != std::string::npos) {
        out_.excluded_globs.push_back(text);
      } else {
        out_.excluded_names.insert(text);
      }
    }
  }

  QuantDeclaration::Impl& out_;
  std::string file_;
  FaultList& faults_;
  std::unordered_set<std::string> reported_;
};

// As Python's re.match: anchored at the start only. libstdc++ recurses once a character, so a name
// from a damaged header must not be arbitrarily long.
bool matches(const std::regex& pattern, const std::string& module) {
  constexpr std::size_t kMaxNameBytes = 2048;
  return module.size() <= kMaxNameBytes &&
         std::regex_search(module, pattern, std::regex_constants::match_continuous);
}

json parse_object(const std::filesystem::path& path, FaultList& faults) {
  const std::string text = read_json_text(path, faults);
  json root = text.empty() ? json::object() : json::parse(text);
  return root.is_object() ? root : json::object();
}

// The module and all its ancestors: "a.b.c", "a.b", "a".
template <typename Visit>
bool any_ancestor(const std::string& module, Visit visit) {
  for (std::size_t end = module.size(); end != std::string::npos && end > 0;) {
    if (visit(module.substr(0, end))) return true;
    end = module.rfind('.', end - 1);
  }
  return false;
}

bool has_component(const std::string& module, const std::unordered_set<std::string>& names) {
  std::size_t begin = 0;
  while (begin <= module.size()) {
    const std::size_t end = std::min(module.find('.', begin), module.size());
    if (names.contains(module.substr(begin, end - begin))) return true;
    begin = end + 1;
  }
  return false;
}

}  // namespace

QuantDeclaration::QuantDeclaration() : impl_(std::make_unique<Impl>()) {}
QuantDeclaration::~QuantDeclaration() = default;
QuantDeclaration::QuantDeclaration(QuantDeclaration&&) noexcept = default;
QuantDeclaration& QuantDeclaration::operator=(QuantDeclaration&&) noexcept = default;

QuantDeclaration QuantDeclaration::read(const std::filesystem::path& directory, FaultList& faults) {
  QuantDeclaration declaration;
  const json root = parse_object(directory / "config.json", faults);
  for (const json* object : {&root, root.contains("text_config") ? &root["text_config"] : &root}) {
    if (!object->is_object()) continue;
    const auto it = object->find("quantization_config");
    if (it == object->end() || !it->is_object()) continue;
    Reader(*declaration.impl_, "config.json: quantization_config", faults).read(*it);
    return declaration;
  }
  const auto path = directory / "hf_quant_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    Reader(*declaration.impl_, "hf_quant_config.json", faults)
        .read_hf_quant_config(parse_object(path, faults));
  }
  return declaration;
}

const std::string& QuantDeclaration::method() const { return impl_->method; }
const std::string& QuantDeclaration::kv_cache() const { return impl_->kv_cache; }

std::optional<Rule> QuantDeclaration::rule_for(const std::string& module) const {
  const Impl& d = *impl_;
  if (d.method.empty()) return std::nullopt;
  std::optional<Rule> found;
  // A name may stand for a group: "...mlp.experts" for all of its experts.
  any_ancestor(module, [&](const std::string& name) {
    const auto it = d.by_name.find(name);
    if (it == d.by_name.end()) return false;
    found = it->second;
    found->by_name = name == module;
    return true;
  });
  if (found) return found;
  if (d.excluded_names.contains(module)) return Rule{.format = {}, .by_name = true};
  const bool excluded =
      any_ancestor(module, [&](const std::string& n) { return d.excluded_names.contains(n); }) ||
      has_component(module, d.excluded_names) ||
      std::any_of(d.excluded_globs.begin(), d.excluded_globs.end(),
                  [&](const std::string& glob) { return glob_match(glob, module); }) ||
      std::any_of(d.excluded_patterns.begin(), d.excluded_patterns.end(),
                  [&](const std::regex& pattern) { return matches(pattern, module); });
  if (excluded) return Rule{};
  for (const auto& [pattern, rule] : d.by_pattern) {
    if (matches(pattern, module)) return rule;
  }
  return d.default_rule;
}

}  // namespace tandem
