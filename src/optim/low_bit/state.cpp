// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "core/require.h"
#include "optim/averages/unit_average.h"
#include "optim/low_bit/impl.h"
#include "optim/parameters_differ.h"
#include "optim/saved_state.h"
#include "thinwire/core/error.h"

namespace thinwire::optim {

Buffer copy_of(ConstView values) {
  Buffer copy(values.size(), values.dtype());
  if (values.bytes() != 0)
    std::memcpy(copy.data(), values.data(), values.bytes());
  return copy;
}

void CompressedMomentum::list(
    StateParts& parts, LowBitModel& model, const char* name, Sharing sharing,
    const std::optional<ResidualViews>& of_gradients) {
  parts.add(
      [&](State& state) {
        form.add_to(state, name, sharing);
        participation.add_to(state);
      },
      [&](StateDict& state) {
        return take_floats(state, name, DType::kFloat32, model.size());
      },
      [this, &model](Buffer&& m) {
        model.adam.exp_avg() = std::move(m);
        form.now_values();
      });
  parts.add([&](State& state) { exchange.add_to(state, of_gradients); },
            [&](StateDict& state) { return exchange.read(state); },
            [this](auto&& saved) { exchange.restore(std::move(saved)); });
  // Clears the residuals of elements that take no part.
  parts.add([](State&) {},
            [&](StateDict& state) { return participation.read(state); },
            [this](auto&& saved) { participation.restore(std::move(saved)); });
}

void list_learning_rates(StateParts& parts, Adam& adam) {
  parts.add(
      [&](State& state) {
        state.add_groups("learning_rates", adam.learning_rates());
      },
      [&](const StateDict& state) {
        return saved_learning_rates(state, adam.num_groups());
      },
      [&adam](const std::vector<double>& rates) {
        for (std::size_t g = 0; g < rates.size(); ++g)
          adam.set_learning_rate(g, rates[g]);
      });
}

void LowBitOptimizer::Impl::list(StateParts& parts) {
  parts.count({"step"}, steps);
  parts.count({"skipped_steps"}, skipped);
  parts.integer({"verification_is_due"}, verification_is_due);
  gradients.list(parts);
  list_learning_rates(parts, adam());
  const bool differs =
      local_updates != nullptr && local_updates->momenta_differ();
  momentum.list(parts, model, "exp_avg",
                differs ? Sharing::kMean : Sharing::kSame,
                phase() == Phase::kExact ? gradients.few_bits().residuals()
                                         : std::nullopt);
  Buffer& v = adam().exp_avg_sq();
  if (parts.has("exp_avg_sq", !v.empty() || model.size() == 0))
    parts.elements({.name = "exp_avg_sq",
                    .ranges = {{0, model.size()}},
                    .sign = Sign::kNotNegative},
                   v);
  else
    parts.set(v, Buffer());
  parts.add(
      [this](State& state) { denominator.blocks.add_to(state, model.layout); },
      [this](const StateDict& state) {
        return BlockDenominators::load(state, model.layout, model.size());
      },
      [this](BlockDenominators&& blocks) {
        denominator.blocks = std::move(blocks);
      });
  list_own(parts);
  if (under_next_step != nullptr) under_next_step->list(parts);
}

State LowBitOptimizer::Impl::state() {
  require_between_steps("state");
  State state;
  state.has_local_steps = local_steps() != nullptr;
  state.common.put_text("optimizer", model.settings.name);
  add_hosts(state, model.comm.hosts());
  gradients.few_bits().add_to(state);
  StateParts parts(state);
  list(parts);
  state.owner = layout_owner(adam().layout());
  add_residual_owner(state, model);
  std::string names;
  for (const StateArray& array : state.arrays) names += array.name + '\n';
  state.owner.put_text("arrays", std::move(names));
  return state;
}

void LowBitOptimizer::Impl::require_between_steps(const char* call) const {
  if (under_next_step != nullptr) (void)under_next_step->arrive();
  if (gradients.few_bits().has_begun())
    refuse(fmt::format(
        "{}: between reduce() and step(), with warmup_bits; call step() first",
        call));
}

// Adds the data that the state of the exact rule lacks.
void LowBitOptimizer::Impl::require_optimizer(StateDict& state) const {
  const std::string saved = state.text("optimizer");
  if (saved == model.settings.name) return;
  if (!begins_in(state, saved)) refuse_optimizer(saved, model.settings.name);
  State begun;
  begun.common.put_integer("verification_is_due", 0);
  LocalGradients::Memory().add_to(begun, /*lags=*/false);
  state.put_all("", copy_of(begun));
}

// ---- parameters that the state does not know

namespace {

constexpr const char* kMedians = "denominator_medians";
constexpr const char* kFloors = "denominator_floors";

bool contains(std::span<const Range> ranges, std::size_t element) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) {
    return r.offset <= element && element < r.end();
  });
}

