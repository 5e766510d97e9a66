#include "config/job_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "base/hash.h"
#include "config/job_keys.h"
#include "config/yaml_reader.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// A larger file is a mistake, a checkpoint shard perhaps, and is not read into memory.
constexpr std::uintmax_t kMaxJobFileBytes = 1 << 20;

std::string read_job_file(const fs::path& path) {
  const auto refuse = [&](const std::string& what) {
    throw Error(ExitCode::kConfiguration, {what, path.string(), "a job file (YAML)", ""});
  };
  std::error_code error;
  const auto status = fs::status(path, error);
  if (!fs::exists(status)) refuse("no such file");
  if (fs::is_directory(status)) refuse("is a directory");
  if (!fs::is_regular_file(status)) refuse("is not a regular file");
  if (const auto size = fs::file_size(path, error); error || size > kMaxJobFileBytes) {
    refuse(error ? "cannot be read: " + error.message()
                 : fmt::format("has {} bytes, too many for a job file", size));
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) refuse("cannot be read");
  return text.str();
}

std::string absolute_path(const fs::path& directory, const std::string& value) {
  return fs::absolute(directory / value).lexically_normal().string();
}

// One source of keys: a file of the extends chain.
struct Layer {
  std::string name;    // as shown in messages and origins
  fs::path directory;  // relative paths start here
  std::vector<YamlItem> items;
};

// Collects layers, applies them and keeps the problems of all of them, so that one run shows all.
class JobBuilder {
 public:
  // The file's own problems come before those of its bases.
  void add_file_layers(const std::string& text, const std::string& name, const fs::path& directory,
                       std::vector<fs::path> chain) {
    auto document = read_yaml(text, name);
    problems_.insert(problems_.end(), document.problems.begin(), document.problems.end());
    const auto extends = std::find_if(document.items.begin(), document.items.end(),
                                      [](const YamlItem& item) { return item.key == "extends"; });
    if (extends != document.items.end()) {
      add_base(*extends, name, directory, std::move(chain));
      document.items.erase(extends);
    }
    layers_.push_back({name, directory, std::move(document.items)});
  }

  void apply_layers() {
    for (const Layer& layer : layers_) {
      for (const YamlItem& item : layer.items) apply_top_level(layer, item);
    }
  }

  void apply_override(const std::string& text) {
    const auto equals = text.find('=');
    const auto name = text.substr(0, equals);
    const auto where = "--set " + text;
    const JobKey* key = find_job_key(name);
    if (equals == std::string::npos) {
      problems_.push_back({"no '='", where, "section.key=value", ""});
    } else if (name == "extends") {
      problems_.push_back({"'extends' works only inside a job file", where, "", ""});
    } else if (is_job_section(name)) {
      problems_.push_back({"a section cannot be set as a whole", where, "section.key=value", ""});
    } else if (key == nullptr) {
      unknown_key(name, where);
    } else {
      try {
        apply(*key, override_value(*key, text.substr(equals + 1)), fs::current_path(), where,
              "--set");
      } catch (const Error& e) {
        fail(*key, {e.text().what, where, key->expected, e.text().remedy});
      }
    }
  }

  ResolvedJob finish() {
    if (const JobKey& key = *find_job_key("output.file"); !origins_.contains(key.name)) {
      config_.output.file = absolute_path(fs::current_path(), config_.output.file);
    }
    check_required();
    check_concurrency();
    if (!problems_.empty()) throw_problems();
    ResolvedJob job;
    for (const JobKey& key : job_keys()) {
      job.keys.push_back({key.name, key.get(config_), origin(key.name)});
    }
    job.config = std::move(config_);
    job.resolved_yaml = to_yaml(job.keys);
    return job;
  }

