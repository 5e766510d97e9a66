#include "tests/prompts/tokenizer_fixture.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "prompts/byte_level.h"

namespace tandem::testing {

using nlohmann::json;

std::string tokenizer_json(const TokenizerSpec& spec) {
  json vocab = json::object();
  int next = 0;
  for (; next < 256; ++next)
    vocab[std::string(byte_to_character(static_cast<unsigned char>(next)))] = next;
  json merges = json::array();
  for (const auto& [left, right] : spec.merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = next++;
    merges.push_back(spec.merges_as_text ? json(left + " " + right) : json{left, right});
  }
  json added = json::array();
  for (const std::string& text : spec.added) {
    json token = json::parse(text);
    if (!token.contains("normalized")) token["normalized"] = false;
    if (!token.contains("id")) token["id"] = next++;
    added.push_back(token);
  }
  return fmt::format(
      R"({{"version": "1.0", "truncation": null, "padding": null, "added_tokens": {},
"normalizer": {}, "pre_tokenizer": {}, "post_processor": {}, "decoder": {},
"model": {{"type": "BPE", "dropout": null, "unk_token": null, {} "vocab": {}, "merges": {}}}}})",
      added.dump(), spec.normalizer, spec.pre_tokenizer, spec.post_processor, spec.decoder,
      spec.model_extra, vocab.dump(), merges.dump());
}

Tokenizer make_tokenizer(const TokenizerSpec& spec) {
  return Tokenizer::from_json(tokenizer_json(spec));
}

TokenizerSpec deepseek_spec() {
  TokenizerSpec spec;
  const auto split = [](const char* regex) {
    const json pattern{{"Regex", regex}};
    return json{
        {"type", "Split"}, {"pattern", pattern}, {"behavior", "Isolated"}, {"invert", false}};
  };
  json steps = json::array();
  steps.push_back(split(R"(\p{N}{1,3})"));
  steps.push_back(split("[一-龥぀-ゟ゠-ヿ]+"));
  steps.push_back(split(
      R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
      R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"));
  steps.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  spec.pre_tokenizer = json{{"type", "Sequence"}, {"pretokenizers", steps}}.dump();
  spec.added = {R"({"content": "<｜begin▁of▁sentence｜>", "special": true})",
                R"({"content": "<｜end▁of▁sentence｜>", "special": true})",
                R"({"content": "<｜User｜>", "special": false})",
                R"({"content": "<｜Assistant｜>", "special": false})",
                R"({"content": "<think>", "special": false})",
                R"({"content": "</think>", "special": false})"};
  return spec;
}

}  // namespace tandem::testing
