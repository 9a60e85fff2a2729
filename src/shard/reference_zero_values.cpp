// SPDX-License-Identifier: Apache-2.0
// Whole values and saved state.
#include <fmt/format.h>

#include "optim/checks.h"
#include "shard/reference_zero.h"
#include "shard/rounded_sum.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::shard {

View ReferenceZero::array(std::string_view what) {
  if (what == "param") return masters_.view();
  if (what == "grad") return averaged_.view();
  if (what == "exp_avg") return adam_.exp_avg().view();
  if (what == "exp_avg_sq") return adam_.exp_avg_sq().view();
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("key must be exp_avg or exp_avg_sq, got '{}'", what));
}

// A slice has at most one fragment of a parameter, and slices are in rank
// order.
std::vector<float> ReferenceZero::read(std::size_t parameter,
                                       std::string_view what, View /*grads*/) {
  const View from = array(what);
  if (what == "grad") finish();
  std::vector<std::size_t> counts(static_cast<std::size_t>(comm.size()));
  Buffer own(0, DType::kFloat32);
  for (const Fragment& f : shards_.fragments_of(parameter)) {
    counts[static_cast<std::size_t>(f.owner)] = f.range.size;
    if (f.owner == comm.rank())
      own = converted(from.subview(f.position, f.range.size), own.dtype());
  }
  std::vector<float> whole(layout.parameters()[parameter].size);
  comm.all_gather(own.view(), whole, counts);
  if (what == "grad")
    for (float& g : whole) g /= static_cast<float>(loss_scale());
  return whole;
}

void ReferenceZero::write(std::size_t parameter, std::string_view what,
                          std::span<const float> values) {
  const View to = array(what);
  std::vector<float> scaled(values.begin(), values.end());
  if (what == "grad") {
    finish();
    for (float& g : scaled) g *= static_cast<float>(loss_scale());
  }
  for (const Fragment& f : shards_.fragments_of(parameter))
    if (f.owner == comm.rank())
      kernels::convert(std::span(scaled).subspan(f.range.offset, f.range.size),
                       to.subview(f.position, f.range.size));
  const Parameter& p = layout.parameters()[parameter];
  if (what == "param")
    kernels::convert(scaled, params.subview(p.offset, p.size));
}

void ReferenceZero::read_masters(ConstView from) {
  for (const Fragment& f : fragments_)
    kernels::convert(
        from.subview(layout.parameters()[f.parameter].offset + f.range.offset,
                     f.range.size),
        masters_.view().subview(f.position, f.range.size));
}

void ReferenceZero::offload_states() {
  throw Error(ErrorCode::kUnavailable,
              "offload_states: not with deepspeed semantics");
}

void ReferenceZero::reload_states() {
  throw Error(ErrorCode::kFailedPrecondition,
              "reload_states: there was no offload_states()");
}

void ReferenceZero::save(StateDict& state) const {
  state.put("masters", masters_.view());
  adam_.save(state);
}

void ReferenceZero::require_fits(const StateDict& state) const {
  static_cast<void>(state.array("masters", DType::kFloat32, masters_.size()));
  static_cast<void>(adam_.learning_rates_in(state));
  for (const char* moment : {"exp_avg", "exp_avg_sq"})
    static_cast<void>(state.array(moment, DType::kFloat32, masters_.size()));
}

void ReferenceZero::load(const StateDict& state) {
  const ConstView masters =
      state.array("masters", DType::kFloat32, masters_.size());
  adam_.load(state);
  kernels::convert(masters, masters_.view());
  has_averaged_ = false;
  if (optim::is_16_bit(options.dtype)) gather_params();
}

}  // namespace thinwire::shard
