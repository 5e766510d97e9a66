#include "fake_engine.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "base/error.h"
#include "base/hash.h"

namespace tandem {
namespace {

constexpr std::uint64_t kGarbage = 0xDEAD;
constexpr std::uint64_t kZeroState = 1;

template <typename... Args>
void require(bool condition, fmt::format_string<Args...> text, Args&&... args) {
  if (!condition) throw std::logic_error(fmt::format(text, std::forward<Args>(args)...));
}

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const std::uint64_t pair[2] = {a, b};
  return xxh3_64(pair, sizeof pair);
}

std::uint64_t next_state(std::uint64_t state, std::int32_t token, bool is_prompt) {
  return mix(state, static_cast<std::uint64_t>(token) * 2 + (is_prompt ? 1 : 0));
}

std::int32_t next_token(std::uint64_t state) {
  return static_cast<std::int32_t>((state >> 7) % kFakeVocab);
}

}  // namespace

std::vector<std::int32_t> fake_reference(const Request& request, int max_context) {
  Sequence seq = make_sequence(request, 0, max_context);
  std::uint64_t state = kZeroState;
  for (int p = 0; p < seq.limit_len; ++p) {
    if (p == seq.len()) {
      seq.tokens.push_back(next_token(state));
      if (seq.tokens.back() == kFakeEos) break;
    }
    state = next_state(state, seq.tokens[static_cast<std::size_t>(p)], p < seq.prompt_len);
  }
  return seq.tokens;
}

FakeEngine::FakeEngine(const SchedulerLimits& limits, std::uint32_t seed)
    : limits_(limits),
      random_(seed),
      kv_(static_cast<std::size_t>(limits.num_pages) * static_cast<std::size_t>(limits.page_tokens),
          kGarbage),
      slots_(static_cast<std::size_t>(limits.max_sequences)),
      drafts_(static_cast<std::size_t>(limits.max_sequences)),
      snapshots_(static_cast<std::size_t>(limits.num_snapshots)) {}

const std::vector<std::uint64_t>& FakeEngine::true_states(const Sequence& seq) {
  auto& states = true_states_[seq.index];
  if (states.empty()) states.push_back(kZeroState);
  while (static_cast<int>(states.size()) <= seq.len()) {
    const auto p = states.size() - 1;
    states.push_back(
        next_state(states.back(), seq.tokens[p], static_cast<int>(p) < seq.prompt_len));
  }
  return states;  // [p]: before position p
}

void FakeEngine::check_plan(const StepPlan& plan) const {
  int prompt_rows = 0;
  int round_rows = 0;
  std::set<const Sequence*> seen;
  for (const auto& entry : plan.rounds) {
    require(seen.insert(entry.seq).second, "sequence {} is planned twice", entry.seq->index);
    require(entry.num_rows >= 1 && entry.num_rows <= limits_.max_round_rows, "{} rows in a round",
            entry.num_rows);
    round_rows += entry.num_rows;
  }
  for (const auto& chunk : plan.chunks) {
    const Sequence& seq = *chunk.seq;
    require(seen.insert(&seq).second, "sequence {} is planned twice", seq.index);
    require(chunk.num_rows >= 1 && chunk.end() <= seq.prompt_len, "sequence {}: chunk {}+{}",
            seq.index, chunk.start, chunk.num_rows);
    require(chunk.ends_prompt == (chunk.end() == seq.prompt_len), "sequence {}: ends_prompt",
            seq.index);
    if (limits_.max_batched_tokens >= kStateBlockTokens) {
      require(chunk.start % kStateBlockTokens == 0 &&
                  (chunk.ends_prompt || chunk.end() % kStateBlockTokens == 0),
              "sequence {}: chunk {}..{} of {} is cut inside a block", seq.index, chunk.start,
              chunk.end(), seq.prompt_len);
    }
    if (chunk.save_snapshot != kNoSnapshot) {
      require(chunk.end() % prefix_block_tokens(limits_.page_tokens) == 0,
              "sequence {}: snapshot inside a block, at {}", seq.index, chunk.end());
    }
    prompt_rows += chunk.num_rows;
  }
  for (const auto* seq : plan.preempted) {
    require(!seen.contains(seq), "sequence {} is preempted and planned", seq->index);
  }
  require(prompt_rows == plan.num_prompt_rows && round_rows == plan.num_round_rows, "row counts");
  require(prompt_rows <= std::max(limits_.max_batched_tokens - round_rows,
                                  std::min(kStateBlockTokens, limits_.max_batched_tokens)),
          "{} prompt rows beside {} round rows", prompt_rows, round_rows);
}

