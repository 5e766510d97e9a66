// Byte-pair encoding of one piece of text: the pair of neighbours with the lowest merge rank is
// joined, the leftmost first, until no neighbours can be joined (Sennrich et al., ACL 2016).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tandem {

struct BpeModel {
  std::unordered_map<std::string, std::int32_t> vocab;      // token text to id
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  bool byte_level = false;             // symbols are bytes, written in the byte-level alphabet
  bool ignore_merges = false;          // a piece that is itself a token is not taken apart
  bool byte_fallback = false;          // unknown characters become their bytes' "<0xE4>" tokens
  bool fuse_unknown = false;           // neighbouring unknown characters give one unknown token
  std::optional<std::string> unknown;  // token of unknown characters; without it they are dropped
};

// Not for use by several threads at once: encoding fills a cache.
class Bpe {
 public:
  // Throws Error{kConfiguration} if a merge names a token the vocabulary lacks, or a byte has no
  // token.
  explicit Bpe(BpeModel model);

  // Appends the ids of `piece`, valid UTF-8.
  void encode(std::string_view piece, std::vector<std::int32_t>* ids);

 private:
  struct Merge {
    std::int32_t rank = -1;
    std::int32_t id = -1;  // of the joined token
  };
  // Open addressing by the pair of ids; the table is never more than half full.
  struct MergeSlot {
    std::uint64_t pair = kNoPair;
    Merge merge;
  };
  // Direct-mapped: words repeat so often that a bigger or cleverer cache was no faster, and this
  // one never grows. One slot is one cache line.
  struct CacheSlot {
    static constexpr std::size_t kMaxBytes = 30;
    static constexpr std::size_t kMaxIds = 8;
    std::uint8_t num_bytes = 0;  // 0: empty
    std::uint8_t num_ids = 0;
    char bytes[kMaxBytes] = {};
    std::int32_t ids[kMaxIds] = {};
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};

  const Merge* find_merge(std::int32_t left, std::int32_t right) const;
  void insert_merge(std::int32_t left, std::int32_t right, Merge merge);
  void to_symbols(std::string_view piece);
  void merge_short();
  void merge_long();
  std::optional<std::int32_t> whole_piece(std::string_view piece) const;

  std::unordered_map<std::string, std::int32_t> vocab_;
  std::vector<MergeSlot> merges_;
  std::array<std::int32_t, 256> byte_ids_{};      // symbol of a byte, byte-level
  std::array<std::int32_t, 256> fallback_ids_{};  // its "<0xE4>" token, -1: none
  bool byte_level_;
  bool ignore_merges_;
  bool fuse_unknown_;
  std::int32_t unknown_id_ = -1;
  std::vector<CacheSlot> cache_;
  std::vector<std::int32_t> symbols_;  // of the piece at work
  std::vector<std::int32_t> ranks_;    // [symbols - 1] rank of the pair that begins there
};

}  // namespace tandem
