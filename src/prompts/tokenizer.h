// Text to token ids and back, straight from a checkpoint's tokenizer.json (Hugging Face
// "tokenizers" format, byte-pair encoding). The stages and their order are those of that library:
// added tokens cut out of the raw text, normalizer, pre-tokenizer, merges, post-processor. A file
// that uses a construct not implemented here is refused by name; nothing is approximated.
// End-of-sequence ids are not here: they come from generation_config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tandem {

// Whether the text of an added token ("<|im_end|>") becomes that token or is encoded letter by
// letter.
enum class AddedTokens { kMatch, kIgnore };
// Whether decoded text shows tokens flagged "special". "<think>" is an added token, but not a
// special one, and is always shown.
enum class SpecialTokens { kSkip, kKeep };

class Tokenizer {
 public:
  // Reads tokenizer.json (and add_bos_token of tokenizer_config.json, if that file exists).
  // Throws Error{kConfiguration} that names the file and the construct.
  static Tokenizer load(const std::filesystem::path& checkpoint_dir);
  // The same from text, for tests; `name` stands for the file in messages.
  static Tokenizer from_json(std::string_view json, const std::string& name = "tokenizer.json");

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of the text alone: no BOS, no post-processor. Bytes that are not UTF-8 count as U+FFFD.
  // Safe to call from several threads, which then take turns.
  std::vector<std::int32_t> encode(std::string_view utf8,
                                   AddedTokens mode = AddedTokens::kMatch) const;
  // Adds what the post-processor (or add_bos_token) puts around a prompt, unless the ids already
  // begin and end with it: a pre-rendered prompt that spells its BOS still gets exactly one.
  std::vector<std::int32_t> with_prompt_specials(std::vector<std::int32_t> ids) const;

  // Text of a whole id list. Invalid UTF-8 becomes U+FFFD, one for each maximal invalid part; ids
  // without a token are left out.
  std::string decode(std::span<const std::int32_t> ids, SpecialTokens special) const;

  // Bytes a token stands for, possibly a part of a UTF-8 character; empty for ids without a token.
  const std::string& token_bytes(std::int32_t id) const;
  // Id of an added token by its exact text.
  std::optional<std::int32_t> token_id(std::string_view added) const;
  bool is_special(std::int32_t id) const;
  // Whether encoding this text would produce a special token.
  bool spells_special_token(std::string_view text) const;
  // A single-byte token ("<0xE4>") of a decoder with byte fallback.
  bool is_byte_fallback(std::int32_t id) const;
  // Largest id + 1. Rows of the head from here on belong to no token and must never be sampled.
  std::int32_t vocab_size() const;
  // SHA-256 of tokenizer.json, lower-case hex.
  const std::string& sha256() const;
  // Differences from the official files that are known to change ids, for the log.
  const std::vector<std::string>& warnings() const;

 private:
  struct Parts;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace tandem
