#include "prompts/pre_tokenizer.h"

#include <algorithm>
#include <utility>

namespace tandem {

const char* const kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PreTokenizer::PreTokenizer(const std::vector<PreTokenizerStep>& steps) {
  for (const PreTokenizerStep& spec : steps) {
    Step step{spec, std::nullopt};
    if (spec.kind == PreTokenizerStep::Kind::kRegex) step.regex.emplace(spec.pattern);
    steps_.push_back(std::move(step));
  }
}

bool PreTokenizer::find(Step& step, std::string_view piece, std::size_t from, RegexMatch* match) {
  if (step.regex) return step.regex->find(piece, from, match);
  const std::size_t begin = piece.find(step.spec.pattern, from);
  if (begin == std::string_view::npos) return false;
  *match = {begin, begin + step.spec.pattern.size()};
  return true;
}

void PreTokenizer::split_piece(Step& step, std::string_view piece) {
  const bool invert = step.spec.invert;
  const auto keep = [&](std::size_t begin, std::size_t end) {
    if (begin < end) next_.push_back(piece.substr(begin, end - begin));
  };
  parts_.clear();
  const auto add = [&](std::size_t begin, std::size_t end, bool is_match) {
    if (step.spec.behavior == SplitBehavior::kIsolated) {
      keep(begin, end);
    } else if (begin < end) {
      parts_.push_back({begin, end, is_match != invert});
    }
  };
  std::size_t done = 0;
  std::size_t from = 0;
  RegexMatch match;
  while (from <= piece.size() && find(step, piece, from, &match)) {
    add(done, match.begin, false);
    add(match.begin, match.end, true);
    done = match.end;
    from = match.end;
    if (match.begin == match.end) {  // step over one character, not one byte
      do ++from;
      while (from < piece.size() && (static_cast<unsigned char>(piece[from]) & 0xC0) == 0x80);
    }
  }
  add(done, piece.size(), false);

  switch (step.spec.behavior) {
    case SplitBehavior::kIsolated:
      return;
    case SplitBehavior::kRemoved:
      for (const Part& part : parts_)
        if (!part.is_match) keep(part.begin, part.end);
      return;
    case SplitBehavior::kContiguous:
      for (std::size_t i = 0; i < parts_.size();) {
        std::size_t j = i + 1;
        while (j < parts_.size() && parts_[j].is_match == parts_[i].is_match) ++j;
        keep(parts_[i].begin, parts_[j - 1].end);
        i = j;
      }
      return;
    // Of several matches in a row only the one that touches the other text joins it.
    case SplitBehavior::kMergedWithPrevious:
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        const bool joins = !parts_[i].is_match && i + 1 < parts_.size() && parts_[i + 1].is_match;
        keep(parts_[i].begin, parts_[joins ? i + 1 : i].end);
        if (joins) ++i;
      }
      return;
    case SplitBehavior::kMergedWithNext: {
      const std::size_t first = next_.size();
      for (std::size_t i = parts_.size(); i-- > 0;) {
        const bool joins = !parts_[i].is_match && i > 0 && parts_[i - 1].is_match;
        keep(parts_[joins ? i - 1 : i].begin, parts_[i].end);
        if (joins) --i;
      }
      std::reverse(next_.begin() + static_cast<std::ptrdiff_t>(first), next_.end());
      return;
    }
  }
}

const std::vector<std::string_view>& PreTokenizer::split(std::string_view text) {
  owned_.clear();
  pieces_.clear();
  if (!text.empty()) pieces_.push_back(text);
  for (Step& step : steps_) {
    next_.clear();
    for (const std::string_view piece : pieces_) {
      if (step.spec.kind != PreTokenizerStep::Kind::kPrefixSpace) {
        split_piece(step, piece);
      } else if (piece.starts_with(' ')) {
        next_.push_back(piece);
      } else {
        next_.push_back(owned_.emplace_back(" " + std::string(piece)));
      }
    }
    pieces_.swap(next_);
  }
  return pieces_;
}

}  // namespace tandem
