// SPDX-License-Identifier: Apache-2.0
// One rank's step of mixed precision as a C function, for mixed_precision.py:
// the same passes as `thinwire bench --filter mixed`, over memory of torch's.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>

#include "optim/exact_exchange.h"
#include "thinwire/core/thread_pool.h"
#include "thinwire/core/view.h"
#include "thinwire/kernels/adam.h"

namespace {

using namespace thinwire;

// A thread's share begins at a multiple of this.
constexpr std::size_t kGrain = std::size_t{1} << 16;

/// Kept between calls; a thread pool is not what is measured.
ThreadPool& pool_of(int num_threads) {
  static std::unique_ptr<ThreadPool> pool;
  if (!pool || pool->num_threads() != num_threads)
    pool = std::make_unique<ThreadPool>(num_threads);
  return *pool;
}

float bias_correction(double beta, std::int64_t step) {
  return static_cast<float>(1 /
                            (1 - std::pow(beta, static_cast<double>(step))));
}

}  // namespace

extern "C" {

/// Fields in the order of mixed_precision.py's class Step.
struct ThinwireStep {
  float* params;  ///< In and out, as the moments.
  float* exp_avg;
  float* exp_avg_sq;
  const void* grads;    ///< fp16, scaled by loss_scale.
  void* low_precision;  ///< Out, fp16.
  std::size_t size;
  std::int64_t step;  ///< 1, 2, ...
  float learning_rate;
  float weight_decay;
  float loss_scale;
  float max_norm;
  int num_threads;
};

/// AdamW's step with gradients unscaled and clipped to max_norm, unless they
/// are not all finite. Returns their norm, or -1 where it could not run. One
/// caller at a time.
double thinwire_step(const ThinwireStep* s) {
  try {
    ThreadPool& pool = pool_of(s->num_threads);
    const ConstView grads(s->grads, s->size, DType::kFloat16);
    const View low(s->low_precision, s->size, DType::kFloat16);
    const double scale = static_cast<double>(s->loss_scale);
    const double norm = std::sqrt(optim::sum_of_squares(pool, grads)) / scale;
    if (!std::isfinite(norm)) return norm;
    const double clip =
        std::max(1.0, (norm + 1e-6) / static_cast<double>(s->max_norm));
    const kernels::AdamCoefficients c{
        .exp_avg_scale = bias_correction(0.9, s->step),
        .exp_avg_sq_scale = bias_correction(0.999, s->step),
        .decoupled_decay = s->weight_decay,
        .minus_learning_rate = -s->learning_rate,
        .grad_scale = static_cast<float>(1 / (clip * scale))};
    pool.for_ranges(s->size, kGrain, [&](std::size_t begin, std::size_t end) {
      kernels::adam({.params = s->params + begin,
                     .exp_avg = s->exp_avg + begin,
                     .exp_avg_sq = s->exp_avg_sq + begin,
                     .grads = grads.subview(begin, end - begin),
                     .low_precision = low.subview(begin, end - begin)},
                    c);
    });
    return norm;
  } catch (const std::exception&) {
    return -1;
  }
}

}  // extern "C"
