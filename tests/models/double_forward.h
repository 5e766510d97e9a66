// The Qwen3.8 family in double precision, written from qwen.md (sections 3 to 6 and 13.1) with
// plain loops and nothing of the engine: no pages, no blocks, no caches; the whole sequence every
// time, the delta rule token by token.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tests/models/random_checkpoint.h"

namespace tandem::testing {

struct Matrix {
  Matrix() = default;
  Matrix(std::size_t num_rows, std::size_t num_cols)
      : rows(num_rows), cols(num_cols), values(num_rows * num_cols) {}

  std::span<double> row(std::size_t i) { return std::span(values).subspan(i * cols, cols); }
  std::span<const double> row(std::size_t i) const {
    return std::span(values).subspan(i * cols, cols);
  }

  std::size_t rows = 0;
  std::size_t cols = 0;
  std::vector<double> values;  // [rows, cols]
};

class DoubleForward {
 public:
  explicit DoubleForward(const RandomCheckpoint& checkpoint) : weights_(checkpoint) {}

  // [ids, hidden]: after the final norm; what the head and the MTP head receive.
  Matrix hidden(std::span<const std::int32_t> ids) const;
  // Row p takes the token at position p + 1 and the hidden state of position p; [ids, hidden].
  Matrix mtp_hidden(std::span<const std::int32_t> next_ids, const Matrix& hidden) const;
  // [rows, vocab]
  Matrix logits(const Matrix& hidden) const;

 private:
  const ModelShape& shape() const { return weights_.shape(); }
  Matrix embed(std::span<const std::int32_t> ids) const;
  Matrix linear(const Matrix& x, const std::string& name, std::size_t out_features) const;
  // Zero-centred RMS norm of each row.
  Matrix norm(const Matrix& x, const std::string& name) const;
  void decoder_layer(Matrix& h, const std::string& prefix, char kind) const;
  Matrix gated_delta_net(const Matrix& x, const std::string& prefix) const;
  Matrix attention(const Matrix& x, const std::string& prefix) const;
  Matrix mlp(const Matrix& x, const std::string& prefix) const;

  const RandomCheckpoint& weights_;
};

}  // namespace tandem::testing
