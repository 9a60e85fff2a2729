// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "thinwire/core/view.h"
#include "thinwire/kernels/adam.h"
#include "thinwire/kernels/sign_compress.h"

/// Steps of 0/1 Adam (arXiv:2202.06009) with a frozen variance. In local steps
/// each rank accumulates updates relative to a common origin. A sync step moves
/// the origin by the average of the accumulated updates.
///
/// Each function processes one block on one thread; `active` is as in
/// sign_compress.h, and arrays do not overlap. Every operation is rounded to
/// float in the order given.
namespace thinwire::kernels {

/// Flat arrays of grads.size() elements.
struct LocalStepArrays {
  float* params = nullptr;        ///< Out.
  const float* origin = nullptr;  ///< Parameters at the last sync.
  float* exp_avg = nullptr;       ///< Out; also in, unless mean.words is set.
  Signs mean{};                   ///< If set, the momentum before the step.
  float* accumulated = nullptr;   ///< Out; also in, unless from_zero.
  bool from_zero = false;         ///< True in the first step after a sync.
  const float* denominator = nullptr;  ///< > 0 everywhere.
  ConstView grads{};                   ///< fp32, fp16 or bf16.
  const std::uint32_t* active = nullptr;
  View low_precision{};  ///< See AdamArrays.
};

/// Takes a local step. At first m is exp_avg or +-mean.scale, and u is
/// `accumulated` or 0. Computes:
///   m = m * beta1 + one_minus_beta1 * (g * grad_scale), 0 if masked
///   u = u + minus_learning_rate * ((m * exp_avg_scale) / denominator)
///   p = origin * origin_scale + u
/// `origin_scale` holds the decay since the sync. Moves at most 32 bytes per
/// parameter, and 2 more for `low_precision`.
void local_step(const LocalStepArrays& arrays, float origin_scale,
                const AdamCoefficients& c);

struct SyncArrays {
  float* params = nullptr;             ///< Out.
  float* origin = nullptr;             ///< In and out.
  const float* denominator = nullptr;  ///< > 0 everywhere.
  std::size_t size = 0;
  View low_precision{};  ///< See AdamArrays.
};

/// Computes origin = origin * origin_scale + b / denominator, then params =
/// origin. Here b is +-mean.scale, or 0 if masked.
void sync_update(Signs mean, const std::uint32_t* active,
                 const SyncArrays& arrays, float origin_scale);

namespace ref {
void local_step(const LocalStepArrays& arrays, float origin_scale,
                const AdamCoefficients& c);
void sync_update(Signs mean, const std::uint32_t* active,
                 const SyncArrays& arrays, float origin_scale);
}  // namespace ref

}  // namespace thinwire::kernels
