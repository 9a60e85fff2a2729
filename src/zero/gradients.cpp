// SPDX-License-Identifier: Apache-2.0
// Gradients until the step, passed in an array or one by one. Low-bit gradients
// are sent only after the ranks have agreed that they are finite.
#include <algorithm>
#include <cmath>

#include "core/require.h"
#include "core/set_to_zero.h"
#include "kernels/pooled_norm.h"
#include "optim/step_pieces.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"
#include "zero/impl.h"

namespace thinwire::zero {

using exchange::GradientPart;

bool ZeroOptimizer::Impl::begin(exchange::Backward which) {
  if (which.is_first && !whole.empty())
    refuse("begin_backward: gradients have come whole; call step() first");
  if (options.stage == 2) {
    require_residuals(which);
    for (const auto& group : groups)
      group->gradients().begin(which,
                               group->is_wide() ? DType::kFloat32 : arriving);
    return sends_every_backward() || which.is_last;
  }
  if (which.is_first) {
    DType dtype = which.is_last ? arriving : options.accumulation_dtype;
    if (params.is_joined()) dtype = DType::kFloat32;
    const MemoryScope scope(MemoryKind::kGradients);
    if (sums.size() != layout.size() || sums.dtype() != dtype)
      sums = Buffer(layout.size(), dtype);
  }
  whole = sums.view();
  return which.is_last;
}

void ZeroOptimizer::Impl::check(std::size_t parameter,
                                ConstView gradient) const {
  require_gradient(layout.parameters()[parameter], options.dtype, gradient);
}

// Checks that residuals can accumulate the gradients of several backwards.
void ZeroOptimizer::Impl::require_residuals(exchange::Backward which) const {
  const bool is_single = which.is_first && which.is_last;
  require(options.wire.bits_up == 0 || comm.size() == 1 || is_single ||
              options.wire.residuals() == DType::kFloat32,
          "wire.residual_dtype",
          "float32 at stage 2 where a step takes several backwards, or the "
          "last one is not known beforehand",
          to_string(options.wire.residuals()));
}

void ZeroOptimizer::Impl::store(const GradientPart& part) {
  if (options.stage == 2) {
    GradientPart own = part;
    own.bucket = buckets[part.bucket].number;
    return buckets[part.bucket].group->gradients().store(own);
  }
  const View sum = sums.view().subview(part.range.offset, part.range.size);
  if (!part.is_first) {
    if (!part.values.empty()) kernels::accumulate(sum, part.values);
  } else if (part.values.empty()) {
    set_to_zero(sum);
  } else {
    kernels::convert(part.values, sum);
  }
}

bool ZeroOptimizer::Impl::send(std::size_t bucket) {
  const BucketOfGroup& own = buckets[bucket];
  // agree_on_finite() sends low-bit gradients.
  if (agrees_first(options) && own.group->gradients().low_bit() != nullptr)
    return false;
  return own.group->gradients().send(own.number, whole);
}

void ZeroOptimizer::Impl::require_same_array(View grads) const {
  require(window.backwards() > 0 || whole.empty() ||
              (whole.data() == grads.data() && whole.dtype() == grads.dtype()),
          "grads", "the array that has been reduced in part", "another one");
}

// Returns the index of the first parameter with a non-finite gradient, or -1.
std::int64_t ZeroOptimizer::Impl::first_nonfinite_gradient() {
  if (std::ranges::all_of(whole.parts(), [&](const View& part) {
        return std::isfinite(kernels::sum_of_squares(pool, part));
      }))
    return -1;
  const auto parameters = layout.parameters();
  const auto first = std::ranges::find_if(parameters, [&](const Parameter& p) {
    return !std::isfinite(
        kernels::sum_of_squares(pool, whole.subview(p.offset, p.size)));
  });
  return first == parameters.end() ? -1 : first - parameters.begin();
}

// Skips a step for the parameters of all groups or for none, because a skipped
// step sends no low-bit gradients. To skip the step, writes NaN for the first
// parameter whose gradient is not finite on any rank.
void ZeroOptimizer::Impl::agree_on_finite() {
  if (!agrees_first(options) || comm.size() == 1 || has_agreed) return;
  has_agreed = true;
  const std::int64_t own = first_nonfinite_gradient();
  const auto parameters = layout.parameters();
  const auto count = static_cast<std::int64_t>(parameters.size());
  std::int64_t most = own < 0 ? 0 : count - own;
  comm.all_reduce(std::span(&most, 1), comm::ReduceOp::kMax);
  for (std::size_t b = buckets.size(); b-- > 0;) {
    EncodedGradients* const low_bit = buckets[b].group->gradients().low_bit();
    if (low_bit == nullptr) continue;
    if (most == 0) {
      low_bit->send(buckets[b].number, whole);
    } else {
      const Parameter& first =
          parameters[static_cast<std::size_t>(count - most)];
      low_bit->withhold(buckets[b].number, {first.offset, first.size});
    }
  }
}

void ZeroOptimizer::Impl::finish(View grads) {
  if (!grads.empty()) whole = grads;
  try {
    // The caller may not have announced that this backward was the last.
    if (options.stage == 1) window.send_rest();
    agree_on_finite();
    for (const auto& group : groups) {
      group->gradients().finish();
      group->add_restored_residuals(scale.value());
    }
  } catch (...) {
    // Afterwards the caller may free its memory, although ranks of other groups
    // still write there.
    for (const auto& group : groups) group->gradients().abandon();
    throw;
  }
}

void ZeroOptimizer::Impl::clear() {
  for (const auto& group : groups) group->gradients().begin_window();
  whole = {};
  arriving = options.dtype;
  has_agreed = false;
}

}  // namespace thinwire::zero
