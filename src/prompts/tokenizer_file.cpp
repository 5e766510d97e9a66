#include "prompts/tokenizer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"

namespace tandem {
namespace {

using nlohmann::json;

// Ids index arrays; a damaged file must not make them gigabytes long.
constexpr std::int64_t kMaxId = (1 << 24) - 1;

class Reader {
 public:
  explicit Reader(const std::string& name) : name_(name) {}

  [[noreturn]] void fail(const std::string& what, const std::string& expected = {}) const {
    throw Error(ExitCode::kConfiguration,
                {.what = what,
                 .where = name_,
                 .expected = expected,
                 .remedy = "compare the file with the one the model was published with"});
  }
  [[noreturn]] void unsupported(const std::string& construct) const {
    throw Error(ExitCode::kConfiguration,
                {.what = construct + " is not supported",
                 .where = name_,
                 .expected = "a byte-level BPE tokenizer as Qwen and DeepSeek use it",
                 .remedy = "give the prompts as token ids (\"tokens\")"});
  }

  json parse(std::string_view text) const {
    json root;
    try {
      root = json::parse(text);
    } catch (const json::exception& e) {
      fail(fmt::format("not valid JSON ({})", e.what()));
    }
    if (!root.is_object()) fail("the top level is not an object");
    return root;
  }

  // nullptr if absent or null.
  const json* find(const json& object, const char* key) const {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
  }
  const json& object(const json& parent, const char* key, const std::string& path) const {
    const json* value = find(parent, key);
    if (value == nullptr || !value->is_object()) fail(path + " is missing or not an object");
    return *value;
  }
  const json& list(const json& parent, const char* key, const std::string& path) const {
    const json* value = find(parent, key);
    if (value == nullptr || !value->is_array()) fail(path + " is missing or not a list");
    return *value;
  }
  std::string text(const json& parent, const char* key, const std::string& path) const {
    const json* value = find(parent, key);
    if (value == nullptr || !value->is_string()) fail(path + " is missing or not a string");
    return value->get<std::string>();
  }
  std::string text_or_empty(const json& parent, const char* key, const std::string& path) const {
    return find(parent, key) == nullptr ? std::string() : text(parent, key, path);
  }
  bool flag(const json& parent, const char* key, bool fallback, const std::string& path) const {
    const json* value = find(parent, key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(path + " is not true or false");
    return value->get<bool>();
  }
  std::int32_t id(const json& value, const std::string& path) const {
    if (!value.is_number_integer()) fail(path + " is not a whole number");
    const bool too_large = value.is_number_unsigned() &&
                           value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMaxId);
    if (too_large || value.get<std::int64_t>() < 0)
      fail(fmt::format("{} is {}", path, value.dump()), fmt::format("an id from 0 to {}", kMaxId));
    return value.get<std::int32_t>();
  }

