// Encoding and decoding: recorded vectors of the reference library, every construct of the files on
// small vocabularies, and properties that hold for any input.
#include "prompts/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "prompts/bpe.h"
#include "prompts/pre_tokenizer.h"
#include "prompts/regex.h"
#include "prompts/unicode_normalizer.h"
#include "prompts/utf8.h"
#include "tests/prompts/tokenizer_fixture.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::make_tokenizer;
using testing::TokenizerSpec;
using Ids = std::vector<std::int32_t>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(testing::test_data("tiny-qwen3.8"));
  return tokenizer;
}

Ids bytes_of(std::string_view text) {
  Ids ids;
  for (const char byte : text) ids.push_back(static_cast<unsigned char>(byte));
  return ids;
}

std::vector<std::string> pieces(PreTokenizerStep step, std::string_view text) {
  PreTokenizer splitter({std::move(step)});
  std::vector<std::string> out;
  for (const std::string_view piece : splitter.split(text)) out.emplace_back(piece);
  return out;
}

TEST(Tokenizer, EqualsTheReferenceLibraryOnRecordedStrings) {
  const json cases = json::parse(testing::read_text(testing::test_data("tokenizer_cases.json")));
  ASSERT_GE(cases.size(), 20u);
  for (const json& c : cases) {
    const auto text = c["text"].get<std::string>();
    const auto ids = c["ids"].get<Ids>();
    EXPECT_EQ(tiny().encode(text), ids) << text;
    EXPECT_EQ(tiny().decode(ids, SpecialTokens::kKeep), c["decoded"].get<std::string>()) << text;
  }
}

TEST(Tokenizer, FactsOfTheTinyCheckpoint) {
  EXPECT_EQ(tiny().vocab_size(), 4096);
  EXPECT_EQ(tiny().token_id("<think>"), 4094);
  EXPECT_EQ(tiny().token_id("hello"), std::nullopt);
  EXPECT_EQ(tiny().sha256().size(), 64u);
  EXPECT_TRUE(tiny().is_special(4093));
  EXPECT_FALSE(tiny().is_special(4094));
  EXPECT_EQ(tiny().token_bytes(-1), "");
  EXPECT_EQ(tiny().token_bytes(4096), "");
  EXPECT_EQ(tiny().token_bytes(4095), "</think>");
  EXPECT_THAT(tiny().warnings(), IsEmpty());
}

TEST(Tokenizer, SkipsSpecialTokensButNotThink) {
  const Ids ids = tiny().encode("<|im_start|>a<think>b</think><|im_end|>");
  EXPECT_EQ(tiny().decode(ids, SpecialTokens::kKeep), "<|im_start|>a<think>b</think><|im_end|>");
  EXPECT_EQ(tiny().decode(ids, SpecialTokens::kSkip), "a<think>b</think>");
}

TEST(Tokenizer, IgnoringAddedTokensSpellsThemOut) {
  const Ids ids = tiny().encode("<|im_end|>", AddedTokens::kIgnore);
  EXPECT_GT(ids.size(), 1u);
  EXPECT_EQ(tiny().decode(ids, SpecialTokens::kSkip), "<|im_end|>");
}

TEST(Tokenizer, MergesByRankAndLeftmostFirst) {
  // Rank 0 joins b+c before a+b can; of equal pairs the left one goes first.
  const Tokenizer t = make_tokenizer({.merges = {{"b", "c"}, {"a", "b"}, {"a", "a"}, {"aa", "a"}}});
  EXPECT_THAT(t.encode("abc"), ElementsAre('a', 256));
  EXPECT_THAT(t.encode("ab"), ElementsAre(257));
  EXPECT_THAT(t.encode("aaa"), ElementsAre(259));
  EXPECT_THAT(t.encode("aaaa"), ElementsAre(258, 258));
}

TEST(Tokenizer, BothSpellingsOfMergesMeanTheSame) {
  const TokenizerSpec pairs{.merges = {{"a", "b"}, {"ab", "c"}}};
  TokenizerSpec text = pairs;
  text.merges_as_text = true;
  EXPECT_EQ(make_tokenizer(pairs).encode("abcab"), make_tokenizer(text).encode("abcab"));
  EXPECT_THAT(make_tokenizer(text).encode("abcab"), ElementsAre(257, 256));
}

