// One line a family.
#include "base/error.h"
#include "models/model.h"
#include "models/qwen3_8.h"

namespace tandem {

std::unique_ptr<Model> make_model(const ModelInputs& inputs) {
  switch (inputs.config.family) {
    case ModelFamily::kQwen3_8:
      return make_qwen3_8(inputs);
    default:
      break;
  }
  throw Error(ExitCode::kConfiguration, {.what = "no implementation of model family " +
                                                 std::string(family_name(inputs.config.family)),
                                         .where = inputs.checkpoint.directory().string(),
                                         .expected = "Qwen3.8",
                                         .remedy = "use a checkpoint of a supported family"});
}

}  // namespace tandem
