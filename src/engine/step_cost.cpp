#include "engine/step_cost.h"

#include "layers/vocab.h"

namespace tandem {

StepCost decode_step_cost(const MemoryPlan& plan, const ModelConfig& config,
                          TensorParallel tensor_parallel) {
  const auto& shape = plan.limits.shape;
  StepCost cost;
  // The embedding is looked up, not read, unless the head is tied to it.
  cost.weight_bytes = static_cast<std::int64_t>(plan.counts.bytes(std::string(parts::kWeights)));
  if (!config.tie_word_embeddings) {
    cost.weight_bytes -= make_vocab_shard(config.vocab_size, tensor_parallel).padded_rows *
                         config.hidden_size * static_cast<std::int64_t>(dtype_bytes(DType::kBF16));
  }
  cost.state_bytes = 2 * config.num_layers_of(LayerType::kLinearAttention) *
                     (config.linear_num_value_heads / tensor_parallel.size) *
                     config.linear_key_head_dim * config.linear_value_head_dim *
                     static_cast<std::int64_t>(sizeof(float));
  // A drafter's own layers have pages too, which a step without drafts does not read.
  cost.kv_bytes_per_token = target_page_bytes(config, shape, tensor_parallel) / shape.page_tokens;
  return cost;
}

}  // namespace tandem