TEST(Tokenizer, IgnoreMergesTakesWholePieces) {
  // "xyz" is a token that no merges lead to.
  TokenizerSpec spec{.merges = {{"x", "y"}, {"yz", "!"}, {"xy", "z"}}};
  std::string file = testing::tokenizer_json(spec);
  const auto ids = [](const std::string& json_text) {
    return Tokenizer::from_json(json_text).encode("xyz");
  };
  const std::string merge = R"(["xy","z"])";
  ASSERT_NE(file.find(",[\"xy\",\"z\"]"), std::string::npos);
  file.erase(file.find("," + merge), merge.size() + 1);
  file.erase(file.find(",[\"yz\",\"!\"]"), std::string(",[\"yz\",\"!\"]").size());
  EXPECT_THAT(ids(file), ElementsAre(256, 'z'));
  file.insert(file.find("\"unk_token\""), "\"ignore_merges\": true, ");
  EXPECT_THAT(ids(file), ElementsAre(258));
}

TEST(Tokenizer, LongWordsMergeLikeShortOnes) {
  // The heap serves pieces over 64 symbols, the scan shorter ones: one vocabulary, same rules. The
  // expected result comes from the definition, written out plainly.
  std::mt19937 random(7);
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> tokens{"a", "b", "c"};
  for (int i = 0; i < 40; ++i) {
    const std::string left = tokens[random() % tokens.size()];
    const std::string right = tokens[random() % tokens.size()];
    if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
    merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  const Tokenizer t = make_tokenizer({.merges = merges});
  for (const int length : {1, 2, 63, 64, 65, 66, 500}) {
    std::string word;
    for (int i = 0; i < length; ++i) word += static_cast<char>('a' + random() % 3);
    std::vector<std::string> symbols;
    for (const char c : word) symbols.emplace_back(1, c);
    for (const auto& [left, right] : merges) {
      // By rank: an earlier merge can never become possible again after a later one.
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != left || symbols[i + 1] != right) continue;
        symbols[i] = left + right;
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
    std::vector<std::string> got;
    for (const std::int32_t id : t.encode(word)) got.push_back(t.token_bytes(id));
    EXPECT_EQ(got, symbols) << word;
  }
}

TEST(Tokenizer, AMegabyteWithoutABreakIsNotQuadratic) {
  const std::string word(1 << 20, 'a');
  const Ids ids = tiny().encode(word);  // would take hours if it were
  EXPECT_EQ(tiny().decode(ids, SpecialTokens::kKeep), word);
  const std::string blanks(1 << 20, ' ');
  EXPECT_EQ(tiny().decode(tiny().encode(blanks + "x"), SpecialTokens::kKeep), blanks + "x");
}

TEST(Tokenizer, AddedTokensMatchLongestAndHonourTheirFlags) {
  const Tokenizer t = make_tokenizer({.merges = {},
                                      .added = {R"({"content": "<a>"})", R"({"content": "<a>b"})",
                                                R"({"content": "word", "single_word": true})",
                                                R"({"content": "<l>", "lstrip": true})",
                                                R"({"content": "<r>", "rstrip": true})"}});
  EXPECT_THAT(t.encode("<a><a>b"), ElementsAre(256, 257));
  EXPECT_THAT(t.encode("word"), ElementsAre(258));
  EXPECT_EQ(t.encode("words"), bytes_of("words"));
  EXPECT_EQ(t.encode("\u00e4word"), bytes_of("\u00e4word"));
  EXPECT_THAT(t.encode("(word)"), ElementsAre('(', 258, ')'));
  EXPECT_THAT(t.encode("x \t\u3000<l> y"), ElementsAre('x', 259, ' ', 'y'));
  EXPECT_THAT(t.encode("x <r> \n y"), ElementsAre('x', ' ', 260, 'y'));
  EXPECT_THAT(t.encode("<r> <l>"), ElementsAre(260, 259));
}

TEST(Tokenizer, NormalizedAddedTokensAreFoundBehindTheNormalizer) {
  const Tokenizer t =
      make_tokenizer({.merges = {},
                      .added = {R"({"content": "\u00e9!", "normalized": true})",
                                R"({"content": "\u00fc!", "normalized": false})"},
                      .normalizer = R"({"type": "Sequence", "normalizers": [{"type": "NFC"}]})"});
  EXPECT_THAT(t.encode("\u00e9!"), ElementsAre(256));
  EXPECT_THAT(t.encode("e\u0301!"), ElementsAre(256));
  EXPECT_THAT(t.encode("\u00fc!"), ElementsAre(257));
  EXPECT_EQ(t.encode("u\u0308!"), bytes_of("\u00fc!"));  // raw text does not contain the token
}

TEST(Tokenizer, TemplateSpecialsComeExactlyOnce) {
  const Tokenizer t = make_tokenizer(
      {.merges = {},
       .added = {R"({"content": "<s>", "special": true})"},
       .post_processor = R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
          {"type": "TemplateProcessing",
           "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A"}}],
           "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [256], "tokens": ["<s>"]}}}]})"});
  EXPECT_THAT(t.with_prompt_specials(t.encode("a")), ElementsAre(256, 'a'));
  EXPECT_THAT(t.with_prompt_specials(t.encode("<s>a")), ElementsAre(256, 'a'));
  EXPECT_THAT(t.with_prompt_specials({}), ElementsAre(256));
}