 private:
  void add_base(const YamlItem& extends, const std::string& name, const fs::path& directory,
                std::vector<fs::path> chain) {
    const auto where = fmt::format("{}:{}: extends", name, extends.line);
    if (!extends.value.is_scalar() || extends.value.text.empty()) {
      problems_.push_back({describe(extends.value) + " is not a file name", where,
                           "the path of one job file or preset", ""});
      return;
    }
    const auto base = (directory / extends.value.text).lexically_normal();
    const auto identity = fs::weakly_canonical(base);
    const auto seen = std::find(chain.begin(), chain.end(), identity);
    if (seen != chain.end()) {
      problems_.push_back({fmt::format("'{}' extends itself", extends.value.text), where,
                           "a chain of files without a cycle", ""});
      return;
    }
    chain.push_back(identity);
    try {
      add_file_layers(read_job_file(base), base.string(), base.parent_path(), std::move(chain));
    } catch (const Error& e) {
      problems_.push_back(
          {fmt::format("'{}': {}", base.string(), e.text().what), where, e.text().expected, ""});
    }
  }

  void apply_top_level(const Layer& layer, const YamlItem& item) {
    const auto where = fmt::format("{}:{}: {}", layer.name, item.line, item.key);
    if (!is_job_section(item.key)) {
      apply_item(layer, item, item.key);
    } else if (item.value.kind == RawValue::Kind::kMap) {
      for (const YamlItem& child : item.children) {
        apply_item(layer, child, item.key + "." + child.key);
      }
    } else if (item.value.kind != RawValue::Kind::kNull) {  // a section with all keys commented out
      problems_.push_back({describe(item.value) + " is not a section", where,
                           fmt::format("a map, '{}: {{key: value}}'", item.key), ""});
    }
  }

  void apply_item(const Layer& layer, const YamlItem& item, const std::string& name) {
    const auto place = fmt::format("{}:{}", layer.name, item.line);
    if (const JobKey* key = find_job_key(name); key == nullptr) {
      unknown_key(name, place + ": " + name);
    } else if (item.key.find('.') != std::string::npos) {
      problems_.push_back({"a dotted name is not a key of a job file", place + ": " + name,
                           "the key inside its section, 'section: {key: value}'", ""});
    } else {
      apply(*key, item.value, layer.directory, place + ": " + name, place);
    }
  }

  void apply(const JobKey& key, RawValue value, const fs::path& directory, const std::string& where,
             const std::string& origin_text) {
    if (key.type == KeyType::kPath && value.is_scalar() && !value.text.empty()) {
      value.text = absolute_path(directory, value.text);
    }
    if (auto problem = key.set(config_, value)) {
      fail(key, {problem->what, where, problem->expected, ""});
    } else {
      origins_[key.name] = origin_text;
    }
  }

  void fail(const JobKey& key, ErrorText problem) {
    problems_.push_back(std::move(problem));
    failed_.push_back(key.name);
  }

  void unknown_key(const std::string& name, const std::string& where) {
    std::string remedy = fmt::format("nearest valid key '{}'", nearest_job_key(name));
    if (name.find(':') != std::string::npos) remedy = "YAML needs a blank after ':'";
    problems_.push_back({fmt::format("unknown key '{}'", name), where,
                         "a key of the list in 'tandem run --help'", remedy});
  }

  // Texts are taken as they stand, so that paths and names need no second layer of quoting.
  static RawValue override_value(const JobKey& key, const std::string& text) {
    const bool is_text = key.type == KeyType::kString || key.type == KeyType::kPath;
    const bool is_yaml =
        text == "null" || text == "~" || text.starts_with('"') || text.starts_with('\'');
    if (is_text && !is_yaml) return {RawValue::Kind::kPlain, text, {}};
    return read_yaml_value(text);
  }

  bool has_failed(const std::string& key) const {
    return std::find(failed_.begin(), failed_.end(), key) != failed_.end();
  }

  std::string origin(const std::string& key) const {
    const auto found = origins_.find(key);
    return found == origins_.end() ? "default" : found->second;
  }

  void check_required() {
    // Without a readable file every required key is missing; saying so would bury the cause.
    if (std::all_of(layers_.begin(), layers_.end(),
                    [](const Layer& l) { return l.items.empty(); }) &&
        !problems_.empty()) {
      return;
    }
    for (const JobKey& key : job_keys()) {
      if (key.presence == Presence::kRequired && !origins_.contains(key.name) &&
          !has_failed(key.name)) {
        problems_.push_back(
            {fmt::format("missing key '{}'", key.name), layers_.back().name, key.expected, ""});
      }
    }
  }

