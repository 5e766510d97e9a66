// Qwen3.8-27B's family: a dense hybrid of Gated DeltaNet and gated attention, with an MTP head.
#pragma once

#include <memory>

#include "models/model.h"

namespace tandem {

std::unique_ptr<Model> make_qwen3_8(const ModelInputs& inputs);

}  // namespace tandem