TEST(Tokenizer, AddBosTokenOfTheConfigFileCounts) {
  const testing::TempDir dir;
  testing::write_text(dir / "tokenizer.json", testing::tokenizer_json(testing::deepseek_spec()));
  const auto load = [&](const std::string& config) {
    testing::write_text(dir / "tokenizer_config.json", config);
    return Tokenizer::load(dir.path()).with_prompt_specials({'a'});
  };
  EXPECT_THAT(load(R"({"add_bos_token": false})"), ElementsAre('a'));
  EXPECT_THAT(load(R"({"add_bos_token": true, "bos_token": "<｜begin▁of▁sentence｜>"})"),
              ElementsAre(256, 'a'));
  EXPECT_THAT(load(R"({"add_bos_token": true,
                       "bos_token": {"content": "<｜begin▁of▁sentence｜>"}})"),
              ElementsAre(256, 'a'));
  EXPECT_THROW(load(R"({"add_bos_token": true, "bos_token": "<none>"})"), Error);
  EXPECT_THROW(load("{"), Error);
}

TEST(Tokenizer, DeepSeekStyleSplits) {
  TokenizerSpec spec = testing::deepseek_spec();
  // Every merge across a border of pieces must stay unused, every one inside must apply.
  spec.merges = {{"1", "2"}, {"12", "3"}, {"123", "4"}, {".", "Ċ"}, {"Ġ", "h"}, {"å", "h"}};
  const Tokenizer t = make_tokenizer(spec);
  EXPECT_THAT(t.encode("1234"), ElementsAre(257, '4'));
  EXPECT_THAT(t.encode("a.\nb"), ElementsAre('a', 259, 'b'));
  EXPECT_THAT(t.encode(" h"), ElementsAre(260));
  EXPECT_THAT(t.encode("<｜User｜>h<｜Assistant｜></think>"),
              ElementsAre(t.token_id("<｜User｜>"), 'h', t.token_id("<｜Assistant｜>"),
                          t.token_id("</think>")));
  PreTokenizer splitter(
      {{PreTokenizerStep::Kind::kRegex, R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|\s+)",
        SplitBehavior::kIsolated, false}});
  EXPECT_THAT(splitter.split("x._get y"), ElementsAre("x.", "_get", " ", "y"));
}

