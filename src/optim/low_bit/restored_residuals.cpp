// SPDX-License-Identifier: Apache-2.0
#include "optim/low_bit/restored_residuals.h"

#include "core/set_to_zero.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

std::optional<ResidualViews> RestoredResiduals::views() const {
  if (!residuals_) return std::nullopt;
  return ResidualViews{residuals_->worker.view(), residuals_->server.view()};
}

std::vector<float> RestoredResiduals::take(std::size_t b,
                                           const std::uint32_t* active) {
  const Range& at = model_.layout.blocks.blocks()[b].residual;
  std::vector<float> sum(at.size);
  std::vector<float> worker(at.size);
  for (auto [side, to] : {std::pair(&residuals_->worker, &worker),
                          std::pair(&residuals_->server, &sum)}) {
    const View own = side->view().subview(at.offset, at.size);
    kernels::convert(own, std::span(*to));
    set_to_zero(own);
  }
  for (std::size_t i = 0; i < at.size; ++i)
    sum[i] = exchange::is_active(active, i) ? sum[i] + worker[i] : 0;
  return sum;
}

void RestoredResiduals::add_to(std::span<float> x,
                               const exchange::ActiveMask& active,
                               std::span<const float> units) {
  if (empty()) return;
  model_.for_blocks([&](std::size_t b) {
    const std::size_t at = model_.block(b).offset;
    const float unit = units.empty() ? 1 : units[b];
    const auto sum = take(b, active.words(model_.layout.blocks, b));
    for (std::size_t i = 0; i < sum.size(); ++i) x[at + i] += sum[i] / unit;
  });
  residuals_.reset();
}

}  // namespace thinwire::optim
