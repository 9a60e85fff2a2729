// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "optim/checks.h"
#include "optim/low_bit.h"
#include "thinwire/core/checksum.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

namespace {

// Which blocks this rank serves depends on the buckets, how many elements they
// have may not.
std::int64_t residual_layout(const compress::BlockLayout& layout) {
  std::vector<std::int32_t> servers;
  for (const compress::Block& block : layout.blocks())
    servers.push_back(block.server);
  return static_cast<std::int64_t>(checksum(servers));
}

std::vector<std::uint8_t> saved_participation(const StateDict& state,
                                              std::size_t num_elements) {
  if (!state.has_array("participation")) return {};
  const auto saved = state.array("participation", DType::kUInt8, num_elements)
                         .as<std::uint8_t>();
  for (const std::uint8_t value : saved)
    if (value > kLate)
      throw Error(ErrorCode::kCorruptCheckpoint,
                  fmt::format("state array 'participation' must hold values up "
                              "to {}, got {}",
                              static_cast<int>(kLate), value));
  return {saved.begin(), saved.end()};
}

}  // namespace

Buffer saved_floats(const StateDict& state, std::string_view name,
                    std::size_t size) {
  return copy_of(state.array(name, DType::kFloat32, size));
}

Buffer copy_of(ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (values.bytes() != 0)
    std::memcpy(copy.data(), values.data(), values.bytes());
  return copy;
}

StateDict LowBitOptimizer::Impl::save() const {
  StateDict state;
  state.put_text("optimizer", settings.name);
  state.put_text("layout", adam.layout().describe());
  state.put_text("semantics", std::string(to_string(settings.semantics)));
  state.put_integer("step", steps);
  state.put_integer("skipped_steps", skipped);
  state.put_integer("verification_is_due", verification_is_due ? 1 : 0);
  state.put_integer("left_out_a_step", left_out_a_step ? 1 : 0);
  norm.save(state);
  state.put("learning_rates", adam.learning_rates());
  state.put("exp_avg", momentum().view());
  if (!adam.exp_avg_sq().empty() || adam.layout().size() == 0)
    state.put("exp_avg_sq", adam.exp_avg_sq().view());
  if (!participation.empty()) state.put("participation", participation);
  block_denominators.save(state);
  late.save(state);
  if (exchange) {
    state.put_integer("world_size", comm.size());
    state.put_integer("rank", comm.rank());
    state.put_integer("residual_layout", residual_layout(parts.blocks));
    state.put("worker_error", exchange->worker_error());
    state.put("server_error", exchange->server_error());
  }
  save_own(state);
  return state;
}

// Everything is read into copies first: a state that does not fit changes
// nothing.
void LowBitOptimizer::Impl::load(const StateDict& state) {
  const std::size_t n = adam.layout().size();
  require_layout(state, adam.layout());
  require_text(state, "optimizer", settings.name);
  require_text(state, "semantics", to_string(settings.semantics));
  const std::int64_t new_steps = state.integer("step");
  const std::int64_t new_skipped = state.integer("skipped_steps");
  const bool new_due = state.integer("verification_is_due") != 0;
  const bool new_left_out = state.integer("left_out_a_step") != 0;
  CalibratedNorm new_norm;
  new_norm.load(state);
  Buffer m = saved_floats(state, "exp_avg", n);
  Buffer v;
  if (state.has_array("exp_avg_sq")) v = saved_floats(state, "exp_avg_sq", n);
  std::vector<std::uint8_t> elements = saved_participation(state, n);
  LateElements new_late(parts.blocks, elements);
  new_late.load_memory(state, n);
  BlockDenominators new_denominators =
      BlockDenominators::load(state, parts.blocks.blocks().size(), n);
  const std::vector<double> rates = adam.learning_rates_in(state);
  const bool has_residuals =
      policy.keeps_residuals_on_load && state.has_array("worker_error");
  if (has_residuals) require_residuals(state);
  const Commit commit_own = read_own(state);
  if (has_residuals)  // the last that can fail
    load_residuals(state);
  else if (exchange)
    exchange->clear_errors();

  for (std::size_t g = 0; g < rates.size(); ++g)
    adam.set_learning_rate(g, rates[g]);
  steps = new_steps;
  skipped = new_skipped;
  verification_is_due = new_due;
  left_out_a_step = new_left_out;
  norm = new_norm;
  adam.exp_avg() = std::move(m);
  adam.exp_avg_sq() = std::move(v);
  momentum_is_signs = false;
  set_participation(std::move(elements));
  late = std::move(new_late);
  block_denominators = std::move(new_denominators);
  commit_own();
}

// Where they do not fit, there is an exchange only if there was one before.
void LowBitOptimizer::Impl::load_residuals(const StateDict& state) {
  const bool is_new = exchange == nullptr;
  try {
    the_exchange().load_errors(state.array("worker_error"),
                               state.array("server_error"));
  } catch (const Error&) {
    if (is_new) exchange.reset();
    throw;
  }
}

void LowBitOptimizer::Impl::require_residuals(const StateDict& state) const {
  if (state.integer("world_size") != comm.size() ||
      state.integer("rank") != comm.rank())
    throw Error(
        ErrorCode::kCorruptCheckpoint,
        fmt::format("residuals of rank {} of {} do not fit rank {} of {}",
                    state.integer("rank"), state.integer("world_size"),
                    comm.rank(), comm.size()));
  if (state.integer("residual_layout") != residual_layout(parts.blocks))
    throw Error(ErrorCode::kCorruptCheckpoint,
                fmt::format("the state's residual_layout is of another bucket "
                            "size than this optimizer's bucket_elements {}",
                            settings.exchange.bucket_elements));
}

}  // namespace thinwire::optim
