// SPDX-License-Identifier: Apache-2.0
// One rank's step of mixed precision with Adam. One pass checks that gradients
// are finite and forms their norm. Another unscales, clips, updates the fp32
// parameters and rounds them for the model.
#include <algorithm>
#include <cmath>
#include <memory>

#include "apps/thinwire/bench/rows.h"
#include "kernels/pooled_norm.h"
#include "optim/step_pieces.h"
#include "thinwire/core/buffer.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::apps::bench {

namespace {

constexpr float kLossScale = 1024;

// Work on gradients of type `grad`, for a model in `low`.
struct MixedPrecisionWork {
  MixedPrecisionWork(std::size_t elements, DType grad, DType low)
      : params(random_values(elements, 1)),
        exp_avg(Buffer::of<float>(elements)),
        exp_avg_sq(Buffer::of<float>(elements)),
        grads(elements, grad),
        low_precision(elements, low) {
    const Buffer values = random_values(elements, 2);
    kernels::convert(values.view(), grads.view());
  }

  void run(ThreadPool& pool) {
    const double norm =
        std::sqrt(kernels::sum_of_squares(pool, grads.view())) / kLossScale;
    if (!std::isfinite(norm)) return;  // a step that overflowed is left out
    c.grad_scale = static_cast<float>(std::min(1.0, 1 / norm) / kLossScale);
    pool.for_ranges(
        params.size(), kPieceElements, [&](std::size_t begin, std::size_t end) {
          const std::size_t size = end - begin;
          kernels::adam(
              {.params = params.as<float>().data() + begin,
               .exp_avg = exp_avg.as<float>().data() + begin,
               .exp_avg_sq = exp_avg_sq.as<float>().data() + begin,
               .grads = grads.view().subview(begin, size),
               .low_precision = low_precision.view().subview(begin, size)},
              c);
        });
  }

  kernels::AdamCoefficients c{.decoupled_decay = 0.01f,
                              .minus_learning_rate = -1e-5f};
  Buffer params;
  Buffer exp_avg;
  Buffer exp_avg_sq;
  Buffer grads;
  Buffer low_precision;
};

}  // namespace

Prepare mixed_precision(DType grad, DType low) {
  return [grad, low](std::size_t elements, ThreadPool& pool) -> Variant {
    auto work = std::make_shared<MixedPrecisionWork>(elements, grad, low);
    return {[work, &pool] { work->run(pool); }};
  };
}

}  // namespace thinwire::apps::bench
