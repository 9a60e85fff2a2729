// SPDX-License-Identifier: Apache-2.0
// The state of 0/1 Adam's local steps, saved and loaded.
#include <utility>

#include "optim/checks.h"
#include "optim/low_bit/momentum/local_updates.h"
#include "optim/saved_state.h"

namespace thinwire::optim {

// Repeats the arithmetic of kernels::local_step, with the decay of its time:
// steps that this rank has left out since then have not touched its parameters.
void LocalUpdates::repeat(View params) {
  if (params.empty()) return;
  require_view("params", params, model_.size(), true, false);
  if (!interval_.accumulated || interval_.taken == 0) return;
  const auto p = params.as<float>();
  const auto theta = origin_.as<float>();
  const auto u = accumulator_.as<float>();
  for_group_ranges(model_.pool, model_.layout.compressed,
                   [&](Range range, std::size_t group) {
                     const auto decay =
                         static_cast<float>(interval_.decay_taken[group]);
                     for (std::size_t i = range.offset; i < range.end(); ++i)
                       p[i] = theta[i] * decay + u[i];
                   });
}

void LocalUpdates::add_to(State& state, bool is_frozen) const {
  const Interval& now = interval_;
  state.add_groups("lrs", now.lrs);
  state.add_groups("decay", now.decay);
  state.common.put_integer("accumulated", now.accumulated ? 1 : 0);
  state.common.put_integer("momenta_differ", now.momenta_differ ? 1 : 0);
  state.common.put_integer("local_steps", now.steps);
  state.own.put_integer("local_steps_taken", now.taken);
  if (!is_frozen) return;
  const std::vector<Range> whole = {{0, model_.size()}};
  state.add_elements("origin", Sharing::kSame, whole, origin_.view())
      .is_parameters = true;
  if (!now.accumulated) return;
  state.add_elements("momentum_accumulator", Sharing::kMean, whole,
                     accumulator_.view());
  state.add_groups("decay_taken", now.taken == 0 ? now.decay : now.decay_taken);
  state.arrays.back().sharing = Sharing::kOwn;
}

// If another number of ranks has saved it, each takes the ranks' mean for what
// it has done itself.
LocalUpdates::Saved LocalUpdates::read(StateDict& state, bool is_frozen) const {
  const std::size_t n = model_.size();
  const std::size_t num_groups = interval_.lrs.size();
  Saved saved;
  Interval& then = saved.interval;
  then.lrs = saved_values<double>(state, "lrs", num_groups, Sign::kNotNegative);
  then.decay = saved_values<double>(state, "decay", num_groups);
  then.accumulated = state.integer("accumulated") != 0;
  then.momenta_differ = state.integer("momenta_differ") != 0;
  then.steps = saved_count(state, "local_steps");
  then.taken = state.has_scalar("local_steps_taken")
                   ? saved_count(state, "local_steps_taken")
                   : then.steps;
  then.decay_taken =
      state.has_array("decay_taken")
          ? saved_values<double>(state, "decay_taken", num_groups)
          : then.decay;
  if (!is_frozen) return saved;
  saved.origin = take_floats(state, "origin", DType::kFloat32, n);
  saved.accumulator =
      then.accumulated
          ? take_floats(state, "momentum_accumulator", DType::kFloat32, n)
          : Buffer::of<float>(n);
  return saved;
}

void LocalUpdates::restore(Saved&& saved) {
  origin_ = std::move(saved.origin);
  accumulator_ = std::move(saved.accumulator);
  interval_ = std::move(saved.interval);
  momentum_.form.set_units({});
}

}  // namespace thinwire::optim