 private:
  const std::string& name_;
};

// The members of a component, or of all components of a (nested) Sequence.
void flatten(const Reader& in, const json& component, const char* members_key,
             const std::string& path, int depth, std::vector<const json*>* out) {
  if (!component.is_object()) in.fail(path + " is not an object");
  if (depth > 8) in.fail(path + " nests sequences too deeply");
  if (in.text(component, "type", path + ".type") != "Sequence") {
    out->push_back(&component);
    return;
  }
  for (const json& member :
       in.list(component, members_key, fmt::format("{}.{}", path, members_key)))
    flatten(in, member, members_key, path, depth + 1, out);
}

std::vector<const json*> components(const Reader& in, const json& root, const char* key,
                                    const char* members_key) {
  std::vector<const json*> out;
  if (const json* component = in.find(root, key))
    flatten(in, *component, members_key, key, 0, &out);
  return out;
}

void read_normalizer(const Reader& in, const json& root, TokenizerFile* file) {
  for (const json* step : components(in, root, "normalizer", "normalizers")) {
    const std::string type = in.text(*step, "type", "normalizer.type");
    if (type == "NFC") {
      file->normalizer.push_back(NormalizationForm::kNfc);
    } else if (type == "NFD") {
      file->normalizer.push_back(NormalizationForm::kNfd);
    } else if (type == "NFKC") {
      file->normalizer.push_back(NormalizationForm::kNfkc);
    } else if (type == "NFKD") {
      file->normalizer.push_back(NormalizationForm::kNfkd);
    } else {
      in.unsupported(fmt::format("normalizer '{}'", type));
    }
  }
}

SplitBehavior behavior_of(const Reader& in, const std::string& name) {
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  in.unsupported(fmt::format("split behavior '{}'", name));
}

PreTokenizerStep regex_step(std::string pattern) {
  return {PreTokenizerStep::Kind::kRegex, std::move(pattern), SplitBehavior::kIsolated, false};
}

PreTokenizerStep read_split(const Reader& in, const json& step) {
  PreTokenizerStep out;
  const json& pattern = in.object(step, "pattern", "pre_tokenizer.pattern");
  if (in.find(pattern, "Regex") != nullptr) {
    out.pattern = in.text(pattern, "Regex", "pre_tokenizer.pattern.Regex");
  } else {
    out.kind = PreTokenizerStep::Kind::kLiteral;
    out.pattern = in.text(pattern, "String", "pre_tokenizer.pattern.String");
    if (out.pattern.empty()) in.fail("pre_tokenizer.pattern.String is empty");
  }
  out.behavior = behavior_of(in, in.text(step, "behavior", "pre_tokenizer.behavior"));
  out.invert = in.flag(step, "invert", false, "pre_tokenizer.invert");
  return out;
}

void read_pre_tokenizer(const Reader& in, const json& root, TokenizerFile* file) {
  for (const json* step : components(in, root, "pre_tokenizer", "pretokenizers")) {
    // Behind it, text is in the byte alphabet, where patterns mean something else.
    if (file->model.byte_level) in.unsupported("a pre_tokenizer behind ByteLevel");
    const std::string type = in.text(*step, "type", "pre_tokenizer.type");
    if (type == "Split") {
      file->pre_tokenizer.push_back(read_split(in, *step));
    } else if (type == "Digits") {
      PreTokenizerStep digits = regex_step(R"(\p{N})");
      if (!in.flag(*step, "individual_digits", false, "pre_tokenizer.individual_digits"))
        digits.behavior = SplitBehavior::kContiguous;
      file->pre_tokenizer.push_back(digits);
    } else if (type == "ByteLevel") {
      if (in.flag(*step, "add_prefix_space", true, "pre_tokenizer.add_prefix_space"))
        file->pre_tokenizer.push_back(
            {PreTokenizerStep::Kind::kPrefixSpace, {}, SplitBehavior::kIsolated, false});
      if (in.flag(*step, "use_regex", true, "pre_tokenizer.use_regex"))
        file->pre_tokenizer.push_back(regex_step(kByteLevelPattern));
      file->model.byte_level = true;
    } else {
      in.unsupported(fmt::format("pre_tokenizer '{}'", type));
    }
  }
}

void read_merges(const Reader& in, const json& model, TokenizerFile* file) {
  const json& merges = in.list(model, "merges", "model.merges");
  file->model.merges.reserve(merges.size());
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      file->model.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string joined = merge.is_string() ? merge.get<std::string>() : std::string();
    const std::size_t blank = joined.find(' ');
    if (blank == std::string::npos || joined.find(' ', blank + 1) != std::string::npos)
      in.fail(fmt::format("model.merges[{}] is {}", i, merge.dump().substr(0, 60)),
              "two tokens, as \"a b\" or [\"a\", \"b\"]");
    file->model.merges.emplace_back(joined.substr(0, blank), joined.substr(blank + 1));
  }
}

// Puts a token at its place in token_text, once.
void place(const Reader& in, std::int32_t id, const std::string& text, TokenizerFile* file) {
  const auto at = static_cast<std::size_t>(id);
  if (at >= file->token_text.size()) file->token_text.resize(at + 1);
  if (!file->token_text[at].empty() && file->token_text[at] != text)
    in.fail(fmt::format("id {} belongs to both '{}' and '{}'", id, file->token_text[at], text));
  file->token_text[at] = text;
}

void read_model(const Reader& in, const json& root, TokenizerFile* file) {
  const json& model = in.object(root, "model", "model");
  const std::string type = in.text_or_empty(model, "type", "model.type");
  if (type != "BPE" && !type.empty()) in.unsupported(fmt::format("model type '{}'", type));
  if (const json* dropout = in.find(model, "dropout"))
    if (!dropout->is_number() || dropout->get<double>() != 0) in.unsupported("model.dropout");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!in.text_or_empty(model, key, fmt::format("model.{}", key)).empty())
      in.unsupported(fmt::format("model.{}", key));
  file->model.ignore_merges = in.flag(model, "ignore_merges", false, "model.ignore_merges");
  file->model.byte_fallback = in.flag(model, "byte_fallback", false, "model.byte_fallback");
  file->model.fuse_unknown = in.flag(model, "fuse_unk", false, "model.fuse_unk");
  if (const std::string unknown = in.text_or_empty(model, "unk_token", "model.unk_token");
      !unknown.empty())
    file->model.unknown = unknown;

