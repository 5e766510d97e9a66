// Whether counted outcomes follow a known distribution: Pearson's chi-square test and the total
// variation distance against what chance alone leaves.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <ostream>
#include <vector>

namespace tandem::testing {

struct Fit {
  double z = 0;                // chi-square as a standard normal (Wilson and Hilferty 1931)
  double total_variation = 0;  // half the sum of |frequency - probability|
  double noise = 0;            // its expectation for a correct sampler
  int cells = 0;               // after pooling

  // p > 0.001, and a distance that chance explains.
  bool agrees() const { return z < 3.09 && total_variation < 1.5 * noise; }
};

inline std::ostream& operator<<(std::ostream& out, const Fit& fit) {
  return out << "z " << fit.z << ", total variation " << fit.total_variation << " (noise "
             << fit.noise << "), " << fit.cells << " cells";
}

// Cells that expect fewer than five counts are pooled. An outcome of probability zero gives an
// infinite z.
inline Fit goodness_of_fit(const std::vector<std::int64_t>& counts,
                           const std::vector<double>& probabilities) {
  double n = 0;
  for (const auto count : counts) n += static_cast<double>(count);
  constexpr double kPi = 3.14159265358979323846;
  Fit fit;
  double chi_square = 0, pooled_expected = 0, pooled_count = 0;
  const auto add_cell = [&](double expected, double count) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++fit.cells;
  };
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double p = probabilities[i], count = static_cast<double>(counts[i]);
    fit.total_variation += 0.5 * std::abs(count / n - p);
    fit.noise += 0.5 * std::sqrt(2 * p * (1 - p) / (kPi * n));
    if (p == 0 && count > 0) chi_square = std::numeric_limits<double>::infinity();
    if (n * p >= 5) {
      add_cell(n * p, count);
    } else {
      pooled_expected += n * p;
      pooled_count += count;
    }
  }
  if (pooled_expected >= 5) add_cell(pooled_expected, pooled_count);
  const double degrees = fit.cells - 1;
  const double spread = 2 / (9 * degrees);
  fit.z = (std::cbrt(chi_square / degrees) - (1 - spread)) / std::sqrt(spread);
  return fit;
}

}  // namespace tandem::testing
