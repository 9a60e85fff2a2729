// SPDX-License-Identifier: Apache-2.0
#include "optim/lamb_step.h"

#include <algorithm>
#include <cmath>

#include "optim/exact_exchange.h"
#include "thinwire/kernels/lamb.h"

namespace thinwire::optim {

namespace {

// A multiple of kernels::kSumChunk. Parameters up to this size stay in cache
// between the two passes; sums of larger ones are added piece by piece.
constexpr std::size_t kPiece = std::size_t{1} << 16;

class LambStep {
 public:
  LambStep(Adam& adam, std::int64_t step, const UpdateArrays& of,
           TrustLimits limits)
      : adam_(adam), of_(of), limits_(limits) {
    for (std::size_t g = 0; g < adam.num_groups(); ++g)
      coefficients_.push_back(adam.coefficients(g, step, of.grad_scale));
  }

  [[nodiscard]] kernels::LambSums first_pass(const Parameter& p,
                                             Range piece) const {
    return kernels::lamb_moments(arrays(piece), coefficients_[p.group]);
  }

  [[nodiscard]] TrustRatio ratio(const kernels::LambSums& sums) const {
    return trust_ratio(std::sqrt(sums.params), std::sqrt(sums.update),
                       limits_.min_coeff, limits_.max_coeff);
  }

  void second_pass(const Parameter& p, Range piece, TrustRatio ratio) const {
    kernels::AdamCoefficients c = coefficients_[p.group];
    c.minus_learning_rate =
        static_cast<float>(-adam_.learning_rate(p.group) * ratio.value);
    kernels::lamb_update(arrays(piece), c);
  }

 private:
  [[nodiscard]] kernels::AdamArrays arrays(Range piece) const {
    const auto at = [&](View view) {
      return view.as<float>().data() + piece.offset;
    };
    return {.params = at(of_.params),
            .exp_avg = at(adam_.exp_avg().view()),
            .exp_avg_sq = at(adam_.exp_avg_sq().view()),
            .grads = of_.grads.subview(piece.offset, piece.size),
            .low_precision = part_of(of_.low_precision, piece)};
  }

  Adam& adam_;
  const UpdateArrays& of_;
  TrustLimits limits_;
  std::vector<kernels::AdamCoefficients> coefficients_;
};

Range piece_of(const Parameter& p, std::size_t number) {
  const std::size_t at = number * kPiece;
  return {p.offset + at, std::min(kPiece, p.size - at)};
}

}  // namespace

TrustRatio trust_ratio(double params, double update, double min_coeff,
                       double max_coeff) {
  if (params == 0 || update == 0) return {};
  return {std::clamp(params / update, min_coeff, max_coeff), true};
}

std::vector<TrustRatio> lamb_step(Adam& adam, std::int64_t step,
                                  const UpdateArrays& arrays,
                                  TrustLimits limits, ThreadPool& pool) {
  const LambStep lamb(adam, step, arrays, limits);
  const auto parameters = adam.layout().parameters();
  std::vector<TrustRatio> ratios(parameters.size());
  std::vector<std::size_t> small;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& p = parameters[i];
    if (p.size == 0) continue;
    if (p.size <= kPiece) {
      small.push_back(i);
      continue;
    }
    std::vector<kernels::LambSums> sums((p.size + kPiece - 1) / kPiece);
    pool.for_each(sums.size(), [&](std::size_t k) {
      sums[k] = lamb.first_pass(p, piece_of(p, k));
    });
    kernels::LambSums total;
    for (const kernels::LambSums& sum : sums) {
      total.params += sum.params;
      total.update += sum.update;
    }
    ratios[i] = lamb.ratio(total);
    pool.for_each(sums.size(), [&](std::size_t k) {
      lamb.second_pass(p, piece_of(p, k), ratios[i]);
    });
  }
  pool.for_each(small.size(), [&](std::size_t k) {
    const Parameter& p = parameters[small[k]];
    const Range all{p.offset, p.size};
    ratios[small[k]] = lamb.ratio(lamb.first_pass(p, all));
    lamb.second_pass(p, all, ratios[small[k]]);
  });
  return ratios;
}

}  // namespace thinwire::optim
