// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/momentum/kept_momentum.h"

#include <algorithm>
#include <array>

namespace thinwire::optim {

kernels::MomentumForm KeptMomentum::current(std::size_t b) const {
  if (signs_ != nullptr) return {.signs = mean(b)};
  return {.values = std::as_const(model_.adam).exp_avg().as<float>().data() +
                    model_.block(b).offset};
}

kernels::MomentumForm KeptMomentum::previous(std::size_t b) const {
  if (signs_ == nullptr) return current(b);
  return {.signs = over_unit(signs_->previous_mean(b), b)};
}

kernels::SignInput KeptMomentum::input(
    std::size_t b, View grads, const kernels::AdamCoefficients& c) const {
  const kernels::MomentumForm m = current(b);
  return {.grads = model_.gradient(b, grads),
          .exp_avg = m.values,
          .mean = m.signs,
          .coefficients = &c};
}

void KeptMomentum::keep_as_signs(const exchange::SignExchange& all) {
  signs_ = &all;
  if (model_.layout.exact.empty()) model_.adam.exp_avg() = Buffer();
}

void KeptMomentum::keep_as_values() {
  if (signs_ == nullptr) return;
  Buffer& exp_avg = model_.adam.exp_avg();
  if (exp_avg.empty()) exp_avg = Buffer::of<float>(model_.size());
  float* const m = exp_avg.as<float>().data();
  model_.for_blocks(
      [&](std::size_t b) { decode(b, m + model_.block(b).offset); });
  signs_ = nullptr;
}

void KeptMomentum::decode(std::size_t b, float* to) const {
  kernels::sign_decode(mean(b), signs_->active().words(signs_->layout(), b), to,
                       model_.block(b).size);
}

void KeptMomentum::read(Range range, std::span<float> to) const {
  const auto kept = std::as_const(model_.adam).exp_avg().as<float>();
  if (kept.empty())
    std::ranges::fill(to, 0.0f);
  else
    std::ranges::copy(kept.subspan(range.offset, range.size), to.begin());
  if (signs_ == nullptr) return;
  const auto blocks = model_.layout.blocks.blocks();
  const auto first = std::ranges::partition_point(
      blocks, [&](const auto& b) { return b.values.end() <= range.offset; });
  for (auto b = static_cast<std::size_t>(first - blocks.begin());
       b < blocks.size() && blocks[b].values.offset < range.end(); ++b) {
    const Range& at = blocks[b].values;
    std::array<float, 1024> values;  // the size of the longest block
    decode(b, values.data());
    const std::size_t begin = std::max(at.offset, range.offset);
    const std::size_t end = std::min(at.end(), range.end());
    std::copy(values.begin() + static_cast<std::ptrdiff_t>(begin - at.offset),
              values.begin() + static_cast<std::ptrdiff_t>(end - at.offset),
              to.begin() + static_cast<std::ptrdiff_t>(begin - range.offset));
  }
}

void KeptMomentum::add_to(State& state, std::string_view name,
                          Sharing sharing) const {
  state.arrays.push_back(
      {.name = std::string(name),
       .dtype = DType::kFloat32,
       .axis = Axis::kElement,
       .sharing = sharing,
       .size = model_.size(),
       .ranges = {{0, model_.size()}},
       .read = [this](Range range, View to) { read(range, to.as<float>()); }});
}

}  // namespace thinwire::optim
