// SPDX-License-Identifier: Apache-2.0
// Gradients until the step: whole, or handed over one by one; and, before any
// leaves in few bits, whether all of them are finite.
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

void ZeroOptimizer::Impl::begin_backward(Backward which) {
  begin_backward(which, options.dtype);
}

void ZeroOptimizer::Impl::begin_backward(Backward which, DType gradients) {
  if (options.stage == 2) {
    require_residuals(which);
    window.begin(which, sends_every_backward() || which.is_last);
    for (const auto& group : groups)
      group->gradients().begin(which,
                               group->is_wide() ? DType::kFloat32 : gradients);
    return;
  }
  window.begin(which, /*sends=*/which.is_last);
  if (which.is_first) {
    DType dtype = which.is_last ? gradients : options.accumulation_dtype;
    if (params.is_joined()) dtype = DType::kFloat32;
    const MemoryScope scope(MemoryKind::kGradients);
    if (sums.size() != layout.size() || sums.dtype() != dtype)
      sums = Buffer(layout.size(), dtype);
  }
  whole = sums.view();
}

// Several backwards are added up in them.
void ZeroOptimizer::Impl::require_residuals(Backward which) const {
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
  // Few bits leave in agree_on_finite().
  if (agrees_first(options) && own.group->gradients().low_bit() != nullptr)
    return false;
  return own.group->gradients().send(own.number, whole);
}

void ZeroOptimizer::Impl::cancel_backward() {
  if (!window.cancel())
    throw Error(ErrorCode::kCommFailure,
                "cancel_backward: gradients of this window have been sent");
  end_window();
}

// Stage 2: whole gradients are in memory that this object may not keep.
void ZeroOptimizer::Impl::collect_all(ConstView grads) {
  begin_backward({}, grads.dtype());
  for (std::size_t i = layout.parameters().size(); i-- > 0;) {
    const Parameter& p = layout.parameters()[i];
    window.collect(i, grads.subview(p.offset, p.size));
  }
  window.end();
}

void ZeroOptimizer::Impl::require_same_array(View grads) const {
  require(window.backwards() > 0 || whole.empty() ||
              (whole.data() == grads.data() && whole.dtype() == grads.dtype()),
          "grads", "the array that has been reduced in part", "another one");
}

// Index of the first parameter that is not finite, else -1.
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

// Over all groups: a step is skipped for all parameters or for none. Few bits
// leave only if it is not. Else nothing changes but what the step looks at,
// where the first such parameter of any rank is marked.
void ZeroOptimizer::Impl::agree_on_finite() {
  if (!agrees_first(options) || comm.size() == 1 || has_agreed) return;
  has_agreed = true;
  const std::int64_t own = first_nonfinite_gradient();
  const auto parameters = layout.parameters();
  const auto count = static_cast<std::int64_t>(parameters.size());
  std::int64_t most = own < 0 ? 0 : count - own;
  comm.all_reduce(std::span(&most, 1), comm::ReduceOp::kMax);
  for (std::size_t b = buckets.size(); b-- > 0;) {
    LowBitGradients* const low_bit = buckets[b].group->gradients().low_bit();
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
    // The last backward may not have been known as that.
    if (options.stage == 1) window.send_rest();
    agree_on_finite();
    for (const auto& group : groups) {
      group->gradients().finish();
      group->add_restored_residuals(scale.value());
    }
  } catch (...) {
    // The caller's memory may go: other groups' ranks still write there.
    for (const auto& group : groups) group->gradients().abandon();
    throw;
  }
}

void ZeroOptimizer::Impl::end_window() {
  for (const auto& group : groups) group->gradients().begin_window();
  window.restart();
  whole = {};
  has_agreed = false;
}

}  // namespace thinwire::zero
