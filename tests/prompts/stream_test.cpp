// Incremental decoding and stop strings: never different from looking at the whole text at once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "prompts/stop_matcher.h"
#include "prompts/stream_decoder.h"
#include "tests/prompts/tokenizer_fixture.h"
#include "tests/support/test_data.h"

namespace tandem {
namespace {

using Ids = std::vector<std::int32_t>;

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(testing::test_data("tiny-qwen3.8"));
  return tokenizer;
}

Request request_with(std::vector<std::string> stop, StopScope scope = StopScope::kAnswer,
                     bool thinking = false) {
  Request request;
  request.sampling.stop = std::move(stop);
  request.sampling.stop_scope = scope;
  request.thinking = thinking;
  return request;
}

TEST(StreamDecoder, PiecesAddUpToTheWholeForAnyIds) {
  std::mt19937 random(4);
  for (int round = 0; round < 200; ++round) {
    Ids ids;
    // Mostly single bytes (ids below 256), so that characters are cut and damaged often.
    for (int n = static_cast<int>(random() % 30); n > 0; --n)
      ids.push_back(
          static_cast<std::int32_t>(random() % 3 == 0 ? random() % 4100 : random() % 256));
    for (const SpecialTokens special : {SpecialTokens::kSkip, SpecialTokens::kKeep}) {
      StreamDecoder decoder(tiny(), special);
      std::string text;
      for (const std::int32_t id : ids) {
        decoder.push(id, &text);
        EXPECT_EQ(find_invalid_utf8(text), std::string_view::npos);
      }
      decoder.finish(&text);
      EXPECT_EQ(text, tiny().decode(ids, special));
    }
  }
}

TEST(StreamDecoder, EveryPrefixIsAPrefixOfTheWhole) {
  const Ids ids = tiny().encode("a\U0001F600\u4e2d\u6587 \U0001F468\u200d\U0001F469 end");
  const std::string whole = tiny().decode(ids, SpecialTokens::kKeep);
  StreamDecoder decoder(tiny(), SpecialTokens::kKeep);
  std::string text;
  for (const std::int32_t id : ids) {
    decoder.push(id, &text);
    EXPECT_EQ(text, whole.substr(0, text.size()));
  }
  EXPECT_EQ(text, whole);
}

TEST(StreamDecoder, HoldsBackHalfACharacter) {
  const Tokenizer bytes = testing::make_tokenizer({.merges = {}});
  StreamDecoder decoder(bytes, SpecialTokens::kKeep);
  std::string text;
  for (const std::int32_t id : {0xF0, 0x9F, 0x98}) {
    decoder.push(id, &text);
    EXPECT_EQ(text, "");
  }
  decoder.push(0x80, &text);
  EXPECT_EQ(text, "\U0001F600");
  decoder.push(0xE4, &text);
  decoder.push('x', &text);
  EXPECT_EQ(text, "\U0001F600\ufffdx");
}

struct Outcome {
  std::optional<std::int64_t> token;
  std::string text;
  int stop = -1;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const Ids& ids, const Request& request, std::size_t per_round) {
  StopMatcher matcher(tiny(), request);
  const std::span<const std::int32_t> all(ids);
  std::optional<StopHit> hit;
  for (std::size_t at = 0; at < ids.size() && !hit; at += per_round)
    hit = matcher.push(all.subspan(at, std::min(per_round, ids.size() - at)));
  if (!hit) hit = matcher.finish();
  Outcome out{std::nullopt, matcher.text(), -1};
  if (hit) {
    EXPECT_EQ(matcher.text().size(), hit->text_bytes);
    EXPECT_EQ(matcher.num_tokens(), hit->token + 1);
    out.token = hit->token;
    out.stop = hit->stop;
  }
  return out;
}

TEST(StopMatcher, AgreesWithSearchingTheWholeTextAtEachToken) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    Ids ids;
    std::string alphabet = "ab\n";
    for (int n = 0; n < 60; ++n)
      ids.push_back(tiny().encode(std::string(1, alphabet[random() % 3])).front());
    std::vector<std::string> stops;
    for (int n = 0; n < 3; ++n) {
      std::string stop;
      for (int length = 3 + static_cast<int>(random() % 4); length > 0; --length)
        stop += alphabet[random() % 3];
      stops.push_back(stop);
    }
    Outcome expected{std::nullopt, tiny().decode(ids, SpecialTokens::kSkip), -1};
    for (std::size_t n = 1; n <= ids.size() && !expected.token; ++n) {
      const std::string text = tiny().decode(std::span(ids).first(n), SpecialTokens::kSkip);
      for (std::size_t i = 0; i < stops.size(); ++i) {
        const std::size_t at = text.find(stops[i]);
        if (at == std::string::npos || (expected.token && expected.text.size() <= at)) continue;
        expected = {static_cast<std::int64_t>(n) - 1, text.substr(0, at), static_cast<int>(i)};
      }
    }
    const Request request = request_with(stops);
    for (const std::size_t per_round : {1u, 2u, 4u, 100u})
      EXPECT_EQ(run(ids, request, per_round), expected);
  }
}

