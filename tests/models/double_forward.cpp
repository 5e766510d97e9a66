#include "tests/models/double_forward.h"

#include <algorithm>
#include <cmath>

namespace tandem::testing {
namespace {

constexpr double kEps = 1e-6;
constexpr double kRopeTheta = 1e7;

std::size_t usize(int n) { return static_cast<std::size_t>(n); }

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

double dot(std::span<const double> a, std::span<const double> b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// qwen.md 3.1: y = x rsqrt(mean x^2 + eps) (1 + w)
void rms1(std::span<double> x, std::span<const float> weight) {
  const double scale = 1 / std::sqrt(dot(x, x) / static_cast<double>(x.size()) + kEps);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] *= scale * (1 + double{weight[i]});
}

// qwen.md 3.2: dimension j turns with j + rotary_dim / 2
void rotate(std::span<double> x, std::size_t rotary_dim, std::size_t position) {
  const std::size_t half = rotary_dim / 2;
  for (std::size_t j = 0; j < half; ++j) {
    const double frequency =
        std::pow(kRopeTheta, -2.0 * static_cast<double>(j) / static_cast<double>(rotary_dim));
    const double angle = static_cast<double>(position) * frequency;
    const double a = x[j], b = x[j + half];
    x[j] = a * std::cos(angle) - b * std::sin(angle);
    x[j + half] = b * std::cos(angle) + a * std::sin(angle);
  }
}

// x rsqrt(sum x^2 + eps) factor
void l2_normalize(std::span<double> x, double factor) {
  const double scale = factor / std::sqrt(dot(x, x) + kEps);
  for (double& v : x) v *= scale;
}

void add(Matrix& h, const Matrix& delta) {
  for (std::size_t i = 0; i < h.values.size(); ++i) h.values[i] += delta.values[i];
}

}  // namespace

Matrix DoubleForward::embed(std::span<const std::int32_t> ids) const {
  const auto& table = weights_.values("embed_tokens.weight");
  Matrix h(ids.size(), usize(shape().hidden));
  for (std::size_t t = 0; t < ids.size(); ++t) {
    const auto begin = table.begin() + std::ptrdiff_t{ids[t]} * shape().hidden;
    std::copy_n(begin, h.cols, h.row(t).begin());
  }
  return h;
}

Matrix DoubleForward::linear(const Matrix& x, const std::string& name,
                             std::size_t out_features) const {
  const auto& stored = weights_.values(name);
  const std::vector<double> w(stored.begin(), stored.end());  // [out, in]
  Matrix y(x.rows, out_features);
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (std::size_t o = 0; o < out_features; ++o) {
      y.row(t)[o] = dot(x.row(t), std::span(w).subspan(o * x.cols, x.cols));
    }
  }
  return y;
}

Matrix DoubleForward::norm(const Matrix& x, const std::string& name) const {
  Matrix y = x;
  for (std::size_t t = 0; t < y.rows; ++t) rms1(y.row(t), weights_.values(name));
  return y;
}

Matrix DoubleForward::hidden(std::span<const std::int32_t> ids) const {
  Matrix h = embed(ids);
  for (std::size_t i = 0; i < shape().layers.size(); ++i) {
    decoder_layer(h, "layers." + std::to_string(i) + ".", shape().layers[i]);
  }
  return norm(h, "norm.weight");
}

Matrix DoubleForward::logits(const Matrix& hidden) const {
  return linear(hidden, shape().tied_head ? "embed_tokens.weight" : "lm_head.weight",
                usize(shape().vocab));
}

Matrix DoubleForward::mtp_hidden(std::span<const std::int32_t> next_ids,
                                 const Matrix& hidden) const {
  const Matrix e = norm(embed(next_ids), "mtp.pre_fc_norm_embedding.weight");
  const Matrix h = norm(hidden, "mtp.pre_fc_norm_hidden.weight");
  Matrix joined(e.rows, 2 * e.cols);
  for (std::size_t t = 0; t < e.rows; ++t) {
    std::copy_n(e.row(t).begin(), e.cols, joined.row(t).begin());
    std::copy_n(h.row(t).begin(), e.cols, joined.row(t).begin() + std::ptrdiff_t(e.cols));
  }
  Matrix z = linear(joined, "mtp.fc.weight", e.cols);
  decoder_layer(z, "mtp.layers.0.", 'F');
  return norm(z, "mtp.norm.weight");
}

void DoubleForward::decoder_layer(Matrix& h, const std::string& prefix, char kind) const {
  const Matrix x = norm(h, prefix + "input_layernorm.weight");
  add(h, kind == 'F' ? attention(x, prefix + "self_attn.")
                     : gated_delta_net(x, prefix + "linear_attn."));
  add(h, mlp(norm(h, prefix + "post_attention_layernorm.weight"), prefix + "mlp."));
}

Matrix DoubleForward::mlp(const Matrix& x, const std::string& prefix) const {
  Matrix gate = linear(x, prefix + "gate_proj.weight", usize(shape().intermediate));
  const Matrix up = linear(x, prefix + "up_proj.weight", usize(shape().intermediate));
  for (std::size_t i = 0; i < gate.values.size(); ++i) {
    gate.values[i] = silu(gate.values[i]) * up.values[i];
  }
  return linear(gate, prefix + "down_proj.weight", x.cols);
}

