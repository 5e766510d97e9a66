// One request between its arrival and its row in the result file: the scheduler's sequence and what
// is recorded along the way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "output/records.h"
#include "prompts/request.h"
#include "prompts/stop_matcher.h"
#include "scheduler/sequence.h"
#include "speculative/acceptance.h"

namespace tandem {

struct InFlight {
  InFlight(const Request& request_in, int index, int max_context, const Tokenizer& tokenizer)
      : seq(make_sequence(request_in, index, max_context)), stop(tokenizer, request_in) {}

  const Request& request() const { return *seq.request; }

  Sequence seq;
  StopMatcher stop;
  AcceptanceCounter acceptance;
  std::optional<FinishReason> finish;
  bool stop_string_hit = false;
  bool in_surplus_round = false;  // it ended while the device was at its next round already
  bool slow_machine = false;      // the canary was slow at some time of its life
  std::int64_t discarded_tokens = 0;
  double arrival_s = 0;
  std::optional<double> scheduled_s;
  std::vector<double> token_times_s;
  std::vector<std::int64_t> token_steps;
  std::vector<double> logprobs;
  std::vector<std::uint64_t> logit_hashes;
};

}  // namespace tandem
