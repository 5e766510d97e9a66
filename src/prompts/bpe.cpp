#include "prompts/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/hash.h"
#include "prompts/byte_level.h"
#include "prompts/utf8.h"

namespace tandem {
namespace {

constexpr std::size_t kCacheSlots = std::size_t{1} << 17;  // 8 MiB
// Up to here scanning all ranks for the lowest beats a heap; beyond, its square would hurt.
constexpr std::size_t kShortSymbols = 64;
constexpr std::int32_t kNoRank = std::numeric_limits<std::int32_t>::max();

std::uint64_t pair_of(std::int32_t left, std::int32_t right) {
  return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 | static_cast<std::uint32_t>(right);
}

// Finalizer of MurmurHash3: every bit of the pair reaches the low bits that pick the slot.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDull;
  x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53ull;
  return x ^ x >> 33;
}

[[noreturn]] void refuse(std::string what) {
  throw Error(ExitCode::kConfiguration,
              {.what = std::move(what), .where = {}, .expected = {}, .remedy = {}});
}

}  // namespace

Bpe::Bpe(BpeModel model)
    : vocab_(std::move(model.vocab)),
      byte_level_(model.byte_level),
      ignore_merges_(model.ignore_merges),
      fuse_unknown_(model.fuse_unknown),
      cache_(kCacheSlots) {
  const auto find = [this](const std::string& token) {
    const auto it = vocab_.find(token);
    return it == vocab_.end() ? -1 : it->second;
  };
  if (model.unknown) {
    unknown_id_ = find(*model.unknown);
    if (unknown_id_ < 0)
      refuse(fmt::format("unk_token '{}' is not in the vocabulary", *model.unknown));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = find(std::string(byte_to_character(static_cast<unsigned char>(byte))));
    fallback_ids_[byte] = model.byte_fallback ? find(fmt::format("<0x{:02X}>", byte)) : -1;
    // The reference library would drop such a byte from the prompt without a word.
    if (byte_level_ && byte_ids_[byte] < 0) {
      if (unknown_id_ < 0)
        refuse(fmt::format("the vocabulary has no token for byte 0x{:02X}", byte));
      byte_ids_[byte] = unknown_id_;
    }
  }
  merges_.resize(std::bit_ceil(model.merges.size() * 2 + 2));
  for (std::size_t rank = 0; rank < model.merges.size(); ++rank) {
    const auto& [left, right] = model.merges[rank];
    const std::int32_t left_id = find(left), right_id = find(right), id = find(left + right);
    if (left_id < 0 || right_id < 0 || id < 0)
      refuse(fmt::format("merge {} ('{}' + '{}') names '{}', which is not in the vocabulary", rank,
                         left, right,
                         left_id < 0    ? left
                         : right_id < 0 ? right
                                        : left + right));
    insert_merge(left_id, right_id, {static_cast<std::int32_t>(rank), id});
  }
}

void Bpe::insert_merge(std::int32_t left, std::int32_t right, Merge merge) {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = merges_.size() - 1;
  std::size_t at = mix(pair) & mask;
  while (merges_[at].pair != kNoPair && merges_[at].pair != pair) at = (at + 1) & mask;
  merges_[at] = {pair, merge};  // of equal pairs the last counts, as in the reference library
}

const Bpe::Merge* Bpe::find_merge(std::int32_t left, std::int32_t right) const {
  const std::uint64_t pair = pair_of(left, right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t at = mix(pair) & mask;; at = (at + 1) & mask) {
    if (merges_[at].pair == pair) return &merges_[at].merge;
    if (merges_[at].pair == kNoPair) return nullptr;
  }
}

std::optional<std::int32_t> Bpe::whole_piece(std::string_view piece) const {
  std::string key;
  if (byte_level_) {
    for (const char byte : piece) key += byte_to_character(static_cast<unsigned char>(byte));
  } else {
    key = piece;
  }
  const auto it = vocab_.find(key);
  return it == vocab_.end() ? std::nullopt : std::optional(it->second);
}

void Bpe::to_symbols(std::string_view piece) {
  symbols_.clear();
  if (byte_level_) {
    for (const char byte : piece) symbols_.push_back(byte_ids_[static_cast<unsigned char>(byte)]);
    return;
  }
  bool after_unknown = false;
  for (std::size_t at = 0; at < piece.size();) {
    const std::size_t begin = at;
    next_code_point(piece, &at);
    const std::string character(piece.substr(begin, at - begin));
    if (const auto it = vocab_.find(character); it != vocab_.end()) {
      symbols_.push_back(it->second);
      after_unknown = false;
      continue;
    }
    const bool has_bytes = std::all_of(character.begin(), character.end(), [this](char byte) {
      return fallback_ids_[static_cast<unsigned char>(byte)] >= 0;
    });
    if (has_bytes) {
      for (const char byte : character)
        symbols_.push_back(fallback_ids_[static_cast<unsigned char>(byte)]);
      after_unknown = false;
    } else if (unknown_id_ >= 0) {
      if (!after_unknown || !fuse_unknown_) symbols_.push_back(unknown_id_);
      after_unknown = true;
    }
  }
}

