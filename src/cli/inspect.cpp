// tandem inspect: what a checkpoint holds, how it is quantized, how it would be split, and whether
// it is complete. Reads headers only, apart from the hashes of --verify with a manifest. Tables go
// to stdout, faults to stderr.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/model_config.h"
#include "checkpoint/quant_format.h"
#include "checkpoint/shard_plan.h"
#include "checkpoint/verify.h"
#include "cli/commands.h"

namespace tandem {
namespace {

struct Inspection {
  Checkpoint checkpoint;
  ModelIdentity identity;
  std::optional<ModelConfig> config;  // only of families this build runs
  CheckpointFormats formats;
  std::string text_prefix;  // "model.", "model.language_model."; empty if unknown
};

// Tensors that differ only in layer, expert or shard numbers.
struct TensorGroup {
  std::string name;  // numbers replaced by '*'
  std::string dtype;
  std::string format;
  TensorShape shape;
  std::int64_t num_tensors = 0;
  std::int64_t num_parameters = 0;  // 0 for tensors that are no weights
  std::int64_t bytes = 0;           // scales included
  std::string example;
  const WeightLayout* layout = nullptr;  // of the example
};

std::string with_stars(const std::string& name) {
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    const bool starts_number = std::isdigit(static_cast<unsigned char>(name[i])) != 0 &&
                               (i == 0 || name[i - 1] == '.' || name[i - 1] == '_');
    std::size_t end = i;
    while (starts_number && end < name.size() &&
           std::isdigit(static_cast<unsigned char>(name[end])) != 0) {
      ++end;
    }
    // "k_proj.2x" is no number; "in_proj_2" would be one, and grouping it does no harm.
    if (end > i && (end == name.size() || name[end] == '.')) {
      out += '*';
      i = end;
    } else {
      out += name[i++];
    }
  }
  return out;
}

std::string count_text(std::int64_t n) {
  if (n >= 1'000'000'000) return fmt::format("{:.2f} B", static_cast<double>(n) / 1e9);
  if (n >= 1'000'000) return fmt::format("{:.2f} M", static_cast<double>(n) / 1e6);
  return fmt::format("{}", n);
}

std::string format_text(const WeightLayout& layout) {
  switch (layout.format) {
    case WeightFormat::kFp8Block:
      return fmt::format("fp8 block {}x{}", layout.block_rows, layout.block_cols);
    case WeightFormat::kNvfp4:
    case WeightFormat::kMxfp4:
    case WeightFormat::kInt8Group:
      return fmt::format("{} /{}", format_name(layout.format), layout.block_cols);
    default:
      return std::string(format_name(layout.format));
  }
}

std::int64_t bytes_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorEntry* entry = name.empty() ? nullptr : checkpoint.find(name);
  return entry == nullptr ? 0 : static_cast<std::int64_t>(entry->bytes);
}

std::vector<TensorGroup> group_tensors(const Inspection& in) {
  using Key = std::tuple<std::string, std::string, TensorShape>;
  std::map<Key, TensorGroup> groups;
  const auto add = [&](const std::string& name, const std::string& format, std::int64_t parameters,
                       std::int64_t bytes, const WeightLayout* layout) {
    const TensorEntry& entry = *in.checkpoint.find(name);
    TensorShape shape = entry.shape;
    if (layout != nullptr && !is_plain(layout->format)) shape.back() = layout->cols;
    TensorGroup& group = groups[Key(with_stars(name), format, shape)];
    if (group.num_tensors == 0) {
      group.name = with_stars(name);
      group.dtype = dtype_name(entry.dtype);
      group.format = format;
      group.shape = shape;
      group.example = name;
      group.layout = layout;
    }
    ++group.num_tensors;
    group.num_parameters += parameters;
    group.bytes += bytes;
  };
  for (const auto& w : in.formats.weights) {
    const std::int64_t bytes =
        bytes_of(in.checkpoint, w.weight) + bytes_of(in.checkpoint, w.scale) +
        bytes_of(in.checkpoint, w.global_scale) + bytes_of(in.checkpoint, w.input_scale);
    add(w.weight, format_text(w), w.numel(), bytes, &w);
  }
  for (const auto& name : in.formats.kv_scales) {
    add(name, "kv scale", 0, bytes_of(in.checkpoint, name), nullptr);
  }
  for (const auto& name : in.formats.others) {
    add(name, "table", 0, bytes_of(in.checkpoint, name), nullptr);
  }
  std::vector<TensorGroup> sorted;
  for (auto& [key, group] : groups) sorted.push_back(std::move(group));
  return sorted;
}

bool is_vision(const std::string& name) { return name.starts_with("model.visual."); }

// The identity reads pages all over the weight files, which must be complete for that.
void print_head(const Inspection& in, bool complete) {
  const ModelIdentity& id = in.identity;
  fmt::print("checkpoint    {}\n", in.checkpoint.directory().string());
  fmt::print("family        {} ({})\n", family_name(id.family),
             id.architecture.empty() ? id.model_type : id.architecture);
  if (id.family != ModelFamily::kQwen3_8) {
    fmt::print("              not supported yet by this build\n");
  }
  fmt::print("layers        {}", id.num_hidden_layers);
  if (in.config) {
    fmt::print(" ({} linear attention, {} full attention), {} MTP",
               in.config->num_layers_of(LayerType::kLinearAttention),
               in.config->num_layers_of(LayerType::kFullAttention),
               in.config->mtp_num_hidden_layers);
  }
  std::int64_t text = 0;
  std::int64_t mtp = 0;
  std::int64_t vision = 0;
  for (const auto& w : in.formats.weights) {
    (w.weight.starts_with("mtp.") ? mtp : is_vision(w.weight) ? vision : text) += w.numel();
  }
  fmt::print("\nparameters    {} (text {}, MTP {}, vision {})\n", count_text(text + mtp + vision),
             count_text(text), count_text(mtp), count_text(vision));
  fmt::print("files         {} with {} tensors, {}\n", in.checkpoint.files().size(),
             in.checkpoint.tensors().size(),
             format_bytes(static_cast<std::int64_t>(in.checkpoint.weight_bytes())));
  fmt::print("quantization  {}\n",
             in.formats.declared_method.empty() ? "none declared" : in.formats.declared_method);
  if (complete) fmt::print("identity      {:016x}\n", in.checkpoint.identity_hash());
}

std::string split_text(const Inspection& in, const TensorGroup& group, int np) {
  if (is_vision(group.example)) return "skipped";
  if (group.layout == nullptr) return "";
  std::string name = group.example;
  if (name.starts_with(in.text_prefix)) name = name.substr(in.text_prefix.size());
  for (const char* suffix : {"_packed", "_blocks"}) {
    if (name.ends_with(suffix)) name = name.substr(0, name.rfind('_'));
  }
  const auto split = qwen3_8_split(*in.config, name, group.shape, 0, np);
  if (split.kind == SplitKind::kReplicated) return "replicated";
  TensorShape kept = group.shape;
  if (split.cols) {
    kept = {split.num_rows, split.num_cols};
  } else {
    kept.front() = split.num_rows;
  }
  return fmt::format("{} -> {}", split_name(split.kind), shape_text(kept));
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
}

void print_groups(const Inspection& in, const std::vector<TensorGroup>& groups, bool with_split,
                  int np) {
  std::vector<std::vector<std::string>> rows;
  rows.push_back({"tensors", "count", "dtype", "format", "shape", "parameters", "size"});
  if (with_split) rows.back().push_back(fmt::format("rank 0 of {} keeps", np));
  for (const auto& g : groups) {
    rows.push_back({g.name, std::to_string(g.num_tensors), g.dtype, g.format, shape_text(g.shape),
                    g.num_parameters == 0 ? "" : count_text(g.num_parameters),
                    format_bytes(g.bytes)});
    if (with_split) rows.back().push_back(split_text(in, g, np));
  }
  fmt::print("\n");
  print_table(rows);
}

// Each rank has to hold whole bytes of packed codes.
void check_packed_splits(const Inspection& in, const std::vector<TensorGroup>& groups, int np,
                         FaultList& faults) {
  for (const auto& g : groups) {
    if (g.layout == nullptr || is_plain(g.layout->format) || is_vision(g.example)) continue;
    const auto split = qwen3_8_split(*in.config, g.layout->module + ".weight", g.shape, 0, np);
    if (split.kind == SplitKind::kReplicated) continue;
    const SplitAxis axis = split.cols ? SplitAxis::kColumns : SplitAxis::kRows;
    if (auto fault = packed_split_fault(*g.layout, axis, np)) faults.add_text(std::move(*fault));
  }
}

Inspection gather(const std::filesystem::path& directory, FaultList& faults) {
  Inspection in;
  in.checkpoint = Checkpoint::scan(directory, TokenizerFile::kRequired, faults);
  const auto declared = QuantDeclaration::read(directory, faults);
  in.formats = classify_weights(in.checkpoint, declared, faults);
  try {
    in.identity = read_model_identity(directory);
    if (in.identity.family != ModelFamily::kQwen3_8) return in;
    const std::size_t faults_before = faults.size();
    ModelConfig config = scan_model_config(directory, faults);
    in.text_prefix = text_tensor_prefix(in.checkpoint);
    if (faults.size() == faults_before) in.config = std::move(config);
  } catch (const Error& error) {
    // A missing config.json or an empty checkpoint has been reported already.
    if (faults.empty()) faults.add_text(error.what());
  }
  return in;
}

}  // namespace

