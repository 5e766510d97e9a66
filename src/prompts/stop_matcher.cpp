#include "prompts/stop_matcher.h"

#include <algorithm>

#include "base/error.h"

namespace tandem {

StopMatcher::StopMatcher(const Tokenizer& tokenizer, const Request& request)
    : decoder_(tokenizer, SpecialTokens::kSkip),
      stops_(request.sampling.stop),
      scope_(request.sampling.stop_scope),
      think_open_(tokenizer.token_id("<think>")),
      think_close_(tokenizer.token_id("</think>")),
      in_thinking_(request.thinking) {
  for (const std::string& stop : stops_) {
    TANDEM_CHECK(!stop.empty(), "an empty stop string");
    stop_ids_.push_back(tokenizer.token_id(stop));
  }
}

std::optional<StopHit> StopMatcher::push(std::int32_t id) {
  TANDEM_CHECK(!stopped_, "a token behind the stop string");
  const std::size_t old_size = text_.size();
  const bool was_thinking = in_thinking_;
  ++num_tokens_;
  decoder_.push(id, &text_);
  if (id == think_open_) in_thinking_ = true;
  if (was_thinking || in_thinking_) ++thinking_tokens_;
  if (id == think_close_ && in_thinking_) {
    in_thinking_ = false;
    answer_begin_ = text_.size();
  }
  if (scope_ == StopScope::kAnswer && (was_thinking || in_thinking_)) return std::nullopt;
  return search(old_size, id);
}

std::optional<StopHit> StopMatcher::push(std::span<const std::int32_t> ids) {
  for (const std::int32_t id : ids)
    if (const std::optional<StopHit> hit = push(id)) return hit;
  return std::nullopt;
}

std::optional<StopHit> StopMatcher::finish() {
  if (stopped_) return std::nullopt;
  const std::size_t old_size = text_.size();
  decoder_.finish(&text_);
  if (num_tokens_ == 0 || (scope_ == StopScope::kAnswer && in_thinking_)) return std::nullopt;
  return search(old_size, std::nullopt);
}

std::optional<StopHit> StopMatcher::search(std::size_t old_size, std::optional<std::int32_t> id) {
  const std::size_t scope_begin = scope_ == StopScope::kAnswer ? answer_begin_ : 0;
  std::optional<StopHit> best;
  for (std::size_t i = 0; i < stops_.size(); ++i) {
    const std::string& stop = stops_[i];
    // What lay wholly in the old text was looked at before.
    const std::size_t reach = stop.size() - 1;
    const std::size_t from = std::max(scope_begin, old_size > reach ? old_size - reach : 0);
    std::size_t at = text_.find(stop, from);
    if (at == std::string::npos && id && stop_ids_[i] == id) at = text_.size();
    if (at == std::string::npos || (best && best->text_bytes <= at)) continue;
    best = StopHit{num_tokens_ - 1, at, static_cast<int>(i)};
  }
  if (best) {
    text_.resize(best->text_bytes);
    stopped_ = true;
  }
  return best;
}

}  // namespace tandem
