// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "optim/onebit_adam_impl.h"
#include "optim/require.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

Buffer copy_of(ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (values.bytes() != 0)
    std::memcpy(copy.data(), values.data(), values.bytes());
  return copy;
}

}  // namespace

// exp_avg as floats, whatever form it has at the moment.
Buffer OnebitAdam::Impl::momentum() const {
  Buffer copy = Buffer::of<float>(adam.layout().size());
  if (!adam.exp_avg().empty())
    std::memcpy(copy.data(), adam.exp_avg().data(), copy.bytes());
  if (!momentum_is_signs) return copy;
  float* const m = copy.as<float>().data();
  for (std::size_t b = 0; b < parts.blocks.blocks().size(); ++b)
    kernels::sign_decode(exchange->mean(b),
                         exchange->active().words(parts.blocks, b),
                         m + parts.blocks.blocks()[b].values.offset,
                         parts.blocks.blocks()[b].values.size);
  return copy;
}

StateDict OnebitAdam::Impl::save() const {
  StateDict state;
  state.put_text("layout", adam.layout().describe());
  state.put_text("semantics", std::string(to_string(options.semantics)));
  state.put_integer("step", steps);
  state.put_integer("skipped_steps", skipped);
  state.put_integer("frozen_at", frozen_at);
  norm.save(state);
  freeze.save(state);
  state.put("learning_rates", adam.learning_rates());
  state.put("exp_avg", momentum().view());
  if (!adam.exp_avg_sq().empty() || adam.layout().size() == 0)
    state.put("exp_avg_sq", adam.exp_avg_sq().view());
  if (frozen_at > 0) state.put("denominator", denominator.view());
  if (!active.empty()) state.put("active", active);
  if (exchange) {
    state.put_integer("world_size", comm.size());
    state.put_integer("rank", comm.rank());
    state.put("worker_error", exchange->worker_error());
    state.put("server_error", exchange->server_error());
  }
  return state;
}

void OnebitAdam::Impl::load(const StateDict& state) {
  const std::size_t n = adam.layout().size();
  require_layout(state, adam.layout());
  if (state.text("semantics") != to_string(options.semantics))
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("the state follows {} semantics, this optimizer "
                    "{}",
                    state.text("semantics"), to_string(options.semantics)));
  // Everything is read into copies first: a state that does not fit changes
  // nothing.
  const std::int64_t new_steps = state.integer("step");
  const std::int64_t new_skipped = state.integer("skipped_steps");
  const std::int64_t new_frozen_at = state.integer("frozen_at");
  CalibratedNorm new_norm;
  new_norm.load(state);
  AutoFreeze new_freeze = freeze;
  new_freeze.load(state);
  Buffer m = copy_of(state.array("exp_avg", DType::kFloat32, n));
  const bool frozen = new_frozen_at > 0;
  const bool needs_variance =
      !frozen || !parts.exact.empty() || !policy.floors_denominator;
  Buffer v, d;
  if (needs_variance)
    v = copy_of(state.array("exp_avg_sq", DType::kFloat32, n));
  if (frozen) d = copy_of(state.array("denominator", DType::kFloat32, n));
  std::vector<std::uint8_t> elements;
  if (state.has_array("active")) {
    const auto flags =
        state.array("active", DType::kUInt8, n).as<std::uint8_t>();
    elements.assign(flags.begin(), flags.end());
  }
  const std::vector<double> rates = adam.learning_rates_in(state);
  load_residuals(state);

  for (std::size_t g = 0; g < rates.size(); ++g)
    adam.set_learning_rate(g, rates[g]);
  steps = new_steps;
  skipped = new_skipped;
  frozen_at = new_frozen_at;
  norm = new_norm;
  freeze = std::move(new_freeze);
  adam.exp_avg() = std::move(m);
  adam.exp_avg_sq() = std::move(v);
  denominator = std::move(d);
  set_active(std::move(elements));
  momentum_is_signs = false;
  initialized = true;
}

void OnebitAdam::Impl::load_residuals(const StateDict& state) {
  if (!policy.keeps_residuals_on_load || !state.has_array("worker_error")) {
    if (exchange) exchange->clear_errors();
    return;
  }
  if (state.integer("world_size") != comm.size() ||
      state.integer("rank") != comm.rank())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("residuals of rank {} of {} do not fit rank {} of {}",
                    state.integer("rank"), state.integer("world_size"),
                    comm.rank(), comm.size()));
  the_exchange().load_errors(state.array("worker_error"),
                             state.array("server_error"));
}
}  // namespace thinwire::optim