  const json& vocab = in.object(model, "vocab", "model.vocab");
  if (vocab.empty()) in.fail("model.vocab is empty");
  file->model.vocab.reserve(vocab.size());
  file->token_text.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    const std::int32_t id = in.id(value, fmt::format("model.vocab['{}']", text));
    if (text.empty()) in.fail(fmt::format("model.vocab has an empty token (id {})", id));
    place(in, id, text, file);
    file->model.vocab.emplace(text, id);
  }
  read_merges(in, model, file);
}

void read_added_tokens(const Reader& in, const json& root, TokenizerFile* file) {
  if (in.find(root, "added_tokens") == nullptr) return;
  std::unordered_map<std::string, std::int32_t> seen;
  const json& list = in.list(root, "added_tokens", "added_tokens");
  for (std::size_t i = 0; i < list.size(); ++i) {
    const json& entry = list[i];
    const std::string path = fmt::format("added_tokens[{}]", i);
    if (!entry.is_object()) in.fail(path + " is not an object");
    AddedToken token;
    token.content = in.text(entry, "content", path + ".content");
    if (token.content.empty()) in.fail(path + ".content is empty");
    if (!entry.contains("id")) in.fail(path + ".id is missing");
    token.id = in.id(entry["id"], path + ".id");
    token.single_word = in.flag(entry, "single_word", false, path + ".single_word");
    token.lstrip = in.flag(entry, "lstrip", false, path + ".lstrip");
    token.rstrip = in.flag(entry, "rstrip", false, path + ".rstrip");
    token.special = in.flag(entry, "special", false, path + ".special");
    token.normalized = in.flag(entry, "normalized", !token.special, path + ".normalized");
    const auto in_vocab = file->model.vocab.find(token.content);
    if (in_vocab != file->model.vocab.end() && in_vocab->second != token.id)
      in.fail(fmt::format("'{}' has id {} in model.vocab and {} in added_tokens", token.content,
                          in_vocab->second, token.id));
    if (!seen.emplace(token.content, token.id).second)
      in.fail(fmt::format("added token '{}' is listed twice", token.content));
    place(in, token.id, token.content, file);
    file->added_tokens.push_back(std::move(token));
  }
}