// Moves the values of saved blocks to their places, and sets those of new
// blocks to `value`.
void insert_blocks(StateDict& state, const char* name, const LowBitModel& model,
                   std::span<const Range> added, float value) {
  const std::vector<Range> ranges = saved_ranges(state, name, model.size());
  const auto saved = saved_values<float>(state, name, ranges.size());
  std::vector<float> values;
  std::vector<std::int64_t> places;
  std::size_t next = 0;
  for (std::size_t b = 0; b < model.num_blocks(); ++b) {
    const Range& at = model.block(b);
    const bool is_new = contains(added, at.offset);
    if (!is_new && next == saved.size()) break;  // load() reports the error
    values.push_back(is_new ? value : saved[next]);
    const Range& place = is_new ? at : ranges[next++];
    places.push_back(static_cast<std::int64_t>(place.offset));
    places.push_back(static_cast<std::int64_t>(place.size));
  }
  state.put(name, values);
  state.put(ranges_key(name), places);
}

// Completes a saved state without some parameters, which kNewParameters lists
// and whose arrays are 0. If the state has denominators, new elements get the
// model's median and are inactive (docs/algorithms/late-and-heavy.md).
void begin_new_parameters(StateDict& state, const LowBitModel& model) {
  if (!state.has_array(ranges_key(kNewParameters))) return;
  const std::vector<Range> added =
      saved_ranges(state, kNewParameters, model.size());
  if (!state.has_array(kMedians)) return;
  const auto saved = state.array(kMedians).as<float>();
  std::vector<float> medians(saved.begin(), saved.end());
  const float median = median_of(medians).value_or(1);
  insert_blocks(state, kMedians, model, added, median);
  insert_blocks(state, kFloors, model, added,
                static_cast<float>(model.settings.denom_floor) * median);

  auto d = saved_values<float>(state, "denominator", model.size());
  std::vector<std::uint8_t> elements(model.size(), kTakesPart);
  if (state.has_array("participation"))
    elements = saved_values<std::uint8_t>(state, "participation", model.size());
  for (const GroupRange& r : model.layout.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      if (!contains(added, i)) continue;
      d[i] = median;
      elements[i] = model.masks.leaves_out(i) ? kOut : kLate;
    }
  state.put("denominator", d);
  state.put("participation", elements);
}

}  // namespace

Optimizer::Adoption LowBitOptimizer::Impl::adopt(StateDict state) {
  require_between_steps("adopt");
  const bool begins = state.text("optimizer") != model.settings.name;
  require_optimizer(state);
  begin_new_parameters(state, model);
  WarmUpAverage& few_bits = gradients.few_bits();
  const int bits = few_bits.bits_after(state, begins);
  const auto of_gradients = std::make_shared<std::optional<RankResiduals>>();
  if (WarmUpAverage::owns_residuals_of(state))
    *of_gradients = take_residuals(state, model);
  StateParts parts(state);
  list(parts);
  note_other_hosts(state, model);
  Notes unused;
  note_unused_averages(state, unused);
  return [this, bits, of_gradients, unused, set = parts.adoption()] {
    Notes notes = unused;
    gradients.few_bits().restore(bits, std::move(*of_gradients), notes);
    set();
    model.masks.follow();
    for (std::string& note : follow_options()) notes.push_back(std::move(note));
    note_change(follow_masks(), notes);
    return notes;
  };
}

// A state in memory must contain all saved parts, unless the exact rule saved
// it.
void LowBitOptimizer::Impl::require_owner(const StateDict& state) {
  require_layout(state, model.adam.layout());
  require_residual_owner(state, model);
  if (state.text("optimizer") != model.settings.name) return;
  // Refuses a state whose ranks have different parameters, because callers
  // would restore each rank's own, which would differ permanently.
  if (under_next_step == nullptr && state.has_scalar(kParametersDiffer) &&
      state.integer(kParametersDiffer) != 0)
    throw Error(ErrorCode::kCorruptCheckpoint,
                "the state was saved with compressed_under_next_step while "
                "parameters differed from rank to rank: make the optimizer "
                "with it, or call synchronize() before saving; checkpoints "
                "load with and without it");
  std::istringstream names(state.text("arrays"));
  for (std::string name; std::getline(names, name);)
    static_cast<void>(state.array(name));
  const State described = this->state();
  for (const auto& [name, value] : described.own.scalars())
    static_cast<void>(state.integer(name));
}

}  // namespace thinwire::optim
