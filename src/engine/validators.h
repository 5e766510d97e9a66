// Checks of an answer that a request's tags ask for, and flags that every answer gets. They look at
// the text only and never change what is generated.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "output/records.h"
#include "prompts/request.h"

namespace tandem {

// tags: {"validate": "json"} or {"validate": ["json", "lines"]} asks for json_valid, line_count;
// exact_match is set where the request has a reference. `answer` is the text behind a thinking
// block, white space at both ends stripped before comparing.
void run_validators(const Request& request, std::string_view answer, RequestRecord& record);

// True if the completion ends in a loop: the last `period` tokens (1 to 64) repeated so often that
// they fill at least 64 tokens and at least four periods.
bool ends_in_repetition(std::span<const std::int32_t> completion_ids);

}  // namespace tandem