Matrix DoubleForward::gated_delta_net(const Matrix& x, const std::string& prefix) const {
  const ModelShape& s = shape();
  const auto kd = usize(s.k_dim), vd = usize(s.v_dim), key_width = usize(s.key_width());
  const auto channels = usize(s.channels()), heads = usize(s.linear_v_heads);
  const auto group = usize(s.linear_v_heads / s.linear_k_heads);

  const Matrix u = linear(x, prefix + "in_proj_qkv.weight", channels);
  const Matrix z = linear(x, prefix + "in_proj_z.weight", usize(s.value_width()));
  const Matrix b = linear(x, prefix + "in_proj_b.weight", heads);
  const Matrix a = linear(x, prefix + "in_proj_a.weight", heads);
  const auto& taps = weights_.values(prefix + "conv1d.weight");
  const auto& a_log = weights_.values(prefix + "A_log");
  const auto& dt_bias = weights_.values(prefix + "dt_bias");
  const auto& norm_weight = weights_.values(prefix + "norm.weight");

  // Causal convolution; the last tap meets the current token.
  const auto kernel = usize(s.conv_kernel);
  Matrix qkv(x.rows, channels);
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (std::size_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::size_t j = 0; j < kernel; ++j) {
        if (t + j + 1 < kernel) continue;  // before the sequence's start
        sum += double{taps[c * kernel + j]} * u.row(t + j + 1 - kernel)[c];
      }
      qkv.row(t)[c] = silu(sum);
    }
  }

  Matrix gated(x.rows, usize(s.value_width()));
  for (std::size_t h = 0; h < heads; ++h) {
    std::vector<double> state(kd * vd, 0.0);  // S [k_dim, v_dim]
    for (std::size_t t = 0; t < x.rows; ++t) {
      const auto row = qkv.row(t);
      const auto q_part = row.subspan(h / group * kd, kd);
      const auto k_part = row.subspan(key_width + h / group * kd, kd);
      const auto v = row.subspan(2 * key_width + h * vd, vd);
      std::vector<double> q(q_part.begin(), q_part.end()), k(k_part.begin(), k_part.end());
      l2_normalize(q, 1 / std::sqrt(static_cast<double>(kd)));
      l2_normalize(k, 1);
      const double beta = sigmoid(b.row(t)[h]);
      const double decay =
          std::exp(-std::exp(double{a_log[h]}) * softplus(a.row(t)[h] + double{dt_bias[h]}));
      const auto out = gated.row(t).subspan(h * vd, vd);
      for (std::size_t d = 0; d < vd; ++d) {
        double read = 0;
        for (std::size_t i = 0; i < kd; ++i) read += (state[i * vd + d] *= decay) * k[i];
        const double write = beta * (v[d] - read);
        out[d] = 0;
        for (std::size_t i = 0; i < kd; ++i) {
          out[d] += (state[i * vd + d] += k[i] * write) * q[i];
        }
      }
      // Gated norm with plain weights.
      const double scale = 1 / std::sqrt(dot(out, out) / static_cast<double>(vd) + kEps);
      for (std::size_t d = 0; d < vd; ++d) {
        const double gate = z.row(t)[h * vd + d];
        out[d] *= scale * double{norm_weight[d]} * (s.sigmoid_gate ? sigmoid(gate) : silu(gate));
      }
    }
  }
  return linear(gated, prefix + "out_proj.weight", x.cols);
}

Matrix DoubleForward::attention(const Matrix& x, const std::string& prefix) const {
  const ModelShape& s = shape();
  const auto d = usize(s.head_dim), heads = usize(s.num_heads), kv_heads = usize(s.num_kv_heads);
  Matrix q = linear(x, prefix + "q_proj.weight", heads * 2 * d);  // per head: query, gate
  Matrix k = linear(x, prefix + "k_proj.weight", kv_heads * d);
  const Matrix v = linear(x, prefix + "v_proj.weight", kv_heads * d);
  const auto rotary_dim = usize(s.rotary_dim());
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      rms1(q.row(t).subspan(2 * h * d, d), weights_.values(prefix + "q_norm.weight"));
      rotate(q.row(t).subspan(2 * h * d, d), rotary_dim, t);
    }
    for (std::size_t h = 0; h < kv_heads; ++h) {
      rms1(k.row(t).subspan(h * d, d), weights_.values(prefix + "k_norm.weight"));
      rotate(k.row(t).subspan(h * d, d), rotary_dim, t);
    }
  }

  Matrix attended(x.rows, heads * d);
  for (std::size_t t = 0; t < x.rows; ++t) {
    for (std::size_t h = 0; h < heads; ++h) {
      const std::size_t kv = h / (heads / kv_heads);
      std::vector<double> p(t + 1);
      for (std::size_t j = 0; j <= t; ++j) {
        p[j] = dot(q.row(t).subspan(2 * h * d, d), k.row(j).subspan(kv * d, d)) /
               std::sqrt(static_cast<double>(d));
      }
      const double largest = *std::max_element(p.begin(), p.end());
      double total = 0;
      for (double& score : p) total += score = std::exp(score - largest);
      for (std::size_t i = 0; i < d; ++i) {
        double sum = 0;
        for (std::size_t j = 0; j <= t; ++j) sum += p[j] * v.row(j)[kv * d + i];
        attended.row(t)[h * d + i] = sum / total * sigmoid(q.row(t)[(2 * h + 1) * d + i]);
      }
    }
  }
  return linear(attended, prefix + "o_proj.weight", x.cols);
}

}  // namespace tandem::testing
