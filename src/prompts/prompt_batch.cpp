#include "prompts/prompt_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "base/hash.h"
#include "prompts/prompt_line.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

// Enough to see what is wrong with a file; a file of another format would list every line.
constexpr std::size_t kMaxListedFaults = 50;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string read_prompt_file(const fs::path& path) {
  std::error_code ignored;
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  // Copying nothing at all would set failbit on `out`.
  const bool has_bytes = in && in.peek() != std::ifstream::traits_type::eof();
  if (has_bytes) out << in.rdbuf();
  if (!fs::is_regular_file(path, ignored) || !in.is_open() || in.bad() || !out)
    throw Error(ExitCode::kPrompts, {.what = "the prompt file cannot be read",
                                     .where = path.string(),
                                     .expected = "a readable JSONL file",
                                     .remedy = "check prompts.file in the job file"});
  return std::move(out).str();
}

bool is_blank(std::string_view line) {
  return line.find_first_not_of(" \t\r") == std::string_view::npos;
}

SamplingParams sampling_for(const SamplingSection& job, const SamplingOverrides& line) {
  SamplingParams out;
  out.temperature = static_cast<float>(line.temperature.value_or(job.temperature));
  out.top_p = static_cast<float>(line.top_p.value_or(job.top_p));
  out.top_k = line.top_k.value_or(job.top_k);
  out.min_p = static_cast<float>(line.min_p.value_or(job.min_p));
  out.seed = line.seed.value_or(job.seed);
  out.max_tokens = line.max_tokens.value_or(job.max_tokens);
  out.stop = line.stop.value_or(job.stop);
  out.stop_scope = job.stop_scope;
  out.ignore_eos = line.ignore_eos.value_or(job.ignore_eos);
  return out;
}

class BatchLoader {
 public:
  BatchLoader(const Tokenizer& tokenizer, const ChatTemplate& chat_template,
              const JobConfig& config, int max_context, int vocab_limit)
      : tokenizer_(tokenizer),
        template_(chat_template),
        config_(config),
        max_context_(max_context),
        vocab_limit_(vocab_limit),
        think_open_(tokenizer.token_id("<think>")),
        think_close_(tokenizer.token_id("</think>")) {}

  // One non-blank line; its faults end up in the request's invalid_reason and in faults().
  Request read(std::string_view text, int number) {
    std::vector<std::string> faults;
    if (number == 1 && text.starts_with(kByteOrderMark)) {
      faults.push_back("the file begins with a byte order mark; save it as UTF-8 without one");
      text.remove_prefix(kByteOrderMark.size());
    }
    PromptLine line = parse_prompt_line(text, &faults);
    Request request;
    request.line = number;
    request.sampling = sampling_for(config_.sampling, line.sampling);
    request.tags = std::move(line.tags);
    request.reference = std::move(line.reference);
    claim_id(line.id, &request, &faults);
    if (!line.model.empty() && num_models_++ == 0) first_model_ = line.model;
    // A prompt is rendered only from a line that was read without a fault: what else is wrong would
    // mostly be a consequence.
    if (faults.empty()) fill_prompt(std::move(line), &request, &faults);
    for (const std::string& fault : faults) {
      faults_.emplace_back(number, fault);
      request.invalid_reason += (request.invalid_reason.empty() ? "" : "; ") + fault;
    }
    return request;
  }

  const std::vector<std::pair<int, std::string>>& faults() const { return faults_; }

  std::vector<std::string> warnings() const {
    std::vector<std::string> out;
    if (num_ignored_thinking_ > 0)
      out.push_back(
          fmt::format("thinking is on for {} requests, but the checkpoint's chat template "
                      "({}) has no switch for it: they are rendered without",
                      num_ignored_thinking_, template_.family()));
    if (num_special_text_ > 0)
      out.push_back(
          fmt::format("{} requests spell special tokens inside their messages (first in "
                      "line {}): they count as those tokens, not as text",
                      num_special_text_, first_special_text_));
    if (num_models_ > 0)
      out.push_back(
          fmt::format("{} requests name a model (\"{}\"): ignored, the job file's is used",
                      num_models_, first_model_));
    if (num_over_context_ > 0)
      out.push_back(
          fmt::format("{} requests may reach the context limit of {} tokens before their "
                      "max_tokens",
                      num_over_context_, max_context_));
    return out;
  }

 private:
  void claim_id(const std::string& id, Request* request, std::vector<std::string>* faults) {
    if (!id.empty()) {
      const auto [first, is_new] = ids_.emplace(id, request->line);
      if (is_new) {
        request->id = id;
        return;
      }
      faults->push_back(fmt::format("id \"{}\" was used before, in line {}", id, first->second));
    }
    request->id = fmt::format("line-{}", request->line);
    while (!ids_.emplace(request->id, request->line).second) request->id += '+';
  }

  void fill_prompt(PromptLine line, Request* request, std::vector<std::string>* faults) {
    switch (line.input) {
      case PromptLine::Input::kTokens:
        request->prompt_ids = std::move(line.tokens);
        request->thinking = ends_in_thinking(request->prompt_ids);
        break;
      case PromptLine::Input::kText:
        if (line.text.empty()) return faults->push_back("the prompt is empty");
        request->prompt_ids = tokenizer_.with_prompt_specials(tokenizer_.encode(line.text));
        request->prompt_text = std::move(line.text);
        request->thinking = ends_in_thinking(request->prompt_ids);
        break;
      case PromptLine::Input::kMessages:
        if (!render(std::move(line), request, faults)) return;
        break;
      case PromptLine::Input::kNone:
        TANDEM_CHECK(false, "a line without a prompt has a fault");
    }
    check_ids(*request, faults);
  }