void Bpe::merge_short() {
  const auto rank_at = [this](std::size_t i) {
    const Merge* merge = find_merge(symbols_[i], symbols_[i + 1]);
    return merge == nullptr ? kNoRank : merge->rank;
  };
  if (symbols_.size() < 2) return;
  ranks_.resize(symbols_.size() - 1);
  for (std::size_t i = 0; i < ranks_.size(); ++i) ranks_[i] = rank_at(i);
  while (!ranks_.empty()) {
    const auto lowest = std::min_element(ranks_.begin(), ranks_.end());  // the leftmost of equals
    if (*lowest == kNoRank) return;
    const auto i = static_cast<std::size_t>(lowest - ranks_.begin());
    symbols_[i] = find_merge(symbols_[i], symbols_[i + 1])->id;
    symbols_.erase(symbols_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks_.erase(lowest);
    if (i < ranks_.size()) ranks_[i] = rank_at(i);
    if (i > 0) ranks_[i - 1] = rank_at(i - 1);
  }
}

void Bpe::merge_long() {
  struct Node {
    std::int32_t previous, next;  // -1: none
  };
  struct Candidate {
    std::int32_t rank, at, id;
    bool operator<(const Candidate& other) const {  // std::priority_queue pops the largest
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  const auto size = static_cast<std::int32_t>(symbols_.size());
  std::vector<Node> nodes(symbols_.size());
  for (std::int32_t i = 0; i < size; ++i)
    nodes[static_cast<std::size_t>(i)] = {i - 1, i + 1 < size ? i + 1 : -1};
  std::priority_queue<Candidate> queue;
  const auto symbol = [this](std::int32_t i) -> std::int32_t& {
    return symbols_[static_cast<std::size_t>(i)];
  };
  const auto node = [&nodes](std::int32_t i) -> Node& {
    return nodes[static_cast<std::size_t>(i)];
  };
  const auto propose = [&](std::int32_t at) {
    if (at < 0 || node(at).next < 0) return;
    if (const Merge* merge = find_merge(symbol(at), symbol(node(at).next)))
      queue.push({merge->rank, at, merge->id});
  };
  for (std::int32_t i = 0; i + 1 < size; ++i) propose(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    // Candidates are never withdrawn: one whose symbols have changed since has another rank now.
    if (symbol(top.at) < 0 || node(top.at).next < 0) continue;
    const std::int32_t right = node(top.at).next;
    const Merge* merge = find_merge(symbol(top.at), symbol(right));
    if (merge == nullptr || merge->rank != top.rank) continue;
    symbol(top.at) = top.id;
    symbol(right) = -1;
    node(top.at).next = node(right).next;
    if (node(right).next >= 0) node(node(right).next).previous = top.at;
    propose(node(top.at).previous);
    propose(top.at);
  }
  std::erase(symbols_, -1);
}

void Bpe::encode(std::string_view piece, std::vector<std::int32_t>* ids) {
  CacheSlot* slot = nullptr;
  if (!piece.empty() && piece.size() <= CacheSlot::kMaxBytes) {
    slot = &cache_[xxh3_64(piece) & (kCacheSlots - 1)];
    if (slot->num_bytes == piece.size() &&
        std::memcmp(slot->bytes, piece.data(), piece.size()) == 0) {
      ids->insert(ids->end(), slot->ids, slot->ids + slot->num_ids);
      return;
    }
  }
  const std::optional<std::int32_t> whole =
      ignore_merges_ ? whole_piece(piece) : std::optional<std::int32_t>();
  if (whole) {
    symbols_.assign(1, *whole);
  } else {
    to_symbols(piece);
    symbols_.size() <= kShortSymbols ? merge_short() : merge_long();
  }
  ids->insert(ids->end(), symbols_.begin(), symbols_.end());
  if (slot != nullptr && symbols_.size() <= CacheSlot::kMaxIds) {
    slot->num_bytes = static_cast<std::uint8_t>(piece.size());
    slot->num_ids = static_cast<std::uint8_t>(symbols_.size());
    std::memcpy(slot->bytes, piece.data(), piece.size());
    std::copy(symbols_.begin(), symbols_.end(), slot->ids);
  }
}

}  // namespace tandem
