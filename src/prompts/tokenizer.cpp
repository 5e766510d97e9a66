#include "prompts/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <sstream>
#include <unordered_map>

#include "base/error.h"
#include "base/hash.h"
#include "prompts/added_tokens.h"
#include "prompts/bpe.h"
#include "prompts/byte_level.h"
#include "prompts/pre_tokenizer.h"
#include "prompts/stream_decoder.h"
#include "prompts/tokenizer_file.h"
#include "prompts/unicode_normalizer.h"
#include "prompts/utf8.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  if (in) out << in.rdbuf();
  if (!in || !out)
    throw Error(ExitCode::kConfiguration,
                {.what = "cannot be read",
                 .where = path.string(),
                 .expected = {},
                 .remedy = "the checkpoint folder must contain tokenizer.json"});
  return std::move(out).str();
}

// "<0xE4>" to its byte.
std::optional<std::string> fallback_byte(const std::string& text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  const std::size_t high = kDigits.find(text[3]), low = kDigits.find(text[4]);
  if (high == std::string_view::npos || low == std::string_view::npos) return std::nullopt;
  return std::string(1, static_cast<char>(high * 16 + low));
}

}  // namespace

struct Tokenizer::Parts {
  std::string sha256;
  std::vector<std::string> warnings;
  std::vector<UnicodeNormalizer> normalizers;
  AddedTokenMatcher raw_tokens;         // looked for in the text as it came
  AddedTokenMatcher normalized_tokens;  // looked for behind the normalizer
  std::unordered_map<std::string, std::int32_t> added_ids;
  std::vector<std::int32_t> prefix;
  std::vector<std::int32_t> suffix;
  std::vector<std::string> bytes;   // [id]
  std::vector<bool> special;        // [id]
  std::vector<bool> byte_fallback;  // [id]

  mutable std::mutex mutex;  // guards the two stages below, which keep working memory and caches
  mutable PreTokenizer pre_tokenizer;
  mutable Bpe bpe;

  explicit Parts(TokenizerFile file);

  void normalize(std::string* text) const {
    for (const UnicodeNormalizer& normalizer : normalizers) normalizer.normalize(text);
  }
  void encode_words(std::string_view text, std::vector<std::int32_t>* ids) const {
    for (const std::string_view piece : pre_tokenizer.split(text)) bpe.encode(piece, ids);
  }
  void encode_text(std::string_view text, AddedTokens mode, std::vector<std::int32_t>* ids) const;
};

Tokenizer::Parts::Parts(TokenizerFile file)
    : prefix(std::move(file.prefix)),
      suffix(std::move(file.suffix)),
      bytes(file.token_text.size()),
      special(file.token_text.size()),
      byte_fallback(file.token_text.size()),
      pre_tokenizer(file.pre_tokenizer),
      bpe(std::move(file.model)) {
  for (const NormalizationForm form : file.normalizer) normalizers.emplace_back(form);
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    std::string& text = file.token_text[id];
    std::optional<std::string> decoded;
    if (file.decode_byte_fallback) decoded = fallback_byte(text);
    byte_fallback[id] = decoded.has_value();
    // The reference decoder does this to added tokens as well; most have characters ("<", "|") that
    // stand for themselves, or some outside the alphabet, which leaves the token as it is.
    if (!decoded && file.decode_byte_level) decoded = bytes_of_characters(text);
    bytes[id] = decoded ? std::move(*decoded) : std::move(text);
  }
  for (AddedToken& token : file.added_tokens) {
    special[static_cast<std::size_t>(token.id)] = token.special;
    added_ids.emplace(token.content, token.id);
    if (token.normalized) normalize(&token.content);
    (token.normalized ? normalized_tokens : raw_tokens).add(std::move(token));
  }
}

void Tokenizer::Parts::encode_text(std::string_view text, AddedTokens mode,
                                   std::vector<std::int32_t>* ids) const {
  std::string normal;
  if (!normalizers.empty()) {
    normal = text;
    normalize(&normal);
    text = normal;
  }
  if (mode == AddedTokens::kIgnore || normalized_tokens.empty()) return encode_words(text, ids);
  std::vector<Segment> segments;
  normalized_tokens.split(text, &segments);
  for (const Segment& segment : segments) {
    if (segment.id) {
      ids->push_back(*segment.id);
    } else {
      encode_words(segment.text, ids);
    }
  }
}

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& name) {
  TokenizerFile file = parse_tokenizer_file(text, name);
  // The Qwen3.8 vocabulary with the Qwen3 pattern: seen in re-quantised repositories.
  constexpr std::size_t kQwen38Tokens = 248077;
  const bool old_pattern =
      file.token_text.size() == kQwen38Tokens &&
      std::none_of(file.pre_tokenizer.begin(), file.pre_tokenizer.end(), [](const auto& step) {
        return step.pattern.find("\\p{M}") != std::string::npos;
      });
  std::unique_ptr<Parts> parts;
  try {
    parts = std::make_unique<Parts>(std::move(file));
  } catch (
      const Error& e) {  // the stages do not know which file their patterns and merges are from
    ErrorText message = e.text();
    message.where = message.where.empty() ? name : message.where;
    throw Error(e.code(), std::move(message));
  }
  parts->sha256 = sha256_hex(text);
  if (old_pattern)
    parts->warnings.push_back(name +
                              ": split pattern without \\p{M} (that of Qwen3): text with combining "
                              "marks gets other ids than with the official Qwen3.8 file");
  return Tokenizer(std::move(parts));
}

