// SPDX-License-Identifier: Apache-2.0
#include "thinwire/optim/lamb.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "optim/checks.h"
#include "optim/lamb_step.h"
#include "optim/low_bit/options.h"
#include "optim/step_pieces.h"

namespace thinwire::optim {

void LambOptions::validate(std::size_t num_groups) const {
  adam_options(*this).validate(num_groups);
  require_trust_limits(*this);
}

Lamb::Lamb(ParameterLayout layout, const LambOptions& options)
    : adam_(std::move(layout), adam_options(options)) {
  options.validate(adam_.num_groups());
  limits_ = trust_limits(options, adam_.num_groups());
  ratios_.resize(adam_.layout().parameters().size());
}

std::string_view Lamb::name() const noexcept { return "lamb"; }

const ParameterLayout& Lamb::layout() const noexcept { return adam_.layout(); }

std::string Lamb::describe() const {
  return fmt::format("lamb {}\n{}", optim::describe(limits_), adam_.describe());
}

void Lamb::apply(std::int64_t step, const UpdateArrays& arrays,
                 ThreadPool& pool) {
  ratios_ = lamb_step(adam_, step, arrays, limits_, pool);
}

void Lamb::apply_part(std::int64_t step, Range part, const UpdateArrays& arrays,
                      ThreadPool& pool) {
  require_part(part, arrays, layout());
  if (norms_of_ != step)
    throw Error(ErrorCode::kFailedPrecondition,
                fmt::format("lamb needs the norms of step {} first, it has "
                            "those of step {}",
                            step, norms_of_));
  const LambStep lamb(adam_, step, arrays.grad_scale);
  for_group_ranges(
      pool, group_ranges(layout(), part), [&](Range range, std::size_t) {
        lamb.update(range,
                    part_of(arrays, {range.offset - part.offset, range.size}),
                    ratios_);
      });
}

void Lamb::measure(std::int64_t step, std::span<const NormCell> cells,
                   const UpdateArrays& arrays, std::span<NormSums> sums) {
  if (cells.empty()) return;
  const std::size_t begin = cells.front().range.offset;
  require_part({begin, cells.back().range.end() - begin}, arrays, layout());
  require(sums.size() == cells.size(), "sums",
          fmt::format("of {} elements", cells.size()), sums.size());
  LambStep(adam_, step, arrays.grad_scale).measure(cells, arrays, sums);
}

void Lamb::set_norms(std::int64_t step, std::span<const NormSums> parameters) {
  require(parameters.size() == ratios_.size(), "parameters",
          fmt::format("of {} elements", ratios_.size()), parameters.size());
  for (std::size_t i = 0; i < ratios_.size(); ++i)
    ratios_[i] =
        trust_ratio(parameters[i], limits_[layout().parameters()[i].group]);
  norms_of_ = step;
}

std::vector<double> Lamb::lamb_coeffs() const {
  std::vector<double> values;
  for (const TrustRatio& ratio : ratios_) values.push_back(ratio.value);
  return values;
}

double Lamb::lamb_coeff(std::size_t group, const NormSums& sums) const {
  return trust_ratio(sums, limits_[group]).value;
}

std::size_t Lamb::num_groups() const noexcept { return adam_.num_groups(); }

void Lamb::set_learning_rate(std::size_t group, double learning_rate) {
  adam_.set_learning_rate(group, learning_rate);
}

double Lamb::learning_rate(std::size_t group) const {
  return adam_.learning_rate(group);
}

void Lamb::set_weight_decay(std::size_t group, double weight_decay) {
  adam_.set_weight_decay(group, weight_decay);
}

double Lamb::weight_decay(std::size_t group) const {
  return adam_.weight_decay(group);
}

View Lamb::state(std::string_view key) { return adam_.state(key); }

void Lamb::add_to(State& state, Sharing sharing,
                  const std::vector<Range>& elements) const {
  adam_.add_to(state, sharing, elements);
}

Adoption Lamb::adopt(StateDict& state) {
  return [this, of_adam = adam_.adopt(state)] {
    of_adam();
    norms_of_ = 0;
  };
}

}  // namespace thinwire::optim
