// Finds the first stop string in the text of one growing completion. Works token by token, so the
// result does not depend on how many tokens a decoding round delivers. End-of-sequence ids are the
// engine's business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "prompts/request.h"
#include "prompts/stream_decoder.h"
#include "prompts/tokenizer.h"

namespace tandem {

struct StopHit {
  std::int64_t token = 0;      // 0-based completion token that completed the stop string
  std::size_t text_bytes = 0;  // the text is cut here, in front of the stop string
  int stop = 0;                // which entry of SamplingParams::stop
};

// Text is what Tokenizer::decode(completion, kSkip) gives. With StopScope::kAnswer only text behind
// a thinking block counts: a request whose prompt ends inside one starts in it, and a completion
// may open one itself ("<think>"). A stop string that is the exact text of an added token also
// stops at that token, although special tokens do not appear in the text. If several stop strings
// end in the same token, the one that begins first wins, then the earlier in the list.
class StopMatcher {
 public:
  StopMatcher(const Tokenizer& tokenizer, const Request& request);

  // The first hit ends the matcher: later tokens are refused (broken invariant).
  std::optional<StopHit> push(std::int32_t id);
  // Stops at the first hit and leaves the tokens behind it unread.
  std::optional<StopHit> push(std::span<const std::int32_t> ids);
  // The completion ended otherwise: an unfinished character becomes U+FFFD, which may itself
  // complete a stop string.
  std::optional<StopHit> finish();

  // Text so far; after a hit, the text that is kept.
  const std::string& text() const { return text_; }
  // Tokens seen; after a hit, including the token of the hit.
  std::int64_t num_tokens() const { return num_tokens_; }
  // Of these, tokens inside thinking blocks, their closing "</think>" included.
  std::int64_t thinking_tokens() const { return thinking_tokens_; }
  bool in_thinking() const { return in_thinking_; }
  // Where the answer begins in text(): behind the last "</think>"; 0 without a thinking block;
  // text().size() while inside one.
  std::size_t answer_begin() const { return in_thinking_ ? text_.size() : answer_begin_; }

 private:
  // Looks at text_ from old_size on; `id` is the token that brought it.
  std::optional<StopHit> search(std::size_t old_size, std::optional<std::int32_t> id);

  StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::vector<std::optional<std::int32_t>> stop_ids_;  // [stops] added tokens spelled as stops
  StopScope scope_;
  std::optional<std::int32_t> think_open_;
  std::optional<std::int32_t> think_close_;
  std::string text_;
  std::size_t answer_begin_ = 0;
  std::int64_t num_tokens_ = 0;
  std::int64_t thinking_tokens_ = 0;
  bool in_thinking_ = false;
  bool stopped_ = false;
};

}  // namespace tandem
