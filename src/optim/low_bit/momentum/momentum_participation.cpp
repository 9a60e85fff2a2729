// SPDX-License-Identifier: Apache-2.0
// Which elements of the momentum take part.
#include <algorithm>
#include <bit>
#include <utility>

#include "optim/low_bit/momentum/momentum.h"

namespace thinwire::optim {

void CompressedMomentum::set_participation(std::vector<std::uint8_t> elements) {
  participation_ = std::move(elements);
  late_ = LateElements(model_.layout.blocks, participation_);
  num_left_out_ =
      participation_.size() -
      static_cast<std::size_t>(
          std::count(participation_.begin(), participation_.end(), kTakesPart));
  active_ =
      participation_.empty()
          ? exchange::ActiveMask()
          : exchange::ActiveMask(model_.layout.blocks,
                                 [&](std::size_t i) { return takes_part(i); });
  if (exchange_) exchange_->set_active(active_);
}

// Momentum becomes values under the old mask: kept as signs it would decode to
// +-scale where it is 0.
std::vector<std::size_t> CompressedMomentum::admit_late(StepMeter& step) {
  keep_as_values();
  const auto m = model_.adam.exp_avg().as<float>();
  std::vector<std::size_t> admitted;
  for (const auto& [block, words] : late_.revive(model_.comm, step)) {
    const std::size_t begin = model_.block(block).offset;
    for (std::size_t w = 0; w < words.size(); ++w)
      for (std::uint32_t rest = words[w]; rest != 0; rest &= rest - 1) {
        const std::size_t i =
            begin + w * 32 + static_cast<std::size_t>(std::countr_zero(rest));
        participation_[i] = kTakesPart;
        m[i] = 0;
        admitted.push_back(i);
      }
    active_.add(model_.layout.blocks, block, words);
  }
  num_left_out_ -= admitted.size();
  if (exchange_) exchange_->set_active(active_);
  return admitted;
}

MaskChange CompressedMomentum::follow_masks() {
  MaskChange change;
  std::vector<std::uint8_t> elements = participation_;
  elements.resize(model_.size(), kTakesPart);
  for (const GroupRange& r : model_.layout.compressed)
    for (std::size_t i = r.range.offset; i < r.range.end(); ++i) {
      const bool is_out = model_.masks.leaves_out(i);
      if (elements[i] == kUnfit || is_out == (elements[i] == kOut)) continue;
      elements[i] = is_out ? kOut : kLate;
      (is_out ? change.excluded : change.included).push_back(i);
    }
  if (change.empty()) return change;
  keep_as_values();  // under the masks that have held so far
  const auto m = model_.adam.exp_avg().as<float>();
  for (const std::size_t i : change.excluded) m[i] = 0;
  set_participation(std::move(elements));
  return change;
}

}  // namespace thinwire::optim
