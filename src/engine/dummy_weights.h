// Random weights in the shapes of a checkpoint that is not there: full-size rehearsals without a
// download. A value depends on the tensor's name and the element's place in the whole tensor, so
// every number of ranks sees the same model.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "checkpoint/loader.h"

namespace tandem {

// store(dst, src, bytes) puts finished bytes at their place; the source may be reused when it
// returns.
void fill_dummy_weights(const std::vector<TensorRequest>& requests,
                        const std::function<void(void*, const void*, std::size_t)>& store);

}  // namespace tandem