  // A level above max_sequences would be measured at max_sequences under a wrong name.
  void check_concurrency() {
    if (config_.run.mode != RunMode::kBench || has_failed("run.concurrency") ||
        has_failed("scheduler.max_sequences")) {
      return;
    }
    const auto& levels = config_.run.concurrency;
    const int highest = *std::max_element(levels.begin(), levels.end());
    if (highest <= config_.scheduler.max_sequences) return;
    const bool is_default = !origins_.contains("run.concurrency");
    const std::string key = is_default ? "scheduler.max_sequences" : "run.concurrency";
    problems_.push_back(
        {fmt::format("run.concurrency asks for {}, scheduler.max_sequences allows {}", highest,
                     config_.scheduler.max_sequences),
         fmt::format("{}: {}", origin(key), key),
         "levels up to scheduler.max_sequences in bench mode", ""});
  }

  [[noreturn]] void throw_problems() const {
    if (problems_.size() == 1) throw Error(ExitCode::kConfiguration, problems_.front());
    std::string what = fmt::format("{} problems in the configuration", problems_.size());
    for (const ErrorText& problem : problems_) what += "\n  " + format_error(problem);
    throw Error(ExitCode::kConfiguration, {what, "", "", ""});
  }

  static std::string to_yaml(const std::vector<KeyOrigin>& keys) {
    std::string out;
    std::string section;
    for (const KeyOrigin& key : keys) {
      const auto dot = key.key.find('.');
      if (dot == std::string::npos) {
        out += fmt::format("{}: {}\n", key.key, key.value);
        continue;
      }
      if (key.key.substr(0, dot) != section) {
        section = key.key.substr(0, dot);
        out += section + ":\n";
      }
      out += fmt::format("  {}: {}\n", key.key.substr(dot + 1), key.value);
    }
    return out;
  }

  JobConfig config_;
  std::vector<Layer> layers_;                   // the deepest base first
  std::map<std::string, std::string> origins_;  // of the keys that something set
  std::vector<std::string> failed_;             // keys with a refused value
  std::vector<ErrorText> problems_;
};

ResolvedJob build(const std::string& text, const std::string& name, const fs::path& directory,
                  std::vector<fs::path> chain, std::span<const std::string> overrides) {
  JobBuilder builder;
  builder.add_file_layers(text, name, directory, std::move(chain));
  builder.apply_layers();
  for (const std::string& override_text : overrides) builder.apply_override(override_text);
  auto job = builder.finish();
  job.job_file_sha256 = sha256_hex(text);
  job.path = name;
  return job;
}

}  // namespace

ResolvedJob load_job(const fs::path& path, std::span<const std::string> overrides) {
  return build(read_job_file(path), path.string(), path.parent_path(), {fs::weakly_canonical(path)},
               overrides);
}

ResolvedJob load_job_text(std::string_view yaml, const std::string& name, const fs::path& directory,
                          std::span<const std::string> overrides) {
  return build(std::string(yaml), name, directory, {}, overrides);
}

std::string expand_output_file(const JobConfig& config, std::string_view time_utc) {
  std::string path = config.output.file;
  for (const auto& [word, value] :
       {std::pair<std::string_view, std::string_view>{"{job}", config.job}, {"{time}", time_utc}}) {
    for (auto at = path.find(word); at != std::string::npos;
         at = path.find(word, at + value.size())) {
      path.replace(at, word.size(), value);
    }
  }
  return path;
}

std::string effective_table(const ResolvedJob& job) {
  std::size_t key_width = 0;
  std::size_t value_width = 0;
  for (const KeyOrigin& key : job.keys) {
    key_width = std::max(key_width, key.key.size());
    // One long path must not push every origin off the screen.
    value_width = std::max(value_width, std::min<std::size_t>(key.value.size(), 40));
  }
  std::string out;
  for (const KeyOrigin& key : job.keys) {
    out +=
        fmt::format("{:<{}}  {:<{}}  {}\n", key.key, key_width, key.value, value_width, key.origin);
  }
  return out;
}

}  // namespace tandem