TEST(StopMatcher, FindsStopsAcrossTokensAndInsideCharacters) {
  const Ids ids = tiny().encode("Answer: \u4e2d\u6587\u3002 Question: next");
  EXPECT_EQ(run(ids, request_with({"Question:"}), 1).text, "Answer: \u4e2d\u6587\u3002 ");
  EXPECT_EQ(run(ids, request_with({"\u6587\u3002"}), 3).text, "Answer: \u4e2d");
  EXPECT_EQ(run(ids, request_with({"absent"}), 2).token, std::nullopt);
}

TEST(StopMatcher, AnswerScopeSkipsThinking) {
  const Ids ids = tiny().encode("maybe STOP here\n</think>\n\nfinal STOP tail");
  const Outcome answer = run(ids, request_with({"STOP"}, StopScope::kAnswer, true), 4);
  EXPECT_EQ(answer.text, "maybe STOP here\n</think>\n\nfinal ");
  EXPECT_EQ(run(ids, request_with({"STOP"}, StopScope::kAll, true), 4).text, "maybe ");
  // A stop string may not begin in front of the answer.
  const Ids border = tiny().encode("x</think>yz");
  EXPECT_EQ(run(border, request_with({">y"}, StopScope::kAnswer, true), 1).token, std::nullopt);
  EXPECT_TRUE(run(border, request_with({">y"}, StopScope::kAll, true), 1).token);
}

TEST(StopMatcher, AModelMayOpenThinkingItself) {
  const Ids ids = tiny().encode("<think>STOP</think>a STOP");
  EXPECT_EQ(run(ids, request_with({"STOP"}), 1).text, "<think>STOP</think>a ");
}

TEST(StopMatcher, CountsThinkingTokens) {
  const Ids ids = tiny().encode("abc</think>def");
  StopMatcher matcher(tiny(), request_with({}, StopScope::kAnswer, true));
  EXPECT_TRUE(matcher.in_thinking());
  matcher.push(std::span<const std::int32_t>(ids));
  const auto close = std::find(ids.begin(), ids.end(), 4095);
  EXPECT_EQ(matcher.thinking_tokens(), close - ids.begin() + 1);
  EXPECT_EQ(matcher.text().substr(matcher.answer_begin()), "def");
  EXPECT_FALSE(matcher.in_thinking());
}

TEST(StopMatcher, ASpecialTokenSpeltAsStopStops) {
  const Ids ids = tiny().encode("done<|im_end|>more");
  const Outcome out = run(ids, request_with({"<|im_end|>"}), 4);
  EXPECT_EQ(out.text, "done");
  EXPECT_EQ(ids[static_cast<std::size_t>(out.token.value())], 4093);
}

TEST(StopMatcher, TokensBehindAHitAreRefused) {
  StopMatcher matcher(tiny(), request_with({"a"}));
  EXPECT_TRUE(matcher.push(tiny().encode("a").front()));
  EXPECT_THROW(matcher.push(65), Error);
}

}  // namespace
}  // namespace tandem
