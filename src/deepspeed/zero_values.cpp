// SPDX-License-Identifier: Apache-2.0
// Access to complete values, and saved state.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "deepspeed/own_state.h"
#include "deepspeed/rounded_sum.h"
#include "deepspeed/zero_impl.h"
#include "optim/checks.h"
#include "optim/saved_state.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/kernels/cast.h"
#include "zero/checks.h"

namespace thinwire::deepspeed {

using zero::Fragment;

View ZeroOptimizer::Impl::array(std::string_view what) {
  if (what == "param") return masters.view();
  if (what == "grad") return averaged.view();
  if (what == "exp_avg") return adam.exp_avg().view();
  if (what == "exp_avg_sq") return adam.exp_avg_sq().view();
  reject(fmt::format("key must be exp_avg or exp_avg_sq, got '{}'", what));
}

// A slice contains at most one fragment of a parameter, and slices are in rank
// order.
std::vector<float> ZeroOptimizer::Impl::read(std::size_t parameter,
                                             std::string_view what,
                                             View /*grads*/) {
  const View from = array(what);
  if (what == "grad") finish();
  std::vector<std::size_t> sizes(static_cast<std::size_t>(comm.size()));
  Buffer own(0, DType::kFloat32);
  for (const Fragment& f : shards.fragments_of(parameter)) {
    sizes[static_cast<std::size_t>(f.owner)] = f.range.size;
    if (f.owner == comm.rank())
      own = converted(from.subview(f.position, f.range.size), own.dtype());
  }
  std::vector<float> whole(layout.parameters()[parameter].size);
  comm.all_gather(own.view(), whole, sizes);
  if (what == "grad")
    for (float& g : whole) g /= static_cast<float>(scale.value());
  return whole;
}

void ZeroOptimizer::Impl::write(std::size_t parameter, std::string_view what,
                                std::span<const float> values) {
  const View to = array(what);
  std::vector<float> scaled(values.begin(), values.end());
  if (what == "grad") {
    finish();
    for (float& g : scaled) g *= static_cast<float>(scale.value());
  }
  for (const Fragment& f : shards.fragments_of(parameter))
    if (f.owner == comm.rank())
      kernels::convert(std::span(scaled).subspan(f.range.offset, f.range.size),
                       to.subview(f.position, f.range.size));
  const Parameter& p = layout.parameters()[parameter];
  if (what == "param")
    kernels::convert(scaled, params.subview(p.offset, p.size));
}

void ZeroOptimizer::set_masters(ConstView from) {
  require(from.size() == impl_->layout.size(), "params",
          fmt::format("{} elements", impl_->layout.size()), from.size());
  for (const Fragment& f : impl_->fragments)
    kernels::convert(
        from.subview(
            impl_->layout.parameters()[f.parameter].offset + f.range.offset,
            f.range.size),
        impl_->masters.view().subview(f.position, f.range.size));
}

// ---- saved state

namespace {

constexpr const char* kName = "deepspeed zero";

}  // namespace

optim::State ZeroOptimizer::state() const {
  optim::State state;
  state.add_free("masters", std::as_const(impl_->masters).view());
  impl_->adam.add_to(state, optim::Sharing::kOwn, {});
  state.common.put_text("optimizer", kName);
  impl_->counts.save(state.common);
  if (impl_->scale.is_used()) impl_->scale.save(state.common);
  state.owner = zero::shard_owner(impl_->layout, impl_->comm.rank());
  return own_state(std::move(state));
}

optim::Optimizer::Adoption ZeroOptimizer::adopt(StateDict state) {
  optim::require_text(state, "optimizer", kName);
  precision::LossScale scale = impl_->scale;
  scale.require_in(state);
  scale.load_if_there(state);
  const auto counts = optim::StepCounts::load(state);
  const auto masters = std::make_shared<Buffer>(optim::take_floats(
      state, "masters", DType::kFloat32, impl_->masters.size()));
  return [this, scale, counts, masters, of_adam = impl_->adam.adopt(state)] {
    of_adam();
    impl_->masters = std::move(*masters);
    impl_->has_averaged = false;
    impl_->scale = scale;
    impl_->counts = counts;
    return optim::Notes();
  };
}

optim::Notes ZeroOptimizer::load_state_dict(const StateDict& state) {
  Adoption adopted;
  comm::require_everywhere(impl_->comm, [&] {
    require_owner(state);
    adopted = adopt(optim::copy_to_adopt(state));
  });
  optim::Notes notes = adopted();
  if (is_16_bit(impl_->options.dtype)) impl_->gather_params();
  return notes;
}

void ZeroOptimizer::require_owner(const StateDict& state) const {
  zero::require_shard_owner(state, impl_->layout, impl_->comm.rank());
}

}  // namespace thinwire::deepspeed
