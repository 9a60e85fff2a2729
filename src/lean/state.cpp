// SPDX-License-Identifier: Apache-2.0
// State of lean 1-bit Adam. In the exact stage each rank saves a shard; later
// all parts except the residuals are the same on all ranks.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/ranges.h"
#include "lean/impl.h"
#include "optim/saved_state.h"
#include "thinwire/comm/agreement.h"
#include "thinwire/core/error.h"
#include "thinwire/core/memory.h"
#include "thinwire/kernels/cast.h"
#include "zero/checks.h"

namespace thinwire::lean {

using optim::Axis;
using optim::Sharing;
using optim::State;

namespace {

constexpr const char* kUpper = "low_bits_upper";
constexpr const char* kLower = "low_bits_lower";
// Name of the momentum. Differs from "exp_avg", under which optimizers in their
// exact stage expect a shard.
constexpr const char* kMomentum = "momentum";

// Adds one byte of each element's 16 bits, because a state's arrays have no
// 16-bit integers.
void add_byte(State& state, const char* name, const FullParameters& full,
              int shift) {
  const std::size_t size = full.params().size();
  state.arrays.push_back({.name = name,
                          .dtype = DType::kUInt8,
                          .axis = Axis::kElement,
                          .sharing = Sharing::kSame,
                          .size = size,
                          .ranges = {{0, size}},
                          .read = [&full, shift](Range range, View to) {
                            const auto low = full.low_bits();
                            const auto bytes = to.as<std::uint8_t>();
                            for (std::size_t i = 0; i < range.size; ++i)
                              bytes[i] = static_cast<std::uint8_t>(
                                  low[range.offset + i] >> shift);
                          }});
}

Buffer saved_low_bits(const StateDict& state, std::size_t size) {
  const auto upper = optim::saved_values<std::uint8_t>(state, kUpper, size);
  const auto lower = optim::saved_values<std::uint8_t>(state, kLower, size);
  Buffer low = FullParameters::make_low_bits(size);
  const auto bits = FullParameters::bits_of(low);
  for (std::size_t i = 0; i < size; ++i)
    bits[i] = static_cast<std::uint16_t>(upper[i] << 8 | lower[i]);
  return low;
}

[[noreturn]] void corrupt(const std::string& text) {
  throw Error(ErrorCode::kCorruptCheckpoint, text);
}

}  // namespace

void LeanOnebitAdam::Impl::list(optim::StateParts& parts, bool is_compressed) {
  parts.count({"step"}, steps);
  parts.count({"skipped_steps"}, skipped);
  gradients.list(parts);
  if (is_compressed || parts.saved() != nullptr)
    optim::list_learning_rates(parts, model.adam);
  if (is_compressed) {
    momentum.list(parts, model, kMomentum, Sharing::kSame, {});
    parts.add(
        [this](State& state) { denominators.add_to(state); },
        [this](const StateDict& state) { return denominators.read(state); },
        [this](CodedDenominators::Saved&& saved) {
          denominators.restore(std::move(saved));
        });
    parts.add(
        [this](State& state) {
          if (!full.are_split()) return;
          add_byte(state, kUpper, full, 8);
          add_byte(state, kLower, full, 0);
        },
        [this](const StateDict& state) {
          const std::size_t size = full.are_split() ? layout.size() : 0;
          return size > 0 ? saved_low_bits(state, size) : Buffer();
        },
        [this](Buffer&& low) { full.low_buffer() = std::move(low); });
  }
  freeze.list(parts);
  parts.then([this] {
    model.masks.follow();
    has_sent_early = false;
  });
}

// ---- saving

State LeanOnebitAdam::Impl::state() {
  State state;
  if (exact) state = exact->state();
  optim::StateParts parts(state);
  list(parts, !exact);
  if (exact) {
    state.encoded = optim::encoded_elements(model);
  } else {
    state.owner = optim::layout_owner(layout);
    optim::add_residual_owner(state, model);
    state.common.put_integer("denominator_bits", denominator_bits);
  }
  state.common.put_text("optimizer", model.settings.name);
  optim::add_hosts(state, comm.hosts());
  optim::WarmUpAverage::save_bits(state, warmup_bits);
  return state;
}

// ---- restoring

optim::Optimizer::Adoption LeanOnebitAdam::Impl::adopt(StateDict state) {
  const std::string saved = state.text("optimizer");
  if (saved == model.settings.name)
    return optim::saved_count(state, "frozen_at") > 0
               ? adopt_frozen(std::move(state))
               : adopt_exact(std::move(state));
  // Accepts states of Adam, and states of 1-bit Adam before its freeze. Missing
  // parts start from their initial values.
  if (saved != "adam" && saved != "onebit_adam")
    optim::refuse_optimizer(saved, model.settings.name);
  if (saved == "adam") {
    State begun;
    optim::LocalGradients::Memory().add_to(begun, /*lags=*/false);
    state.put_all("", optim::copy_of(begun));
    optim::FreezePoint::begin_in(state);
  }
  optim::require_rule(state, "adam");
  state.put_integer(optim::FreezePoint::kBegins, 1);
  return adopt_exact(std::move(state));
}

optim::Optimizer::Adoption LeanOnebitAdam::Impl::adopt_exact(StateDict state) {
  // Versions up to 0.13 saved the bits only under ZeRO's name.
  const bool is_own = state.text("optimizer") == model.settings.name;
  if (is_own && !state.has_scalar("warmup_bits") && state.has_scalar("bits_up"))
    state.put_integer("warmup_bits", state.integer("bits_up"));
  const int bits = optim::WarmUpAverage::saved_bits(
      state, bits_of_options, state.text("optimizer") == "adam");
  const auto rest = std::make_shared<StateDict>(std::move(state));
  optim::StateParts parts(*rest);
  list(parts, /*is_compressed=*/false);
  rest->put_text("optimizer", "adam");
  optim::Optimizer::Adoption of_exact;
  const bool has_residuals =
      rest->has_scalar("bits_up") && rest->has_array(optim::kWorkerError);
  const bool begins_anew = !exact || bits != warmup_bits;
  if (!begins_anew) {
    of_exact = exact->adopt(std::move(*rest));
  } else {  // the checks of adopt()
    if (bits != 0 && has_residuals)
      static_cast<void>(rest->array(
          optim::kWorkerError, rest->array(optim::kWorkerError).dtype(),
          total_size(optim::encoded_elements(model))));
    const std::size_t size = shards.shard_size(comm.rank());
    const auto require_array = [&](const char* name, optim::Sign sign) {
      if (size > 0)
        optim::require_usable(name, rest->array(name, DType::kFloat32, size),
                              sign);
    };
    require_array("exp_avg", optim::Sign::kAny);
    require_array("exp_avg_sq", optim::Sign::kNotNegative);
    if (full.are_split()) require_array("masters", optim::Sign::kAny);
  }
  return [this, bits, has_residuals, begins_anew, rest, of_exact,
          set = parts.adoption()] {
    if (begins_anew) {
      warmup_bits = bits;
      begin_exact();
      exact->adopt(std::move(*rest))();
    } else {
      of_exact();
    }
    if (begins_anew && sends_low_bits()) gather_replicas();
    set();
    optim::Notes notes = note_stage();
    if (bits == 0 && has_residuals)
      notes.emplace_back(optim::WarmUpAverage::kDropped);
    return notes;
  };
}

// Gathers the replicas, of which a state has only this rank's shard.
void LeanOnebitAdam::Impl::gather_replicas() {
  const View params = full.params();
  for (const zero::ShardBucket& bucket : shards.buckets()) {
    const Range& own = bucket.pieces[static_cast<std::size_t>(comm.rank())];
    comm.queue_all_gather(
            params.subview(own.offset, own.size),
            params.subview(bucket.range.offset, bucket.range.size),
            bucket.within)
        .wait();
  }
}

optim::Optimizer::Adoption LeanOnebitAdam::Impl::adopt_frozen(StateDict state) {
  if (state.has_array(optim::ranges_key(optim::kNewParameters)))
    corrupt(
        "lean 1-bit Adam takes up no parameters that are new after its freeze: "
        "load with what = kWeights (Python: weights_only=True)");
  const std::int64_t bits = state.integer("denominator_bits");
  if (bits != denominator_bits)
    corrupt(
        fmt::format("the state's denominator_bits is {}, this optimizer's "
                    "{}",
                    bits, denominator_bits));
  if (!full.are_split() && state.has_array(kUpper))
    corrupt(
        "the state is of bfloat16 parameters, this optimizer's are float32: "
        "load with what = kWeights (Python: weights_only=True)");
  if (full.are_split() && layout.size() > 0 && !state.has_array(kUpper) &&
      !state.has_array(kLower))
    corrupt(
        "the state is of float32 parameters, this optimizer's are bfloat16: "
        "load with what = kWeights (Python: weights_only=True)");
  const int saved_bits = optim::WarmUpAverage::saved_bits(
      state, bits_of_options, /*begins=*/false);
  optim::StateParts parts(state);
  list(parts, /*is_compressed=*/true);
  optim::note_other_hosts(state, model);
  return [this, saved_bits, set = parts.adoption()] {
    exact.reset();
    warmup_bits = saved_bits;
    set();
    optim::Notes notes = note_stage();
    optim::note_change(follow_masks(), notes);
    return notes;
  };
}

// ---- the class

State LeanOnebitAdam::state() const { return impl_->state(); }

optim::Optimizer::Adoption LeanOnebitAdam::adopt(StateDict state) {
  return impl_->adopt(std::move(state));
}

void LeanOnebitAdam::require_owner(const StateDict& state) const {
  optim::require_layout(state, impl_->layout);
  optim::require_residual_owner(state, impl_->model);
  if (!state.has_scalar("shards")) return;
  zero::require_shard_owner(state, impl_->layout, impl_->comm.rank());
  optim::require_text(state, "shards", impl_->shards.describe());
}

optim::Notes LeanOnebitAdam::load_state_dict(const StateDict& state) {
  Adoption adopted;
  comm::require_everywhere(impl_->comm, [&] {
    require_owner(state);
    adopted = adopt(optim::copy_to_adopt(state));
  });
  optim::Notes notes = adopted();
  if (!impl_->exact) return notes;
  if (impl_->sends_low_bits()) {  // this also gathers replicas
    StateDict of_exact = optim::copy_to_adopt(state);
    of_exact.put_text("optimizer", "adam");
    static_cast<void>(impl_->exact->load_state_dict(of_exact));
    return notes;
  }
  if (!impl_->full.are_split()) return notes;
  for (const Parameter& p : impl_->layout.parameters())
    kernels::convert(impl_->exact->whole_values().parameter(p.name),
                     impl_->full.params().subview(p.offset, p.size));
  return notes;
}

void LeanOnebitAdam::set_masters(ConstView params) {
  const ParameterLayout& layout = impl_->layout;
  require(params.size() == layout.size(), "params",
          fmt::format("{} elements", layout.size()), params.size());
  if (impl_->exact) return impl_->exact->set_masters(params);
  for (const Parameter& p : layout.parameters()) {
    std::vector<float> values(p.size);
    kernels::convert(params.subview(p.offset, p.size), values);
    impl_->full.write({p.offset, p.size}, values);
  }
}

}  // namespace thinwire::lean
