#include "output/redact.h"

#include <array>
#include <set>
#include <string>

#include "base/error.h"
#include "output/bench_file.h"
#include "output/bench_schema.h"
#include "output/h5_file.h"
#include "output/result_reader.h"
#include "output/scrub.h"
#include "output/table_io.h"
#include "output/target_file.h"

namespace tandem {
namespace {

constexpr std::size_t kBlockRows = std::size_t{1} << 20;
constexpr std::int64_t kAllowanceBytes = std::int64_t{4} << 20;

// Attributes that are nothing but a name: dropped to their replacement whole, and hidden elsewhere.
constexpr std::array<std::string_view, 2> kHostKeys = {"host", "ranks.hosts"};
constexpr std::string_view kUserKey = "user";
// Lines "rank 0 -> spark1 (pid ...)".
constexpr std::string_view kRankMapKey = "ranks.map";
constexpr std::string_view kOutputArgument = "--output";

bool is_host_key(std::string_view key) {
  for (const auto known : kHostKeys) {
    if (key == known) return true;
  }
  return key.ends_with("HOSTNAME");
}

void learn_rank_map(std::string_view map, Scrubber& scrubber) {
  constexpr std::string_view kArrow = " -> ";
  for (auto at = map.find(kArrow); at != std::string_view::npos; at = map.find(kArrow, at)) {
    at += kArrow.size();
    scrubber.add_host(map.substr(at, map.find_first_of(" \n", at) - at));
  }
}

void learn_names(const Passport& passport, Scrubber& scrubber) {
  for (const auto& [key, value] : passport.values()) {
    if (is_host_key(key)) {
      if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
        for (const auto& host : *list) scrubber.add_host(host);
      } else {
        scrubber.add_host(passport.text(key));
      }
    } else if (key == kRankMapKey) {
      learn_rank_map(passport.text(key), scrubber);
    } else if (key == kUserKey) {
      scrubber.add_user(passport.text(key));
    }
  }
}

Passport::Value scrub_value(const Scrubber& scrubber, std::string_view key,
                            const Passport::Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) {
    // A relative path without any mark of one is known by its key only.
    if (key.ends_with("path") || key.ends_with("file")) return std::string("<path>");
    return scrubber.scrub(*text);
  }
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    std::vector<std::string> clean;
    bool is_file = false;  // behind an argument that names one
    for (const auto& item : *list) {
      if (is_file) {
        clean.emplace_back("<path>");
      } else if (item.starts_with(kOutputArgument) && item.size() > kOutputArgument.size()) {
        clean.push_back(std::string(kOutputArgument) + "=<path>");
      } else {
        clean.push_back(scrubber.scrub(item));
      }
      is_file = item == kOutputArgument;
    }
    return clean;
  }
  return value;
}

void copy_attributes(const H5File& from, H5File& to, std::string_view group,
                     const Scrubber& scrubber) {
  if (!to.exists(group)) to.create_group(group);
  for (const auto& [key, value] : from.attributes(group)) {
    to.set_attribute(group, key, scrub_value(scrubber, key, value));
  }
}

void copy_dataset(const H5File& from, H5File& to, const schema::DatasetInfo& info,
                  const Scrubber& scrubber) {
  const bool is_id = info.path.ends_with("/id");
  const auto rows = from.rows(info.path);
  for (std::size_t first = to.rows(info.path); first < rows; first += kBlockRows) {
    auto block = from.read(info.path, info.type, first, std::min(kBlockRows, rows - first));
    if (!is_id) {
      for (auto& text : block.texts) text = scrubber.scrub(text);
    }
    to.append(info.path, block);
  }
}

// `copy(from, to)` fills the new file.
template <typename Copy>
void write_copy(const std::filesystem::path& input, const std::filesystem::path& output,
                const Copy& copy) {
  TargetFile target(output, {});
  if (target.exists()) {
    throw Error(ExitCode::kConfiguration, {.what = "exists already",
                                           .where = output.string(),
                                           .remedy = "remove it, or name another file"});
  }
  target.begin_empty(static_cast<std::int64_t>(std::filesystem::file_size(input)) +
                     kAllowanceBytes);
  try {
    const auto from = H5File::open_for_reading(input);
    auto to = H5File::create(target.temporary());
    copy(from, to);
    to.set_attribute(schema::kPassportGroup, "redacted", std::int64_t{1});
    to.close();
    target.publish();
  } catch (...) {
    target.discard();
    throw;
  }
}

void redact_bench_file(const std::filesystem::path& input, const std::filesystem::path& output) {
  const auto contents = read_bench_file(input);
  Scrubber scrubber;
  learn_names(contents.passport, scrubber);
  for (const auto& rank : contents.ranks) scrubber.add_host(rank.host);
  write_copy(input, output, [&](const H5File& from, H5File& to) {
    to.set_attribute("/", schema::kVersionAttribute, schema::kSchemaVersion);
    copy_attributes(from, to, schema::kPassportGroup, scrubber);
    for (const auto& info : schema::all_bench_datasets()) {
      const auto group = info.path.substr(0, info.path.rfind('/'));
      if (!from.exists(group)) continue;
      to.create_dataset(info);
      copy_dataset(from, to, info, scrubber);
      copy_attributes(from, to, group, scrubber);
    }
  });
}

}  // namespace

void redact_result(const std::filesystem::path& input, const std::filesystem::path& output) {
  if (is_bench_file(input)) return redact_bench_file(input, output);
  const auto contents = read_result(input, {});
  Scrubber scrubber;
  learn_names(contents.passport, scrubber);
  for (const auto& [session, passport] : contents.later_passports) learn_names(passport, scrubber);
  for (const auto& session : contents.sessions) scrubber.add_host(session.host);

  write_copy(input, output, [&](const H5File& from, H5File& to) {
    create_layout(to);
    for (const auto& info : schema::all_datasets()) {
      if (info.path == schema::kProposed.path || info.path == schema::kAccepted.path) {
        to.append_matrix(info.path, from.read_matrix(info.path));
      } else {
        copy_dataset(from, to, info, scrubber);
      }
    }
    copy_attributes(from, to, schema::kPassportGroup, scrubber);
    copy_attributes(from, to, schema::kFactsGroup, scrubber);
    for (const auto& [session, passport] : contents.later_passports) {
      copy_attributes(from, to, fmt::format("{}{}", schema::kSessionPassportPrefix, session),
                      scrubber);
    }
  });
}

}  // namespace tandem