int inspect_command(const InspectOptions& options) {
  const std::filesystem::path directory = options.checkpoint;
  if (!std::filesystem::is_directory(directory)) {
    throw Error(ExitCode::kConfiguration, {.what = "is not a directory",
                                           .where = directory.string(),
                                           .expected = "the folder of a checkpoint",
                                           .remedy = {}});
  }
  FaultList faults;
  const Inspection in = gather(directory, faults);
  const bool complete = faults.empty();
  const auto groups = group_tensors(in);

  bool with_split = false;
  if (options.np > 1 && in.config) {
    const auto split_faults = qwen3_8_split_faults(*in.config, options.np);
    for (const auto& fault : split_faults) faults.add_text(fault);
    with_split = split_faults.empty();
    if (with_split) check_packed_splits(in, groups, options.np, faults);
  }
  print_head(in, complete);
  print_groups(in, groups, with_split, options.np);
  for (const auto& notice : in.formats.notices) fmt::print("note: {}\n", notice);

  const bool verify = options.verify || options.manifest.has_value();
  if (verify) {
    std::optional<std::filesystem::path> manifest;
    if (options.manifest) manifest = *options.manifest;
    verify_checkpoint(in.checkpoint, manifest, faults);
  } else {
    for (const auto& name : in.checkpoint.leftover_tensors()) {
      fmt::print("note: tensor {} is not in the index\n", name);
    }
    for (const auto& name : in.checkpoint.leftover_files()) {
      fmt::print("note: {} is not in the index\n", name);
    }
  }
  if (!faults.empty()) {
    std::fflush(stdout);
    fmt::print(stderr, "\n{} fault{} in {}:\n", faults.size(), faults.size() == 1 ? "" : "s",
               directory.string());
    for (const auto& fault : faults.items()) fmt::print(stderr, "  - {}\n", fault);
    return static_cast<int>(ExitCode::kConfiguration);
  }
  fmt::print("\n{}\n", verify ? "verified: complete, nothing left over" : "complete");
  return static_cast<int>(ExitCode::kDone);
}

}  // namespace tandem
