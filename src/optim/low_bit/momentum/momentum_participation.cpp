// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/momentum_participation.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace thinwire::optim {

void MomentumParticipation::set(std::vector<std::uint8_t> elements) {
  elements_ = std::move(elements);
  late_ = LateElements(model_.layout.blocks, elements_);
  num_left_out_ =
      elements_.size() - static_cast<std::size_t>(std::count(
                             elements_.begin(), elements_.end(), kTakesPart));
  exchange_.set_active(
      elements_.empty()
          ? exchange::ActiveMask()
          : exchange::ActiveMask(model_.layout.blocks,
                                 [&](std::size_t i) { return takes_part(i); }));
}

bool MomentumParticipation::has_late(View grads) {
  return late_.look_at(
      [&](std::size_t b) {
        return model_.has_gradient(b) ? model_.gradient(b, grads) : View();
      },
      model_.pool);
}

// The momentum becomes values under the old mask: kept as signs, it would
// decode to +-scale where it is 0.
std::vector<std::size_t> MomentumParticipation::admit_late(StepMeter& step) {
  form_.keep_as_values();
  const auto m = model_.adam.exp_avg().as<float>();
  exchange::ActiveMask active = exchange_.mask();
  std::vector<std::size_t> admitted;
  for (const auto& [block, words] : late_.revive(model_.comm, step)) {
    const std::size_t begin = model_.block(block).offset;
    for (std::size_t w = 0; w < words.size(); ++w)
      for (std::uint32_t rest = words[w]; rest != 0; rest &= rest - 1) {
        const std::size_t i =
            begin + w * 32 + static_cast<std::size_t>(std::countr_zero(rest));
        elements_[i] = kTakesPart;
        m[i] = 0;
        admitted.push_back(i);
      }
    active.add(model_.layout.blocks, block, words);
  }
  num_left_out_ -= admitted.size();
  exchange_.set_active(std::move(active));
  return admitted;
}

MaskChange MomentumParticipation::follow_masks() {
  MaskChange change;
  std::vector<std::uint8_t> elements = elements_;
  elements.resize(model_.size(), kTakesPart);
  for (const GroupRange& r : model_.layout.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      const bool is_out = model_.masks.leaves_out(i);
      if (elements[i] == kUnfit || is_out == (elements[i] == kOut)) continue;
      elements[i] = is_out ? kOut : kLate;
      (is_out ? change.excluded : change.included).push_back(i);
    }
  if (change.empty()) return change;
  form_.keep_as_values();  // under the masks that have held so far
  const auto m = model_.adam.exp_avg().as<float>();
  for (const std::size_t i : change.excluded) m[i] = 0;
  set(std::move(elements));
  return change;
}

void MomentumParticipation::add_to(State& state) const {
  if (!elements_.empty())
    state.add_elements("participation", Sharing::kSame, {{0, model_.size()}},
                       elements_);
  late_.add_to(state);
}

MomentumParticipation::Saved MomentumParticipation::read(
    const StateDict& state) const {
  Saved saved{.elements = saved_participation(state, model_.size()),
              .late = {}};
  saved.late = LateElements(model_.layout.blocks, saved.elements);
  saved.late.load_memory(state, model_.size());
  return saved;
}

void MomentumParticipation::restore(Saved&& saved) {
  set(std::move(saved.elements));
  late_ = std::move(saved.late);
}

}  // namespace thinwire::optim