  bool render(PromptLine line, Request* request, std::vector<std::string>* faults) {
    // The same for every such line, and not the prompt file's fault.
    if (!template_.usable() && config_.prompts.chat_template != ChatTemplateChoice::kNone)
      throw Error(ExitCode::kConfiguration,
                  {.what = "messages cannot be rendered: " + template_.reason(),
                   .where = fmt::format("line {}", request->line),
                   .expected = {},
                   .remedy = {}});
    line.conversation.options.thinking = line.thinking.value_or(config_.prompts.thinking);
    RenderedPrompt prompt;
    try {
      prompt = template_.render(line.conversation);
    } catch (const Error& e) {
      if (e.code() != ExitCode::kPrompts) throw;
      faults->push_back(e.what());
      return false;
    }
    if (line.conversation.options.thinking && !template_.has_thinking_switch())
      ++num_ignored_thinking_;
    if (spells_special_token(line.conversation) && num_special_text_++ == 0)
      first_special_text_ = request->line;
    request->prompt_ids = tokenizer_.encode(prompt.text);
    request->prompt_text = std::move(prompt.text);
    request->thinking = prompt.thinking;
    return true;
  }

  bool spells_special_token(const Conversation& conversation) const {
    for (const ChatMessage& message : conversation.messages)
      for (const std::string& part : message.parts)
        if (tokenizer_.spells_special_token(part)) return true;
    return false;
  }

  // A rendered prompt given as text or ids: inside a thinking block if one was opened and not
  // closed since the last special token, that is, in the turn the model is to continue.
  bool ends_in_thinking(const std::vector<std::int32_t>& ids) const {
    for (auto id = ids.rbegin(); id != ids.rend(); ++id) {
      if (*id == think_open_) return true;
      if (*id == think_close_ || tokenizer_.is_special(*id)) return false;
    }
    return false;
  }

  void check_ids(const Request& request, std::vector<std::string>* faults) {
    const auto& ids = request.prompt_ids;
    const auto bad = std::find_if(ids.begin(), ids.end(),
                                  [this](std::int32_t id) { return id < 0 || id >= vocab_limit_; });
    if (bad != ids.end())
      faults->push_back(fmt::format("token {} of the prompt is id {}; expected 0 to {}",
                                    bad - ids.begin(), *bad, vocab_limit_ - 1));
    const auto num_tokens = static_cast<std::int64_t>(ids.size());
    if (num_tokens == 0) {
      faults->push_back("the prompt is empty");
    } else if (num_tokens >= max_context_) {
      faults->push_back(
          fmt::format("the prompt has {} tokens, which leaves no room for an answer in the context "
                      "of {} tokens",
                      num_tokens, max_context_));
    } else if (num_tokens + request.sampling.max_tokens > max_context_) {
      ++num_over_context_;
    }
  }

  const Tokenizer& tokenizer_;
  const ChatTemplate& template_;
  const JobConfig& config_;
  int max_context_;
  int vocab_limit_;
  std::optional<std::int32_t> think_open_;
  std::optional<std::int32_t> think_close_;
  std::unordered_map<std::string, int> ids_;         // id to the line that has it
  std::vector<std::pair<int, std::string>> faults_;  // line, fault
  int num_ignored_thinking_ = 0;
  int num_special_text_ = 0;
  int first_special_text_ = 0;
  int num_models_ = 0;
  std::string first_model_;
  int num_over_context_ = 0;
};

[[noreturn]] void refuse_batch(const fs::path& path,
                               const std::vector<std::pair<int, std::string>>& faults) {
  std::string list =
      fmt::format("{} fault{} in the prompt file", faults.size(), faults.size() == 1 ? "" : "s");
  for (std::size_t i = 0; i < std::min(faults.size(), kMaxListedFaults); ++i)
    list += fmt::format("\n  {}:{}: {}", path.string(), faults[i].first, faults[i].second);
  if (faults.size() > kMaxListedFaults)
    list += fmt::format("\n  and {} more", faults.size() - kMaxListedFaults);
  throw Error(ExitCode::kPrompts,
              {.what = std::move(list),
               .where = path.string(),
               .expected = {},
               .remedy = "mend these lines, or pass --skip-bad-prompts to record them as failed"});
}

}  // namespace

PromptBatch load_prompt_batch(const fs::path& path, const Tokenizer& tokenizer,
                              const ChatTemplate& chat_template, const JobConfig& config,
                              int max_context, int vocab_limit, BadPrompts policy) {
  const std::string data = read_prompt_file(path);
  PromptBatch batch;
  batch.sha256 = sha256_hex(data);
  const auto limit = static_cast<std::size_t>(
      std::max(config.prompts.limit.value_or(std::numeric_limits<int>::max()), 0));
  BatchLoader loader(tokenizer, chat_template, config, max_context, vocab_limit);
  for (std::size_t begin = 0; begin < data.size();) {
    const std::size_t end = std::min(data.find('\n', begin), data.size());
    std::string_view line(data.data() + begin, end - begin);
    begin = end + 1;
    ++batch.num_lines;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!is_blank(line) && batch.requests.size() < limit)
      batch.requests.push_back(loader.read(line, batch.num_lines));
  }
  if (batch.requests.empty())
    throw Error(ExitCode::kPrompts,
                {.what = "the prompt file has no requests",
                 .where = path.string(),
                 .expected = "one JSON object a line, {\"id\": \"...\", \"prompt\": \"...\"}",
                 .remedy = {}});
  if (policy == BadPrompts::kRefuse && !loader.faults().empty())
    refuse_batch(path, loader.faults());
  batch.warnings = loader.warnings();
  return batch;
}

}  // namespace tandem
