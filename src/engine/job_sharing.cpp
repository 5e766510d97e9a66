#include "engine/job_sharing.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "engine/request_exchange.h"
#include "prompts/chat_template.h"

namespace tandem {
namespace {

SharedJob share(const HostComm& world, const std::string& name,
                const std::function<ResolvedJob()>& read) {
  ResolvedJob own;
  std::string yaml;
  std::string output_file;
  world.together([&] {
    if (world.rank() != 0) return;
    own = read();
    yaml = own.resolved_yaml;
    output_file = expand_output_file(own.config, utc_now_compact());
  });
  world.bcast(yaml);
  world.bcast(output_file);
  if (world.rank() != 0) own = load_job_text(yaml, name, "/");
  return {std::move(own), std::move(output_file)};
}

}  // namespace

SharedJob share_job(const HostComm& world, const std::string& job_file,
                    const std::vector<std::string>& overrides) {
  return share(world, job_file, [&] { return load_job(job_file, overrides); });
}

SharedJob share_job_text(const HostComm& world, const std::string& yaml, const std::string& name,
                         const std::vector<std::string>& overrides) {
  return share(world, name, [&] { return load_job_text(yaml, name, "/", overrides); });
}

// rank_invariant is a promise about whole subtrees of the reduction tree.
void check_determinism(const JobConfig& job, const RankLayout& layout) {
  if (job.run.determinism != DeterminismLevel::kRankInvariant) return;
  if (std::has_single_bit(static_cast<unsigned>(layout.tensor)) && layout.tensor <= 8) return;
  throw Error(ExitCode::kConfiguration,
              {.what = fmt::format("rank_invariant is not possible on {} tensor-parallel ranks",
                                   layout.tensor),
               .where = "run.determinism",
               .expected = "1, 2, 4 or 8 tensor-parallel ranks",
               .remedy = "use such a number of ranks, or run.determinism: batch_invariant"});
}

SharedPrompts share_prompts(const HostComm& world, const JobConfig& job, const ModelFiles& files,
                            const EngineLimits& limits, BadPrompts policy) {
  SharedPrompts prompts;
  std::string bytes;
  world.together([&] {
    if (world.rank() != 0) return;
    const auto chat = job.prompts.chat_template == ChatTemplateChoice::kNone
                          ? ChatTemplate::none()
                          : ChatTemplate::detect(job.model.path);
    const auto usable_ids =
        std::min<std::int64_t>(files.config.vocab_size, files.tokenizer.vocab_size());
    auto batch =
        load_prompt_batch(job.prompts.file, files.tokenizer, chat, job,
                          limits.scheduler.max_context, static_cast<int>(usable_ids), policy);
    for (const auto& warning : batch.warnings) log_warning("{}", warning);
    prompts = {std::move(batch.requests), std::move(batch.sha256)};
    bytes = serialize_requests(prompts.requests);
  });
  world.bcast(bytes);
  world.bcast(prompts.sha256);
  if (world.rank() != 0) prompts.requests = deserialize_requests(bytes);
  return prompts;
}

}  // namespace tandem
