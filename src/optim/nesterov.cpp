// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/nesterov.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <utility>

#include "optim/checks.h"
#include "optim/saved_state.h"
#include "optim/step_pieces.h"
#include "thinwire/kernels/cast.h"

namespace thinwire::optim {

namespace {

struct NesterovStep {
  float momentum = 0;
  float learning_rate = 1;
  float grad_scale = 1;
};

void take_nesterov_step(std::span<float> p, std::span<float> u, const float* g,
                        const NesterovStep& c) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    const float y = g[i] * c.grad_scale;
    u[i] = c.momentum * u[i] + y;
    p[i] -= c.learning_rate * (y + c.momentum * u[i]);
  }
}

// Widens 16-bit gradients block by block.
void take_nesterov_step(std::span<float> p, std::span<float> u, ConstView grads,
                        const NesterovStep& c) {
  if (grads.dtype() == DType::kFloat32)
    return take_nesterov_step(p, u, grads.as<float>().data(), c);
  constexpr std::size_t kBlock = 1024;
  std::array<float, kBlock> g;
  for (std::size_t at = 0; at < p.size(); at += kBlock) {
    const std::size_t size = std::min(kBlock, p.size() - at);
    kernels::convert(grads.subview(at, size), std::span(g.data(), size));
    take_nesterov_step(p.subspan(at, size), u.subspan(at, size), g.data(), c);
  }
}

}  // namespace

void NesterovOptions::validate() const {
  require_learning_rate(learning_rate);
  require(momentum >= 0 && momentum < 1, "momentum", "in [0, 1)", momentum);
}

Nesterov::Nesterov(ParameterLayout layout, const NesterovOptions& options)
    : layout_(std::move(layout)),
      momentum_(options.momentum),
      learning_rates_(layout_.num_groups(), options.learning_rate) {
  options.validate();
  buffer_ = Buffer::of<float>(layout_.size());
}

std::string_view Nesterov::name() const noexcept { return "nesterov"; }

const ParameterLayout& Nesterov::layout() const noexcept { return layout_; }

std::string Nesterov::describe() const {
  return fmt::format("nesterov momentum={} learning_rates={}\n", momentum_,
                     fmt::join(learning_rates_, " "));
}

void Nesterov::apply_part(std::int64_t /*step*/, Range part,
                          const UpdateArrays& arrays, ThreadPool& pool) {
  require_part(part, arrays, layout_);
  for_group_ranges(
      pool, group_ranges(layout_, part), [&](Range range, std::size_t group) {
        const UpdateArrays own =
            part_of(arrays, {range.offset - part.offset, range.size});
        take_nesterov_step(
            own.params.as<float>(),
            buffer_.as<float>().subspan(range.offset, range.size), own.grads,
            {.momentum = static_cast<float>(momentum_),
             .learning_rate = static_cast<float>(learning_rates_[group]),
             .grad_scale = own.grad_scale});
        if (!own.low_precision.empty())
          kernels::convert(own.params, own.low_precision);
      });
}

std::size_t Nesterov::num_groups() const { return learning_rates_.size(); }

void Nesterov::set_learning_rate(std::size_t group, double learning_rate) {
  require_group(group, num_groups());
  require_learning_rate(learning_rate);
  learning_rates_[group] = learning_rate;
}

double Nesterov::learning_rate(std::size_t group) const {
  require_group(group, num_groups());
  return learning_rates_[group];
}

void Nesterov::set_weight_decay(std::size_t group, double weight_decay) {
  require_group(group, num_groups());
  require(weight_decay == 0, "weight_decay", "0 with nesterov", weight_decay);
}

double Nesterov::weight_decay(std::size_t group) const {
  require_group(group, num_groups());
  return 0;
}

View Nesterov::state(std::string_view key) {
  require(key == "momentum", "key", "momentum", key);
  return buffer_.view();
}

void Nesterov::add_to(State& state, Sharing sharing,
                      const std::vector<Range>& elements) const {
  state.add_elements("momentum", sharing, elements, buffer_.view());
}

Adoption Nesterov::adopt(StateDict& state) {
  const auto taken = std::make_shared<Buffer>(
      take_floats(state, "momentum", DType::kFloat32, layout_.size()));
  return [this, taken] { buffer_ = std::move(*taken); };
}

}  // namespace thinwire::optim