void FakeEngine::digest_plan(const StepPlan& plan) {
  const auto add = [&](auto... values) {
    ((digest_ = mix(digest_, static_cast<std::uint64_t>(values))), ...);
  };
  for (const auto& reset : plan.resets) add(1, reset.seq->index, reset.restore_snapshot);
  for (const auto& c : plan.chunks) {
    add(2, c.seq->index, c.seq->slot, c.start, c.num_rows, c.save_snapshot);
    for (const auto page : c.seq->pages) add(page);
  }
  for (const auto& entry : plan.rounds) {
    add(3, entry.seq->index, entry.seq->slot, entry.start, entry.num_rows, entry.forced);
    for (const auto page : entry.seq->pages) add(page);
  }
  for (const auto* seq : plan.preempted) add(4, seq->index);
}

void FakeEngine::check_attended(const Sequence& seq, int end) {
  const auto& states = true_states(seq);
  const State& slot = slots_[static_cast<std::size_t>(seq.slot)];
  require(slot.len == end && slot.hash == states[static_cast<std::size_t>(end)],
          "sequence {}: slot {} holds another state than that at {} (its length is {})", seq.index,
          seq.slot, end, slot.len);
  for (int p = 0; p < end; ++p) {
    const auto page = seq.pages.at(static_cast<std::size_t>(p / limits_.page_tokens));
    const auto value =
        kv_[static_cast<std::size_t>(page * limits_.page_tokens + p % limits_.page_tokens)];
    require(value == states[static_cast<std::size_t>(p) + 1],
            "sequence {}: page {} holds something else at position {}", seq.index, page, p);
  }
}

void FakeEngine::write(const Sequence& seq, int position, std::uint64_t value) {
  const auto i = static_cast<std::size_t>(position / limits_.page_tokens);
  require(i < seq.pages.size(), "sequence {} owns no page for position {}", seq.index, position);
  kv_[static_cast<std::size_t>(seq.pages[i] * limits_.page_tokens +
                               position % limits_.page_tokens)] = value;
}

void FakeEngine::run_chunk(const PromptChunk& chunk) {
  const Sequence& seq = *chunk.seq;
  require(chunk.start == seq.num_computed, "sequence {}: chunk at {}", seq.index, chunk.start);
  check_attended(seq, chunk.start);
  State& slot = slots_[static_cast<std::size_t>(seq.slot)];
  for (int p = chunk.start; p < chunk.end(); ++p) {
    slot = {next_state(slot.hash, seq.tokens[static_cast<std::size_t>(p)], true), p + 1};
    write(seq, p, slot.hash);
  }
  // The drafter starts behind the prompt.
  if (chunk.ends_prompt) {
    for (int p = chunk.end(); p <= std::min(chunk.end() + limits_.draft_tokens, seq.limit_len - 1);
         ++p) {
      write(seq, p, kGarbage);
    }
  }
}