TEST(Tokenizer, ByteFallbackWithoutByteLevel) {
  const std::string file = R"({"added_tokens": [{"id": 6, "content": "<s>", "special": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null,
    "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "model": {"type": "BPE", "byte_fallback": true, "unk_token": "?", "fuse_unk": true,
      "vocab": {"a": 0, "b": 1, "ab": 2, "<0xC3>": 3, "<0xA4>": 4, "?": 5},
      "merges": ["a b"]}})";
  const Tokenizer t = Tokenizer::from_json(file);
  EXPECT_THAT(t.encode("ab\u00e4b"), ElementsAre(2, 3, 4, 1));
  EXPECT_THAT(t.encode("a\u4e2d\u4e2db"), ElementsAre(0, 5, 1));
  EXPECT_EQ(t.decode(Ids{2, 3, 4, 1}, SpecialTokens::kKeep), "ab\u00e4b");
  // A run that is not UTF-8 gives one replacement character a byte, its valid part included.
  EXPECT_EQ(t.decode(Ids{0, 3, 4, 3, 1}, SpecialTokens::kKeep), "a\ufffd\ufffd\ufffdb");
}

TEST(Tokenizer, RoundTripOfAnyNfcText) {
  std::mt19937 random(1);
  const UnicodeNormalizer nfc(NormalizationForm::kNfc);
  const std::vector<char32_t> limits{0x80, 0x250, 0x3000, 0x9FFF, 0x110000};
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (int n = static_cast<int>(random() % 40); n > 0; --n) {
      const char32_t c = random() % limits[random() % limits.size()];
      if (c < 0xD800 || c > 0xDFFF) append_utf8(c, &text);
    }
    nfc.normalize(&text);
    for (const AddedTokens mode : {AddedTokens::kMatch, AddedTokens::kIgnore})
      EXPECT_EQ(tiny().decode(tiny().encode(text, mode), SpecialTokens::kKeep), text);
  }
}

TEST(Tokenizer, RandomBytesAreRepairedNotRefused) {
  std::mt19937 random(2);
  const UnicodeNormalizer nfc(NormalizationForm::kNfc);
  for (int i = 0; i < 500; ++i) {
    std::string bytes;
    for (int n = static_cast<int>(random() % 60); n > 0; --n)
      bytes += static_cast<char>(random() % 256);
    std::string expected = lossy_utf8(bytes);
    nfc.normalize(&expected);
    EXPECT_EQ(tiny().decode(tiny().encode(bytes), SpecialTokens::kKeep), expected);
  }
}