Tokenizer Tokenizer::load(const fs::path& checkpoint_dir) {
  const fs::path path = checkpoint_dir / "tokenizer.json";
  Tokenizer tokenizer = from_json(read_file(path), path.string());
  const fs::path config = checkpoint_dir / "tokenizer_config.json";
  if (!fs::exists(config) || !tokenizer.parts_->prefix.empty()) return tokenizer;
  if (const std::string bos = bos_of_tokenizer_config(read_file(config), config.string());
      !bos.empty()) {
    const std::optional<std::int32_t> id = tokenizer.token_id(bos);
    if (!id)
      throw Error(ExitCode::kConfiguration,
                  {.what = fmt::format("bos_token '{}' is unknown", bos),
                   .where = config.string(),
                   .expected = "one of the added tokens of tokenizer.json",
                   .remedy = {}});
    tokenizer.parts_->prefix.push_back(*id);
  }
  return tokenizer;
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view utf8, AddedTokens mode) const {
  std::string repaired;
  if (find_invalid_utf8(utf8) != std::string_view::npos) {
    repaired = lossy_utf8(utf8);
    utf8 = repaired;
  }
  std::vector<std::int32_t> ids;
  const std::lock_guard lock(parts_->mutex);
  if (mode == AddedTokens::kIgnore) {
    parts_->encode_text(utf8, mode, &ids);
    return ids;
  }
  std::vector<Segment> segments;
  parts_->raw_tokens.split(utf8, &segments);
  for (const Segment& segment : segments) {
    if (segment.id) {
      ids.push_back(*segment.id);
    } else {
      parts_->encode_text(segment.text, mode, &ids);
    }
  }
  return ids;
}

std::vector<std::int32_t> Tokenizer::with_prompt_specials(std::vector<std::int32_t> ids) const {
  const auto& prefix = parts_->prefix;
  const auto& suffix = parts_->suffix;
  const bool has_prefix =
      ids.size() >= prefix.size() && std::equal(prefix.begin(), prefix.end(), ids.begin());
  if (!has_prefix) ids.insert(ids.begin(), prefix.begin(), prefix.end());
  const bool has_suffix =
      ids.size() >= suffix.size() && std::equal(suffix.rbegin(), suffix.rend(), ids.rbegin());
  if (!has_suffix) ids.insert(ids.end(), suffix.begin(), suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, SpecialTokens special) const {
  std::string text;
  StreamDecoder decoder(*this, special);
  for (const std::int32_t id : ids) decoder.push(id, &text);
  decoder.finish(&text);
  return text;
}

const std::string& Tokenizer::token_bytes(std::int32_t id) const {
  static const std::string kNone;
  return id >= 0 && id < vocab_size() ? parts_->bytes[static_cast<std::size_t>(id)] : kNone;
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view added) const {
  const auto it = parts_->added_ids.find(std::string(added));
  return it == parts_->added_ids.end() ? std::nullopt : std::optional(it->second);
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && parts_->special[static_cast<std::size_t>(id)];
}

bool Tokenizer::spells_special_token(std::string_view text) const {
  std::vector<Segment> segments;
  parts_->raw_tokens.split(text, &segments);
  return std::any_of(segments.begin(), segments.end(), [this](const Segment& segment) {
    return segment.id && is_special(*segment.id);
  });
}

bool Tokenizer::is_byte_fallback(std::int32_t id) const {
  return id >= 0 && id < vocab_size() && parts_->byte_fallback[static_cast<std::size_t>(id)];
}

std::int32_t Tokenizer::vocab_size() const {
  return static_cast<std::int32_t>(parts_->bytes.size());
}

const std::string& Tokenizer::sha256() const { return parts_->sha256; }
const std::vector<std::string>& Tokenizer::warnings() const { return parts_->warnings; }

}  // namespace tandem