// Returns the number of accepted rows; appends their tokens.
int FakeEngine::run_round(const RoundEntry& entry) {
  Sequence& seq = *entry.seq;
  require(entry.start == seq.num_computed, "sequence {}: round at {}", seq.index, entry.start);
  check_attended(seq, entry.start);
  // Rejected rows and the drafter write as far ahead as the plan allows.
  const int ahead =
      std::min(entry.start + entry.num_rows + limits_.draft_tokens, seq.limit_len - 1);
  for (int p = entry.start; p <= ahead; ++p) write(seq, p, kGarbage);
  State& slot = slots_[static_cast<std::size_t>(seq.slot)];
  const auto& drafts = drafts_[static_cast<std::size_t>(seq.slot)];
  const int num_known = seq.len();
  int accepted = 0;
  for (int row = 0; row < entry.num_rows; ++row) {
    const int p = entry.start + row;
    const auto token = p < num_known ? seq.tokens[static_cast<std::size_t>(p)]
                                     : drafts[static_cast<std::size_t>(p - num_known)];
    // A draft is right if it is what the row before it yielded.
    if (p >= num_known && token != seq.tokens[static_cast<std::size_t>(p)]) break;
    slot = {next_state(slot.hash, token, false), p + 1};
    write(seq, p, slot.hash);
    ++accepted;
    if (!entry.forced) {
      seq.tokens.push_back(next_token(slot.hash));
      if (has_ended(seq)) break;
    }
  }
  if (entry.forced) {
    num_forced_rows_ += accepted;
  } else {
    num_rejected_drafts_ += entry.num_rows - accepted;
  }
  return accepted;
}

void FakeEngine::propose(Sequence& seq) {
  // True continuations that go wrong somewhere, sometimes more than can be verified, sometimes
  // none.
  auto& drafts = drafts_[static_cast<std::size_t>(seq.slot)];
  drafts.clear();
  std::uint64_t state = true_states(seq)[static_cast<std::size_t>(seq.len())];
  for (auto n = random_() % static_cast<std::uint32_t>(limits_.draft_tokens + 2); n > 0; --n) {
    const auto right = next_token(state);
    drafts.push_back(random_() % 4 == 0 ? (right + 1) % kFakeVocab : right);
    state = next_state(state, right, false);
  }
  seq.num_drafts = static_cast<int>(drafts.size());
}

bool FakeEngine::has_ended(const Sequence& seq) const {
  require(seq.len() <= seq.limit_len, "sequence {} has {} of {} tokens", seq.index, seq.len(),
          seq.limit_len);
  return seq.len() == seq.limit_len || seq.tokens.back() == kFakeEos;
}

std::vector<Sequence*> FakeEngine::run_step(Scheduler& scheduler, const StepPlan& plan) {
  check_plan(plan);
  digest_plan(plan);
  for (const auto& reset : plan.resets) {
    State& slot = slots_[static_cast<std::size_t>(reset.seq->slot)];
    slot = {kZeroState, 0};
    if (reset.restore_snapshot != kNoSnapshot) {
      slot = snapshots_[static_cast<std::size_t>(reset.restore_snapshot)];
      ++num_restores_;
    }
  }
  for (const auto& chunk : plan.chunks) run_chunk(chunk);
  for (const auto& chunk : plan.chunks) {
    if (chunk.save_snapshot != kNoSnapshot) {
      snapshots_[static_cast<std::size_t>(chunk.save_snapshot)] =
          slots_[static_cast<std::size_t>(chunk.seq->slot)];
    }
  }
  std::vector<Sequence*> ended;
  for (const auto& chunk : plan.chunks) {
    Sequence& seq = *chunk.seq;
    if (chunk.yields_token) {
      seq.tokens.push_back(next_token(slots_[static_cast<std::size_t>(seq.slot)].hash));
    }
    scheduler.complete_chunk(chunk);
    if (chunk.yields_token && has_ended(seq)) ended.push_back(&seq);
  }
  for (const auto& entry : plan.rounds) {
    const int accepted = run_round(entry);
    scheduler.complete_round(entry, accepted);
    if (!entry.forced && has_ended(*entry.seq)) ended.push_back(entry.seq);
  }
  for (const auto& chunk : plan.chunks) {
    if (chunk.ends_prompt) propose(*chunk.seq);
  }
  for (const auto& entry : plan.rounds) propose(*entry.seq);
  for (auto* seq : ended) scheduler.finish(*seq);
  return ended;
}

}  // namespace tandem
