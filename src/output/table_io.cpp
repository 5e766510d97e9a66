#include "output/table_io.h"

#include <algorithm>

namespace tandem {
namespace {

constexpr std::string_view kKeyPrefix = "key.";

// Appends one ragged dataset: `row_of(record)` gives a contiguous range of the stored type.
template <typename T, typename RowOf>
void append_flat(H5File& file, const schema::Dataset& flat, std::span<const RequestRecord> records,
                 RowOf&& row_of) {
  ColumnData data;
  data.type = flat.type;
  TANDEM_CHECK(sizeof(T) == element_bytes(flat.type), "{}", flat.path);
  for (const auto& record : records) {
    const auto& row = row_of(record);
    const auto old = data.bytes.size();
    data.bytes.resize(old + row.size() * sizeof(T));
    if (!row.empty()) std::memcpy(data.bytes.data() + old, row.data(), row.size() * sizeof(T));
  }
  file.append(flat.path, data);
}

template <typename SizeOf>
void append_offsets(H5File& file, const schema::Dataset& offsets, const schema::Dataset& flat,
                    std::span<const RequestRecord> records, SizeOf&& size_of) {
  // Before the flat data grows: where the first new row begins.
  auto end = static_cast<std::int64_t>(file.rows(flat.path));
  const auto last = file.rows(offsets.path) - 1;
  TANDEM_CHECK(file.read(offsets.path, offsets.type, last, 1).at<std::int64_t>(0) == end,
               "{} does not end at {}", offsets.path, end);
  ColumnData data;
  data.type = offsets.type;
  for (const auto& record : records) {
    end += static_cast<std::int64_t>(size_of(record));
    data.add(end);
  }
  file.append(offsets.path, data);
}

// Asked-for values, or the missing value for each token when they were not asked for.
template <typename T>
std::vector<T> or_missing(const std::vector<T>& values, std::size_t tokens, T missing) {
  return values.empty() ? std::vector<T>(tokens, missing) : values;
}

}  // namespace

void check_version(const H5File& file, const std::filesystem::path& path) {
  const auto root = file.attributes("/");
  const auto found = root.find(std::string(schema::kVersionAttribute));
  const auto* version = found == root.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
  TANDEM_CHECK(version != nullptr, "the root has no {}", schema::kVersionAttribute);
  if (*version > schema::kSchemaVersion) {
    throw Error(ExitCode::kConfiguration,
                {.what = fmt::format("schema version {}", *version),
                 .where = path.string(),
                 .expected = fmt::format("at most {}", schema::kSchemaVersion),
                 .remedy = "read it with the program that wrote it, or a later one"});
  }
}

void create_layout(H5File& file) {
  file.set_attribute("/", schema::kVersionAttribute, schema::kSchemaVersion);
  file.create_group(schema::kPassportGroup);
  file.create_group(schema::kFactsGroup);
  for (const auto& info : schema::all_datasets()) {
    if (info.path == schema::kProposed.path || info.path == schema::kAccepted.path) {
      file.create_matrix(info);
    } else {
      file.create_dataset(info);
    }
  }
  schema::for_each_table([&file](const auto& table) {
    file.set_attribute(table.group, "description", std::string(table.description));
  });
  ColumnData zero;
  zero.type = ElementType::kI64;
  zero.add(std::int64_t{0});
  for (const auto* offsets : {&schema::kPromptOffsets, &schema::kCompletionOffsets,
                              &schema::kPromptTextOffsets, &schema::kCompletionTextOffsets}) {
    file.append(offsets->path, zero);
  }
}

void append_requests(H5File& file, std::span<const RequestRecord> records) {
  if (records.empty()) return;
  append_rows(file, schema::kRequests, records);

  append_offsets(file, schema::kPromptOffsets, schema::kPromptIds, records,
                 [](const RequestRecord& r) { return r.prompt_ids.size(); });
  append_flat<std::int32_t>(
      file, schema::kPromptIds, records,
      [](const RequestRecord& r) -> auto& { return r.prompt_ids; });

  append_offsets(file, schema::kCompletionOffsets, schema::kCompletionIds, records,
                 [](const RequestRecord& r) { return r.completion_ids.size(); });
  append_flat<std::int32_t>(
      file, schema::kCompletionIds, records,
      [](const RequestRecord& r) -> auto& { return r.completion_ids; });
  append_flat<double>(
      file, schema::kTokenTime, records,
      [](const RequestRecord& r) -> auto& { return r.token_times_s; });
  append_flat<std::int64_t>(
      file, schema::kTokenStep, records,
      [](const RequestRecord& r) -> auto& { return r.token_steps; });
  append_flat<double>(file, schema::kLogprob, records, [](const RequestRecord& r) {
    return or_missing(r.logprobs, r.completion_ids.size(), kMissingF64);
  });
  append_flat<std::uint64_t>(file, schema::kLogitHash, records, [](const RequestRecord& r) {
    return or_missing(r.logit_hashes, r.completion_ids.size(), kMissingU64);
  });

  append_offsets(file, schema::kPromptTextOffsets, schema::kPromptText, records,
                 [](const RequestRecord& r) { return r.prompt_text.size(); });
  append_flat<char>(
      file, schema::kPromptText, records,
      [](const RequestRecord& r) -> auto& { return r.prompt_text; });
  append_offsets(file, schema::kCompletionTextOffsets, schema::kCompletionText, records,
                 [](const RequestRecord& r) { return r.completion_text.size(); });
  append_flat<char>(
      file, schema::kCompletionText, records,
      [](const RequestRecord& r) -> auto& { return r.completion_text; });

  std::vector<std::vector<std::int64_t>> proposed;
  std::vector<std::vector<std::int64_t>> accepted;
  for (const auto& record : records) {
    proposed.push_back(record.draft_proposed);
    accepted.push_back(record.draft_accepted);
  }
  file.append_matrix(schema::kProposed.path, proposed);
  file.append_matrix(schema::kAccepted.path, accepted);
}

std::vector<std::int64_t> read_offsets(const H5File& file, const schema::Dataset& offsets,
                                       const schema::Dataset& flat) {
  auto values = read_flat<std::int64_t>(file, offsets);
  TANDEM_CHECK(!values.empty() && values.front() == 0 &&
                   std::is_sorted(values.begin(), values.end()) &&
                   values.back() == static_cast<std::int64_t>(file.rows(flat.path)),
               "{} does not divide {}", offsets.path, flat.path);
  return values;
}

void write_passport(H5File& file, std::string_view group, const Passport& passport) {
  if (!file.exists(group)) file.create_group(group);
  for (const auto& [key, value] : passport.values()) file.set_attribute(group, key, value);
}

Passport read_passport(const H5File& file, std::string_view group) {
  Passport passport;
  for (auto& [key, value] : file.attributes(group)) {
    std::visit([&passport, &key](auto&& v) { passport.set(key, v); }, value);
  }
  return passport;
}

void write_facts(H5File& file, const RunFacts& facts) {
  Passport attributes;
  for (const auto& [key, value] : facts.token_keys) {
    attributes.set(fmt::format("{}{}", kKeyPrefix, key), value);
  }
  attributes.set("checkpoint_identity", facts.checkpoint_identity);
  attributes.set("tokenizer_sha256", facts.tokenizer_sha256);
  attributes.set("program_version", facts.program_version);
  attributes.set("num_ranks", std::int64_t{facts.num_ranks});
  attributes.set("rank_invariant", std::int64_t{facts.rank_invariant ? 1 : 0});
  write_passport(file, schema::kFactsGroup, attributes);
  replace_rows(file, schema::kPrompts, std::span<const PromptRow>(facts.prompts));
}

RunFacts read_facts(const H5File& file) {
  RunFacts facts;
  const auto attributes = read_passport(file, schema::kFactsGroup);
  const auto integer = [&attributes](std::string_view key) {
    const auto found = attributes.values().find(std::string(key));
    const auto* value =
        found == attributes.values().end() ? nullptr : std::get_if<std::int64_t>(&found->second);
    TANDEM_CHECK(value != nullptr, "{} has no integer {}", schema::kFactsGroup, key);
    return *value;
  };
  for (const auto& [key, value] : attributes.values()) {
    if (key.starts_with(kKeyPrefix)) {
      facts.token_keys[key.substr(kKeyPrefix.size())] = attributes.text(key);
    }
  }
  facts.checkpoint_identity = attributes.text("checkpoint_identity");
  facts.tokenizer_sha256 = attributes.text("tokenizer_sha256");
  facts.program_version = attributes.text("program_version");
  facts.num_ranks = static_cast<int>(integer("num_ranks"));
  facts.rank_invariant = integer("rank_invariant") != 0;
  facts.prompts = read_rows(file, schema::kPrompts);
  return facts;
}

}  // namespace tandem