void read_template(const Reader& in, const json& processor, TokenizerFile* file) {
  const json& single = in.list(processor, "single", "post_processor.single");
  bool behind_prompt = false;
  for (const json& item : single) {
    if (!item.is_object()) in.fail("post_processor.single has an item that is not an object");
    if (in.find(item, "Sequence") != nullptr) {
      if (behind_prompt) in.unsupported("a post_processor that repeats the prompt");
      behind_prompt = true;
      continue;
    }
    const json& special = in.object(item, "SpecialToken", "post_processor.single.SpecialToken");
    const std::string name = in.text(special, "id", "post_processor.single.SpecialToken.id");
    const json& all = in.object(processor, "special_tokens", "post_processor.special_tokens");
    const std::string path = fmt::format("post_processor.special_tokens['{}']", name);
    for (const json& value : in.list(in.object(all, name.c_str(), path), "ids", path + ".ids")) {
      const std::int32_t id = in.id(value, path + ".ids");
      const auto at = static_cast<std::size_t>(id);
      if (at >= file->token_text.size() || file->token_text[at].empty())
        in.fail(fmt::format("{} names id {}, which no token has", path, id));
      (behind_prompt ? file->suffix : file->prefix).push_back(id);
    }
  }
  if (!behind_prompt) in.fail("post_processor.single leaves the prompt out");
}

void read_post_processor(const Reader& in, const json& root, TokenizerFile* file) {
  for (const json* processor : components(in, root, "post_processor", "processors")) {
    const std::string type = in.text(*processor, "type", "post_processor.type");
    if (type == "TemplateProcessing") {
      if (!file->prefix.empty() || !file->suffix.empty())
        in.unsupported("more than one TemplateProcessing");
      read_template(in, *processor, file);
    } else if (type != "ByteLevel") {  // ByteLevel only moves offsets, which nobody asks for here
      in.unsupported(fmt::format("post_processor '{}'", type));
    }
  }
}

void read_decoder(const Reader& in, const json& root, TokenizerFile* file) {
  const auto steps = components(in, root, "decoder", "decoders");
  if (steps.empty()) in.fail("decoder is missing");
  bool fused = false;
  for (const json* step : steps) {
    const std::string type = in.text(*step, "type", "decoder.type");
    // Behind Fuse there is one string, and what the other decoders do to tokens would change.
    if (fused) in.unsupported("a decoder behind Fuse");
    if (type == "ByteLevel") {
      file->decode_byte_level = true;
    } else if (type == "ByteFallback") {
      if (file->decode_byte_level) in.unsupported("decoder ByteFallback behind ByteLevel");
      file->decode_byte_fallback = true;
    } else if (type == "Fuse") {
      fused = true;
    } else {
      in.unsupported(fmt::format("decoder '{}'", type));
    }
  }
  if (file->decode_byte_level != file->model.byte_level)
    in.fail("pre_tokenizer and decoder do not agree on ByteLevel");
}

}  // namespace

TokenizerFile parse_tokenizer_file(std::string_view text, const std::string& name) {
  const Reader in(name);
  const json root = in.parse(text);
  TokenizerFile file;
  // `truncation` and `padding` are left unread on purpose: they are settings of some earlier batch,
  // which the reference libraries reset as well.
  read_normalizer(in, root, &file);
  read_pre_tokenizer(in, root, &file);
  read_model(in, root, &file);
  read_added_tokens(in, root, &file);
  read_post_processor(in, root, &file);
  read_decoder(in, root, &file);
  return file;
}

std::string bos_of_tokenizer_config(std::string_view text, const std::string& name) {
  const Reader in(name);
  const json root = in.parse(text);
  if (!in.flag(root, "add_bos_token", false, "add_bos_token")) return {};
  const json* bos = in.find(root, "bos_token");
  if (bos == nullptr) in.fail("add_bos_token is true, but there is no bos_token");
  if (bos->is_object()) return in.text(*bos, "content", "bos_token.content");
  return in.text(root, "bos_token", "bos_token");
}

}  // namespace tandem