TEST(PreTokenizer, SplitBehaviors) {
  const auto cut = [](SplitBehavior behavior, bool invert, const char* text) {
    return pieces({PreTokenizerStep::Kind::kLiteral, "-", behavior, invert}, text);
  };
  const char* text = "the-final--countdown";
  EXPECT_THAT(cut(SplitBehavior::kIsolated, false, text),
              ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(cut(SplitBehavior::kRemoved, false, text), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(cut(SplitBehavior::kMergedWithPrevious, false, text),
              ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(cut(SplitBehavior::kMergedWithNext, false, text),
              ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(cut(SplitBehavior::kContiguous, false, text),
              ElementsAre("the", "-", "final", "--", "countdown"));
  EXPECT_THAT(cut(SplitBehavior::kRemoved, true, text), ElementsAre("-", "-", "-"));
  EXPECT_THAT(cut(SplitBehavior::kMergedWithPrevious, false, "-a"), ElementsAre("-", "a"));
}

TEST(PreTokenizer, ReadsPatternsAsOnigurumaDoes) {
  const auto cut = [](const char* pattern, std::string_view text) {
    return pieces({PreTokenizerStep::Kind::kRegex, pattern, SplitBehavior::kIsolated, false}, text);
  };
  EXPECT_THAT(cut(R"(\s)", "a\x1c\x1d"), ElementsAre("a\x1c\x1d"));  // not white space
  EXPECT_THAT(cut(R"(\s)", "a\u180eb"), ElementsAre("a\u180eb"));    // no longer white space
  EXPECT_THAT(cut(R"(\s+)", "a\u00a0\u2003\u0085z"), ElementsAre("a", "\u00a0\u2003\u0085", "z"));
  EXPECT_THAT(cut(R"(\S+)", "a\u180e b"), ElementsAre("a\u180e", " ", "b"));
  EXPECT_THAT(cut(R"([\S]+)", "a\u180e b"), ElementsAre("a\u180e", " ", "b"));
  EXPECT_THAT(cut(R"(\w+)", "e\u0301_1-"), ElementsAre("e\u0301_1", "-"));
  EXPECT_THAT(cut("(?i:'s)", "it'\u017f"), ElementsAre("it", "'\u017f"));  // long s
  EXPECT_THAT(cut(R"(\p{Han}+)", "a\u4e2d\u6587\u30fc"),
              ElementsAre("a", "\u4e2d\u6587", "\u30fc"));  // the script, not its extensions
  EXPECT_THAT(cut("$", "a\nb"), ElementsAre("a", "\nb"));   // borders of lines
  EXPECT_THAT(cut("x*", "a\u4e2dxxb"), ElementsAre("a", "\u4e2d", "xx", "b"));  // empty matches
  for (const char* pattern : {R"([\p{L}&&[a-z]])", R"([a[b]])", R"(\h)", R"(\R)", R"(a\b)", "a{2}+",
                              "(?m:.)", "(", "[a", "\\", R"(\p{Nonsense})", R"(\pL)"})
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
}

TEST(UnicodeNormalizer, KeepsToUnicode9) {
  const auto nfc = [](std::string text) {
    UnicodeNormalizer(NormalizationForm::kNfc).normalize(&text);
    return text;
  };
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("\u212b"), "\u00c5");
  EXPECT_EQ(nfc("\u1112\u1161\u11ab"), "\ud55c");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");
  // Composes to U+11938 since Unicode 13.
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  std::string expanding = "\ufdfa";
  UnicodeNormalizer(NormalizationForm::kNfkd).normalize(&expanding);
  EXPECT_EQ(expanding.size(), 33u);
}

TEST(Utf8, LossyRepairFollowsTheMaximalSubpartRule) {
  // Unicode 15, table 3-8.
  EXPECT_EQ(lossy_utf8("\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64"),
            "a\ufffd\ufffd\ufffdb\ufffdc\ufffd\ufffdd");
  EXPECT_EQ(lossy_utf8("\xC0\xAF"), "\ufffd\ufffd");            // overlong
  EXPECT_EQ(lossy_utf8("\xED\xA0\x80"), "\ufffd\ufffd\ufffd");  // surrogate
  EXPECT_EQ(lossy_utf8("\xF4\x90\x80\x80"), "\ufffd\ufffd\ufffd\ufffd");
  EXPECT_EQ(lossy_utf8("\xF0\x9F\x98"), "\ufffd");
  EXPECT_EQ(lossy_utf8("\U0001F600"), "\U0001F600");
  EXPECT_EQ(find_invalid_utf8("ab\xFF"), 2u);
  EXPECT_EQ(find_invalid_utf8("ab\u4e2d"), std::string_view::npos);
}

struct BadFile {
  const char* what;     // must appear in the message
  const char* replace;  // in a good file
  const char* by;
};

class BadTokenizerFile : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizerFile, IsRefusedByName) {
  std::string file = testing::tokenizer_json(
      {.merges = {{"a", "b"}},
       .added = {R"({"content": "<s>", "id": 300, "special": true})"},
       .pre_tokenizer = R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":
          {"Regex":"\\s+"},"behavior":"Isolated","invert":false},
          {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]})",
       .post_processor = R"({"type":"ByteLevel"})",
       .decoder = R"({"type":"ByteLevel"})"});
  ASSERT_NO_THROW(Tokenizer::from_json(file));
  const std::size_t at = file.find(GetParam().replace);
  ASSERT_NE(at, std::string::npos) << GetParam().replace;
  file.replace(at, std::string_view(GetParam().replace).size(), GetParam().by);
  try {
    Tokenizer::from_json(file, "dir/tokenizer.json");
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    EXPECT_THAT(e.what(), HasSubstr("dir/tokenizer.json"));
    EXPECT_THAT(e.what(), HasSubstr(GetParam().what));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BadTokenizerFile,
    ::testing::Values(
        BadFile{"not valid JSON", "\"added_tokens\"", "\"added_tokens"},
        BadFile{"model is missing", "\"model\"", "\"modell\""},
        BadFile{"model type 'Unigram'", "\"BPE\"", "\"Unigram\""},
        BadFile{"model.vocab is missing", "\"vocab\": {", "\"vocab\": [], \"other\": {"},
        BadFile{"not a whole number", "\"A\":65", "\"A\":\"65\""},
        BadFile{"an id from 0 to", "\"A\":65", "\"A\":-1"},
        BadFile{"an id from 0 to", "\"A\":65", "\"A\":18446744073709551615"},
        BadFile{"an id from 0 to", "\"A\":65", "\"A\":2000000000"},
        BadFile{"belongs to both", "\"A\":65", "\"A\":66"},
        BadFile{"no token for byte 0x41", "\"A\":65,", ""},
        BadFile{"not in the vocabulary", "[\"a\",\"b\"]", "[\"a\",\"zz\"]"},
        BadFile{"model.merges[0]", "[\"a\",\"b\"]", "[\"a\"]"},
        BadFile{"model.merges[0]", "[\"a\",\"b\"]", "\"a b c\""},
        BadFile{"model.merges[0]", "[\"a\",\"b\"]", "7"},
        BadFile{"model.dropout", "\"dropout\": null", "\"dropout\": 0.1"},
        BadFile{"end_of_word_suffix", "\"dropout\": null", "\"end_of_word_suffix\": \"</w>\""},
        BadFile{"unk_token '?!'", "\"unk_token\": null", "\"unk_token\": \"?!\""},
        BadFile{"added_tokens[0].content", "\"content\"", "\"contents\""},
        BadFile{"added_tokens[0].id", "\"id\"", "\"number\""},
        BadFile{"added_tokens[0].special", "\"special\":true", "\"special\":1"},
        BadFile{"belongs to both", "\"id\":300", "\"id\":65"},
        BadFile{"in model.vocab and", "\"<s>\"", "\"ab\""},
        BadFile{"listed twice", "\"added_tokens\": [",
                "\"added_tokens\": [{\"id\":300,\"content\":\"<s>\"},"},
        BadFile{"normalizer 'Lowercase'", "\"normalizer\": null",
                "\"normalizer\": {\"type\":\"Lowercase\"}"},
        BadFile{"pre_tokenizer 'Metaspace'", "\"Split\"", "\"Metaspace\""},
        BadFile{"split behavior 'Cut'", "\"Isolated\"", "\"Cut\""},
        BadFile{"regular expression", "\\\\s+", "(\\\\s+"},
        BadFile{"pre_tokenizer.pattern", "\"pattern\"", "\"patterns\""},
        BadFile{"post_processor 'BertProcessing'", "\"post_processor\": {\"type\":\"ByteLevel\"}",
                "\"post_processor\": {\"type\":\"BertProcessing\"}"},
        BadFile{
            "names id 999", "\"post_processor\": {\"type\":\"ByteLevel\"}",
            "\"post_processor\": {\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
            "{\"id\":\"x\"}},{\"Sequence\":{}}],\"special_tokens\":{\"x\":{\"ids\":[999]}}}"},
        BadFile{"decoder 'WordPiece'", "\"decoder\": {\"type\":\"ByteLevel\"}",
                "\"decoder\": {\"type\":\"WordPiece\"}"},
        BadFile{"decoder is missing", "\"decoder\"", "\"decoders\""},
        BadFile{"do not agree on ByteLevel", "\"decoder\": {\"type\":\"ByteLevel\"}",
                "\"decoder\": {\"type\":\"Fuse\"}"}));

TEST(TokenizerFile, EveryTruncationIsRefused) {
  const std::string file = testing::tokenizer_json({.merges = {{"a", "b"}}});
  for (std::size_t length = 0; length < file.size(); length += 37)
    EXPECT_THROW(Tokenizer::from_json(file.substr(0, length)), Error) << length;
}

TEST(TokenizerFile, RandomDamageNeverCrashes) {
  const std::string file = testing::tokenizer_json(testing::deepseek_spec());
  std::mt19937 random(3);
  for (int i = 0; i < 300; ++i) {
    std::string damaged = file;
    for (int n = 0; n < 3; ++n) damaged[random() % damaged.size()] = static_cast<char>(random());
    try {
      Tokenizer::from_json(damaged).encode("a1 b");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::kConfiguration);
    }
  }
}

TEST(TokenizerFile, MissingFileSaysSo) {
  const testing::TempDir dir;
  EXPECT_THROW(Tokenizer::load(dir.path()), Error);
}

}  // namespace
}  // namespace tandem
